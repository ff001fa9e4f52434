"""Stored messages as the lines of `navarch why`, one sentence each. Pure.

Times are storage times: they come from one clock, the server's.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

import msgspec

from schemas import node_events as n
from schemas import pool_events as p
from schemas import saga_log_entries as s
from schemas.messages import Invalid, Message, UnknownType
from schemas.stored_messages import decode_stored
from services.bus.port import Stored
from services.operator_text.event_text import describe
from services.operator_text.quantities import elapsed

Topic = Literal["observed", "judged", "requested", "refused", "blocked", "decided", "tried", "done"]

TOPICS: Final[dict[type, Topic]] = {
    n.Fault: "observed",
    n.ConditionEnded: "observed",
    n.Lost: "observed",
    n.Returned: "observed",
    n.BootChecked: "observed",
    n.Registered: "observed",
    n.MachineRefused: "refused",
    n.IdentityChanged: "refused",
    n.DrillStarted: "requested",
    n.ProviderNotice: "observed",
    n.CheckpointRequested: "done",
    n.OwnersNotified: "done",
    n.OwnerNoticeFailed: "done",
    n.WorkLeft: "observed",
    n.WorkloadState: "observed",
    n.WorkFailed: "observed",
    n.Verdict: "judged",
    n.NodeHeld: "requested",
    n.Released: "requested",
    n.Admitted: "done",
    n.Promoted: "done",
    n.Repaired: "done",
    p.Scaled: "requested",
    p.RequestAccepted: "requested",
    p.ScaleRefused: "refused",
    p.RequestRefused: "refused",
    p.BreakerOpened: "blocked",
    p.BreakerHalfOpened: "decided",
    p.BreakerClosed: "done",
    p.QuarantineFull: "blocked",
    p.OnDemandShort: "blocked",
    p.PoolCondition: "blocked",
    p.SagaOpened: "decided",
    p.WouldStart: "blocked",
    p.NodesDrifted: "decided",
    p.NodeRefused: "tried",
    p.NodeReplaced: "done",
    p.SagaFailed: "tried",
    p.SagaCancelled: "tried",
    p.SagaIsStuck: "tried",
    p.OperatorNeeded: "blocked",
    p.InstanceLeaked: "tried",
    p.LaunchRefused: "refused",
    p.LaunchWaiting: "blocked",
    s.StepSucceeded: "done",
    s.StepFailed: "tried",
    s.StepExpired: "tried",
    s.StepOverdue: "tried",
    s.UndoSucceeded: "done",
    s.UndoFailed: "tried",
    s.SagaUnwinding: "decided",
    s.SagaRetried: "requested",
    s.SagaDone: "done",
    s.SagaUnwound: "done",
}
"""Messages without a topic are omitted: the saga logs contain what sagas do to a node."""


class HistoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """Holds one sentence of the answer."""

    at: datetime
    topic: Topic
    text: str


def history_lines(stored: Iterable[Stored]) -> list[HistoryLine]:
    """Every message that has a topic, in order."""
    started: dict[tuple[str, str], datetime] = {}
    lines = []
    for each in sorted(stored, key=lambda one: one.time):
        message = decode_stored(each)
        took = ""
        if isinstance(message, s.StepEntry):
            step = message.saga, message.step
            if isinstance(message, s.StepStarted | s.UndoStarted):
                started[step] = each.time
            elif step in started:
                took = f" after {elapsed((each.time - started[step]).total_seconds())}"
        if topic := _topic(message):
            text = describe(message)
            detail = f": {text.summary}" if text.detail else ""
            line = f"{text.name} {text.title}{took}{detail}"
            lines.append(HistoryLine(at=each.time, topic=topic, text=line))
    return lines


def _topic(message: Message | UnknownType | Invalid) -> Topic | None:
    match message:
        case n.Remediated(outcome=outcome):
            return "done" if outcome == "recovered" else "tried"
        case p.Incident(status=status):
            return "blocked" if status == "opened" else "done"
        case _:
            return TOPICS.get(type(message))
