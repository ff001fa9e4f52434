"""Writes what the owner of work reads before a drain ends it. Pure."""

from datetime import UTC
from typing import Final

from services.notifier.workload.workload_notifier import WorkloadOrder

TEXT_CHARS_MAX: Final = 400
"""Of one message: a workload system keeps it beside each job, and a terminal shows it whole."""


def disruption_text(order: WorkloadOrder, then: str, node: str = "") -> str:
    """Return why the node drains, by when work must leave, and what happens then.

    `then` is the end of "work that still runs then"; `node` is the workload system's name of it.
    """
    why = order.reason or "an operator requested it"
    by = f"{order.deadline.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if order.deadline else "its end"
    text = f"Navarch drains {node or order.node.node}: {why}. Work that still runs at {by} {then}."
    line = " ".join(f"{text} ({order.saga})".split())
    return "".join(each if each.isprintable() else "?" for each in line)[:TEXT_CHARS_MAX]
