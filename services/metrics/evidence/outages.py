"""When a node was out of service, and why. Pure: a node's stored events in, outages out.

An outage begins when the node becomes unhealthy, lost or cordoned, whichever is first; it ends
when the node is uncordoned or terminated, or recovers before it was cordoned. Times are those at
which the server stored the events, so that all come from one clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from schemas import node_events as n
from schemas.evidence_bundles import OPERATOR_REQUEST
from schemas.fault_signature import SILENCE, called
from schemas.messages import Message


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
        """The cause: `xid-79`, `silence`, `preemption`, a rule's name or `operator-request`."""
        if self.silent and self.verdict is None:
            return SILENCE
        found = self.verdict or self.degraded
        if self.verdict is None and self.notice:
            return self.notice
        if found is None:
            return OPERATOR_REQUEST
        if found.kind:
            return called(found.kind, found.code)
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
        return replace(outage, verdict=outage.verdict or event, unhealthy=True)
    if now is not None and event.status == "degraded":
        return replace(now, degraded=now.degraded or event)
    return replace(now, unhealthy=False) if now else None


def _apply_silence(now: Outage | None, at: datetime, *, lost: bool) -> Outage | None:
    """The open outage after heartbeats stopped (`lost`) or returned."""
    if lost:
        outage = now or Outage(since=at, moment=at)
        return replace(outage, lost=True, silent=outage.silent or not outage.cordoned)
    return replace(now, lost=False) if now else None
