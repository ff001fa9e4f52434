"""What each stored message answers to "why?", in one sentence. Pure.

The moments are those of storing, because they come from one clock, the server's.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

import msgspec

from schemas import node_events as n
from schemas import pool_events as p
from schemas import saga_log_entries as s
from schemas.messages import Invalid, Message, UnknownType
from services.bus.port import Stored
from services.cli.text.event_text import hours as hours
from services.cli.text.event_text import tell
from services.cli.text.node_timeline import decode

LEFT_TO_PEOPLE: Final = "left to people"

Topic = Literal["seen", "judged", "asked", "refused", "held back", "decided", "tried", "done"]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence of the answer."""

    at: datetime
    topic: Topic
    text: str


def lines_of(stored: Iterable[Stored], node: str) -> list[Line]:
    """Every message that answers something, in order; `node`: what breakers are told about."""
    begun: dict[tuple[str, str], datetime] = {}
    lines = []
    for each in sorted(stored, key=lambda one: one.time):
        message = decode(each)
        if isinstance(message, s.StepStarted | s.UndoStarted):
            begun[message.saga, message.step] = each.time
            continue
        said = _said(message, begun, each.time, node)
        if said is not None:
            lines.append(Line(at=each.time, topic=said[0], text=said[1]))
    return lines


def _said(
    message: Message | UnknownType | Invalid,
    begun: dict[tuple[str, str], datetime],
    at: datetime,
    node: str,
) -> tuple[Topic, str] | None:
    match message:
        case n.NodeEvent():
            return _node_said(message)
        case p.PoolEvent():
            return _pool_said(message, node)
        case s.StepEntry(saga=saga, step=step):
            took = (at - begun[saga, step]).total_seconds() if (saga, step) in begun else None
            return _step_said(message, span(took) if took is not None else "")
        case s.SagaEntry():
            return _entry_said(message)
        case _:
            return None


def _node_said(event: n.NodeEvent) -> tuple[Topic, str] | None:
    name, told = event.node, tell(event)
    match event:
        case n.Fault():
            return "seen", f"{name} reported {told.detail}"
        case n.Verdict():
            rule = f" by rule {event.rule}" if event.rule else ""
            policy = f" (policy {event.policy})" if event.policy else ""
            calls = f"; it calls for {event.action}" if event.action != "none" else ""
            return "judged", f"{name} is {event.status}{rule}{policy}: {event.reason}{calls}"
        case n.Lost() | n.Returned():
            return "seen", f"{name}: {told.detail}"
        case n.BootChecked() | n.Registered() | n.Preempting():
            return "seen", f"{name}: {told.what}, {told.detail}"
        case n.Held() | n.Released():
            return "asked", f"{name} {told.what} {told.detail}"
        case n.Admitted(spare=spare):
            where = "kept in reserve" if spare else "in service"
            return "done", f"{name} was admitted and is {where}"
        case n.Promoted():
            return "done", f"{name}: {told.detail}"
        case n.Remediated(outcome=outcome):
            return (
                "done" if outcome == "recovered" else "tried"
            ), f"{name}: {told.what}, {told.detail}"
        case n.Repaired():
            seconds = (event.restored_at - event.unhealthy_at).total_seconds()
            where = f"; evidence: navarch evidence {name}" if event.evidence else ""
            cost = f"{hours(event.lost_gpu_hours)} GPU-hours lost"
            return "done", f"{name} was out of service for {span(seconds)} ({cost}){where}"
        case _:
            # What sagas do to a node stands in their logs already.
            return None


def _pool_said(event: p.PoolEvent, node: str) -> tuple[Topic, str] | None:  # noqa: C901, PLR0912 - cases
    detail = tell(event).detail
    match event:
        case p.Scaled() | p.RequestAccepted():
            return "asked", f"accepted: {detail}"
        case p.ScaleRefused() | p.RequestRefused():
            return "refused", detail
        case p.BreakerOpened(waiting=waiting):
            waits = f"; {node} waits" if node and node in waiting else ""
            return "held back", f"breaker opened: {detail}{waits}"
        case p.BreakerHalfOpened():
            return "decided", f"breaker half-open: {detail}"
        case p.BreakerClosed():
            return "done", f"breaker closed: {detail}"
        case p.Incident(status=status):
            return ("held back" if status == "opened" else "done"), f"incident {status}: {detail}"
        case p.SagaOpened():
            return "decided", f"{detail} (saga {event.saga})"
        case p.WouldStart():
            return "held back", f"mode observe: it would begin {detail}"
        case p.NodeRefused():
            return "tried", f"not admitted: {detail}"
        case p.NodeReplaced():
            return "done", f"replaced {detail}"
        case p.SagaFailed() | p.SagaCancelled() | p.SagaIsStuck():
            return "tried", f"{tell(event).what}: {detail}"
        case p.OperatorNeeded():
            return "held back", f"{LEFT_TO_PEOPLE}: {detail}"
        case p.InstanceLeaked():
            return "tried", f"leaked: {detail}"
        case p.LaunchRefused():
            return "refused", f"not launched: {detail}"
        case p.LaunchWaiting():
            return "held back", f"nothing can be had for {detail}"
        case _:
            return None


def _step_said(entry: s.StepEntry, took: str) -> tuple[Topic, str] | None:
    after = f" after {took}" if took else ""
    match entry:
        case s.StepSucceeded():
            return "done", f"{entry.step}{f', in {took}' if took else ''} ({entry.saga})"
        case s.StepFailed():
            error = f" {entry.error}" if entry.error else ""
            return "tried", f"{entry.step} failed{after}:{error} {entry.reason} ({entry.saga})"
        case s.StepExpired():
            ended = f"was ended: {entry.reason}" if entry.reason else "was not done by its deadline"
            return "tried", f"{entry.step} {ended}{after} ({entry.saga})"
        case s.StepOverdue():
            return "tried", f"{entry.step} lasts longer than it should{after} ({entry.saga})"
        case s.UndoSucceeded():
            return "done", f"{entry.step} taken back{f', in {took}' if took else ''} ({entry.saga})"
        case s.UndoFailed():
            return "tried", f"{entry.step} could not be taken back: {entry.reason} ({entry.saga})"
        case _:
            return None


def _entry_said(entry: s.SagaEntry) -> tuple[Topic, str] | None:
    match entry:
        case s.SagaUnwinding():
            return "decided", f"unwind {entry.saga}, at {entry.step}: {entry.reason}"
        case s.SagaRetried():
            return "asked", f"retry {entry.saga}, at {entry.step}: {entry.reason}"
        case s.SagaDone():
            return "done", f"{entry.saga} is done"
        case s.SagaUnwound():
            return "done", f"{entry.saga} is unwound"
        case _:
            return None


def moment(at: datetime) -> str:
    """A moment as the person's own clock shows it."""
    return at.astimezone().strftime("%m-%d %H:%M:%S")


def span(seconds: float) -> str:
    """How long something took."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"  # noqa: PLR2004
