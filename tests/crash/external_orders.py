"""Checks that orders to the workload system, agents and provider took effect once. Pure."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, Literal

from services.saga.participant import LATE
from services.saga.saga_state import SagaState

Kind = Literal["lost", "doubled", "leaked"]
Log = tuple[SagaState, Sequence[tuple[str, str]]]
"""A saga, and the (step, status) of each of its entries."""

OF_THE_OLD: Final[Mapping[str, str]] = {
    "cordon": "cordon",
    "drain": "drain",
    "vacate": "drain",
    "uncordon": "uncordon",
    "cordon-gpus": "cordon_gpus",
}
OF_THE_NEW: Final[Mapping[str, str]] = {"reserve": "cordon", "open": "uncordon"}
"""Step -> the order that it sends to the workload system, for the saga's old and new node."""
GPU_STEPS: Final = ("uncordon", "promote")
"""They also return the GPUs that no record has cordoned, where the workload system has GPUs."""
PUTS_RIGHT: Final = ("cordon", "uncordon", "cordon_gpus")
"""Orders by which a node's record is followed after an order that may have come too late."""
IN_PLACE_STEPS: Final = ("reset", "reboot")


def unmatched_orders(
    logs: Sequence[Log], heard: Mapping[tuple[str, str], Collection[str]]
) -> Iterator[tuple[Kind, str]]:
    """Orders that the workload system did not receive, or received without a step."""
    must: set[tuple[str, str, str]] = set()
    may: set[tuple[str, str, str]] = set()
    for state, places in logs:
        for step, status in places:
            if order := _order(state, step, status):
                may.add(order)
                if step in GPU_STEPS:
                    may.add(("cordon_gpus", order[1], f"{order[2]}/gpus"))
                if "succeeded" in status:
                    must.add(order)
    steps = {f"{state.saga}/{step}" for state, places in logs for step, _ in places}
    were = {
        (event, node, key)
        for (event, node), keys in heard.items()
        for key in keys
        if not _puts_right(event, key, steps)
    }
    for event, node, key in sorted(must - were):
        yield "lost", f"the workload system never received {event} {node} ({key})"
    for event, node, key in sorted(were - may):
        yield "doubled", f"the workload system received {event} {node} for no step ({key})"


def _puts_right(event: str, key: str, steps: Collection[str]) -> bool:
    """Return whether an order follows a node's record after one that may have come too late."""
    step, late, _ = key.partition(f"/{LATE}-")
    return bool(late) and event in PUTS_RIGHT and step in steps


def _order(state: SagaState, step: str, status: str) -> tuple[str, str, str] | None:
    params, key = state.params, f"{state.saga}/{step}"
    if step == "cordon" and status.startswith("undo"):
        return ("uncordon", params.node, key) if status != "undo-failed" else None
    if status not in ("started", "succeeded"):
        return None
    if step == "promote":
        return "uncordon", params.promotes, key
    if step in OF_THE_NEW:
        return OF_THE_NEW[step], params.new_node, key
    return (OF_THE_OLD[step], params.node, key) if step in OF_THE_OLD else None


def unmatched_resets_and_reboots(
    logs: Sequence[Log], acts: Sequence[tuple[str, str]] | None
) -> Iterator[tuple[Kind, str]]:
    """Resets and reboots without a step, and steps without their reset or reboot, or with two.

    A provider whose answer was lost is called again and may reboot again: it takes no key. A step
    that finds the node in another boot succeeds without a reboot: an earlier attempt was killed
    after the agent had rebooted the node.
    """
    if acts is None:
        return
    by_agent = Counter(key for key, _ in acts if key)
    by_provider = Counter(node for key, node in acts if not key)
    called_for = set()
    for state, places in logs:
        for step in IN_PLACE_STEPS:
            if (step, "started") not in places:
                continue
            key, node = f"{state.saga}/{step}", state.params.node
            called_for.add(key)
            who = state.outputs.get(step, {}).get("by")
            if who == "agent" and not by_agent[key]:
                yield "lost", f"{node} never received {step} ({key})"
            by_other = who not in ("agent", "none", None)
            if by_other and not by_provider[node]:
                yield "lost", f"the provider never rebooted {node} ({key})"
            if by_other and by_agent[key]:
                yield "doubled", f"{node} was rebooted by its agent and by {who} ({key})"
    for key, times in sorted(by_agent.items()):
        if key not in called_for or times > 1:
            yield "doubled", f"{key}: {times} times, called for {int(key in called_for)} times"
