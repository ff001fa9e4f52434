"""When a node was out of service, why, and how it ended. Pure: its stored events in, outages out.

An outage begins when the node becomes unhealthy, lost or cordoned, whichever is first; it ends
when the node is uncordoned or terminated, or recovers before it was cordoned. Times are those at
which the server stored the events, so that all come from one clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from schemas import evidence_bundles as e
from schemas import node_events as n
from schemas import pool_events as p
from schemas import saga_log_entries as s
from schemas.evidence_bundles import OPERATOR_REQUEST
from schemas.fault_signature import RACK, SILENCE, called
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import Message
from schemas.node_records import NodeRecord
from schemas.stored_messages import decode_stored
from services.bus.port import Stored

IN_SERVICE_STEPS: Final = frozenset({"promote", "admit"})
"""Steps of a replacement that put a node into service."""
OUTCOMES: Final[Mapping[str, e.Outcome]] = {"reset-gpu": "reset", "reboot": "rebooted"}
"""Kind of saga -> the outcome if it returns the node to service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A time in which the node was out of service."""

    since: datetime
    moment: datetime
    """When its cause was observed: the time of the decisive fault, else `since`."""
    verdict: n.Verdict | None = None
    """The first unhealthy verdict."""
    degraded: n.Verdict | None = None
    """A degraded verdict, for an outage without an unhealthy one."""
    unhealthy: bool = False
    """As of the last verdict."""
    lost: bool = False
    silent: bool = False
    """Whether its heartbeats stopped before it was cordoned: on a node that was already out of
    service by request, silence is an effect of what the operator does there."""
    cordoned: bool = False
    notice: str = ""
    """`preemption` or `maintenance`, if the provider announced one."""
    ended_at: datetime | None = None
    end: str = ""
    """Id of the event that ended it."""

    @property
    def fault_signature(self) -> str:
        """Return the cause: `xid-79`, `silence`, `preemption`, a rule or `operator-request`."""
        if self.silent and self.verdict is None:
            return SILENCE
        found = self.verdict or self.degraded
        if self.verdict is None and self.notice:
            return self.notice
        if found is None:
            return OPERATOR_REQUEST
        if found.kind:
            return called(found.kind, found.code, drill=bool(found.drill))
        return found.rule or found.status


def outages(events: Iterable[tuple[datetime, Message]]) -> tuple[Outage, ...]:
    """Every outage in a node's events (in order); the last one may not have ended."""
    past: list[Outage] = []
    now: Outage | None = None
    degraded: n.Verdict | None = None
    faults: dict[str, datetime] = {}
    notices: dict[str, str] = {}
    for at, event in events:
        match event:
            case n.Fault():
                faults[event.id] = at
            case n.Verdict(status=status):
                now = _apply_verdict(now, event, at, faults)
                if status != "unhealthy":
                    degraded = event if status == "degraded" else None
            case n.Lost() | n.Returned():
                now = _apply_silence(now, at, lost=isinstance(event, n.Lost))
            case n.ProviderNotice(notice=name, kind=kind, withdrawn=withdrawn):
                notices[name] = "" if withdrawn else kind
            case n.Cordoned():
                moment = faults.get(degraded.fault, at) if degraded else at
                outage = now or Outage(since=at, moment=moment, degraded=degraded)
                announced = max(notices.values(), default="")
                now = replace(outage, cordoned=True, notice=announced)
            case n.Uncordoned() | n.Terminated():
                if now is not None:
                    past.append(replace(now, ended_at=at, end=event.id))
                now = degraded = None
            case _:
                pass
        if now is not None and not (now.unhealthy or now.lost or now.cordoned):
            now = None
    return (*past, now) if now is not None else tuple(past)


def _apply_verdict(
    now: Outage | None, event: n.Verdict, at: datetime, faults: Mapping[str, datetime]
) -> Outage | None:
    """The open outage after a verdict; only an unhealthy verdict begins one."""
    if event.status == "unhealthy":
        outage = now or Outage(since=at, moment=faults.get(event.fault, at))
        known = outage.verdict
        if known is None or (known.drill and not event.drill):
            known = event
        return replace(outage, verdict=known, unhealthy=True)
    if now is not None and event.status == "degraded":
        return replace(now, degraded=now.degraded or event)
    return replace(now, unhealthy=False) if now else None


def _apply_silence(now: Outage | None, at: datetime, *, lost: bool) -> Outage | None:
    """The open outage after heartbeats stopped (`lost`) or returned."""
    if lost:
        outage = now or Outage(since=at, moment=at)
        return replace(outage, lost=True, silent=outage.silent or not outage.cordoned)
    return replace(now, lost=False) if now else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    """Holds what the buckets and streams hold about a node now."""

    pool: str
    node: str
    record: NodeRecord | None = None
    health: HealthRecord | None = None
    instance: InstanceRecord | None = None
    samples: tuple[n.Telemetry, ...] = ()
    stored: tuple[Stored, ...] = ()
    """Its events, its pool's events about it, and the entries of its sagas."""

    def messages(self) -> list[tuple[Stored, Message]]:
        """Return the readable messages, in the order of their storing."""
        ordered = sorted(self.stored, key=lambda one: one.time)
        found = ((each, decode_stored(each)) for each in ordered)
        return [(each, message) for each, message in found if isinstance(message, Message)]

    def outages(self) -> tuple[Outage, ...]:
        """Return every outage of the node, in order."""
        return outages(
            (each.time, message)
            for each, message in self.messages()
            if isinstance(message, n.NodeEvent) and message.node == self.node
        )

    def last_outage(self) -> Outage | None:
        """The newest outage, ended or not."""
        return next(reversed(self.outages()), None)

    def open_outage(self) -> Outage | None:
        """The newest outage, if it has not ended."""
        last = self.last_outage()
        return last if last and last.ended_at is None else None


@dataclass(frozen=True, slots=True)
class Ending:
    """Describes how an outage ended."""

    outage: Outage
    outcome: e.Outcome
    saga: str = ""
    new_node: str = ""
    restored_at: datetime | None = None


def outage_ending(history: NodeHistory, event: Message, at: datetime) -> Ending | None:
    """The ending that an event, stored `at`, gives to an outage; None if none has ended."""
    messages = history.messages()
    match event:
        case p.NodeReplaced(saga=saga, new_node=new, promoted=spare):
            outage = history.last_outage() or Outage(since=at, moment=at)
            restored = _in_service_at(messages, saga) or at
            return Ending(outage, "replaced", saga, spare or new, max(restored, outage.since))
        case n.Uncordoned(id=id_, saga=saga):
            ended = _ended_by(history, id_)
            started = _saga_start(messages, saga)
            outcome = OUTCOMES.get(started.kind, "uncordoned") if started else "uncordoned"
            return Ending(ended, outcome, saga, "", at) if ended else None
        case n.Terminated(id=id_, saga=saga):
            ended = _ended_by(history, id_)
            started = _saga_start(messages, saga)
            # The end of a replacement, or its failure, has an event of its own, unless it left
            # with its rack; the removal of a healthy node is no outage.
            kind = started.kind if started is not None else ""
            with_rack = started is not None and started.params.fault_signature == RACK
            removed = kind == "scale-down" or with_rack
            surplus = removed and ended is not None and not _had_fault(ended)
            if ended is None or (kind == "replace" and not with_rack) or surplus:
                return None
            return Ending(ended, "removed", saga, "", at)
        case p.SagaFailed(saga=saga) | p.SagaCancelled(saga=saga):
            ended = _ended_by(history, f"terminated-{saga}")
            if ended is None:
                return None
            started, restored_at = _saga_start(messages, saga), _in_service_at(messages, saga)
            if restored_at is None or started is None or not started.params.promotes:
                return Ending(ended, "removed", saga, "", at)
            # A spare replaced it; only the provisioning of the next spare failed.
            spare = started.params.promotes
            return Ending(ended, "replaced", saga, spare, max(restored_at, ended.since))
        case _:
            return None


def _in_service_at(messages: Iterable[tuple[Stored, Message]], saga: str) -> datetime | None:
    """When the first node that a saga brings, new or spare, was in service."""
    times = (
        each.time
        for each, message in messages
        if isinstance(message, s.StepSucceeded)
        and message.saga == saga
        and message.step in IN_SERVICE_STEPS
    )
    return min(times, default=None)


def _saga_start(messages: Iterable[tuple[Stored, Message]], saga: str) -> s.SagaStarted | None:
    """The first entry of a saga's log; None if it is not stored."""
    started = (message for _, message in messages if isinstance(message, s.SagaStarted))
    return next((each for each in started if each.saga == saga), None)


def _ended_by(history: NodeHistory, event: str) -> Outage | None:
    return next((each for each in history.outages() if each.end == event), None)


def open_ending(history: NodeHistory) -> Ending | None:
    """The node's open outage as of now; None if there is none."""
    outage = history.open_outage()
    return Ending(outage, "open") if outage else None


def recovered_ending(capture: e.EvidenceCapture) -> Ending:
    """The end of a captured outage from which the node recovered without a remediation."""
    since = capture.unhealthy_at or capture.moment
    return Ending(Outage(since=since, moment=capture.moment), "recovered")


def is_stored(ending: Ending) -> bool:
    """Return whether a bundle is stored; not if a node was only cordoned and uncordoned."""
    return ending.outcome == "replaced" or _had_fault(ending.outage)


def _had_fault(outage: Outage) -> bool:
    return outage.fault_signature != e.OPERATOR_REQUEST
