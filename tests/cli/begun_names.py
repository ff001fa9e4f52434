"""Lists commands with the beginnings of names, and those whose beginnings are ambiguous."""

from typing import Final

SAGA: Final = "replace-training-2-1"
OVER: Final = "drain-training-3-1"
BEGUN: Final = {
    "pool status tr": "pool status training",
    "pool history tr": "pool history training",
    "list --pool tr": "list --pool training",
    "offerings --pool tr": "offerings --pool training",
    "breaker show tr": "breaker show training",
    "workload check tr": "workload check training",
    "saga show repl": f"saga show {SAGA}",
    "why drain-": f"why {OVER}",
    "evidence training-9 --saga drain-": f"evidence training-9 --saga {OVER}",
    "evidence training-9": "evidence training-9",
    "timeline training-2": "timeline training-2",
    "alerts acknowledge silence/training-1": "alerts acknowledge silence/training-1",
    "alerts acknowledge silence/t": "alerts acknowledge silence/training-1",
    "alerts ack silence/t": "alerts acknowledge silence/training-1",
    "alerts silence silence/t --for 2h": "alerts silence silence/training-1 --for 2h",
    "alerts assign silence/t --to b": "alerts assign silence/training-1 --to b",
    "alerts note silence/t x": "alerts note silence/training-1 x",
    "scale tr 99": "scale training 99",
    "hardware forget --node training-": "hardware forget --node training-1",
}
"""A command with a beginning -> the one with the whole name, which prints the same."""
BEGUN_READS: Final = [each for each in BEGUN if not each.startswith("alerts")]
AMBIGUOUS: Final = {
    "why training-": "several nodes, pools and sagas: training-1, training-2, training-3",
    "why t": "several nodes, pools and sagas: training, training-1, training-2, training-3",
    "get training-": "several nodes: training-1, training-2, training-3",
    "evidence training-": "several nodes: training-1, training-2, training-3, training-9",
    "events --node training-": "several nodes: training-1, training-2, training-3",
}
