"""When a node was out of service, and of what. Pure: a node's stored facts in, outages out.

An outage begins when the node is judged unhealthy, lost or cordoned, whichever is first; it ends
when the node is uncordoned or gone, or gets well by itself before anything was done. Moments are
those of storing, because they come from one clock, the server's.
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
    """A time out of service."""

    since: datetime
    moment: datetime
    """When what led to it was seen: of the fault that decided, else `since`."""
    verdict: n.Verdict | None = None
    """The first that called the node unhealthy."""
    suspicion: n.Verdict | None = None
    """One that called it degraded, where nothing worse was said."""
    unhealthy: bool = False
    """As of the last verdict."""
    lost: bool = False
    silent: bool = False
    """Whether its heart stopped at any time of it."""
    cordoned: bool = False
    notice: str = ""
    """`preemption` or `maintenance`, where the cloud took the node."""
    ended_at: datetime | None = None
    end: str = ""
    """Id of the event that ended it."""

    @property
    def fault_signature(self) -> str:
        """What the node has: `xid-79`, `silence`, the rule's name, `operator-request`."""
        if self.silent and self.verdict is None:
            return SILENCE
        found = self.verdict or self.suspicion
        if self.verdict is None and self.notice:
            return self.notice
        if found is None:
            return OPERATOR_REQUEST
        if found.kind:
            return called(found.kind, found.code)
        return found.rule or found.status


def outages(facts: Iterable[tuple[datetime, Message]]) -> tuple[Outage, ...]:
    """Every outage in a node's facts (in order); the last of them may not have ended."""
    past: list[Outage] = []
    now: Outage | None = None
    degraded: n.Verdict | None = None
    faults: dict[str, datetime] = {}
    notices: dict[str, str] = {}
    for at, event in facts:
        match event:
            case n.Fault():
                faults[event.id] = at
            case n.Verdict(status=status):
                now = _judged(now, event, at, faults)
                if status != "unhealthy":
                    degraded = event if status == "degraded" else None
            case n.Lost() | n.Returned():
                now = _heard(now, at, lost=isinstance(event, n.Lost))
            case n.ProviderNotice(notice=name, kind=kind, withdrawn=withdrawn):
                notices[name] = "" if withdrawn else kind
            case n.Cordoned():
                seen = faults.get(degraded.fault, at) if degraded else at
                fell = now or Outage(since=at, moment=seen, suspicion=degraded)
                announced = max(notices.values(), default="")
                now = replace(fell, cordoned=True, notice=announced)
            case n.Uncordoned() | n.Terminated():
                if now is not None:
                    past.append(replace(now, ended_at=at, end=event.id))
                now = degraded = None
            case _:
                pass
        if now is not None and not (now.unhealthy or now.lost or now.cordoned):
            now = None
    return (*past, now) if now is not None else tuple(past)


def _judged(
    now: Outage | None, event: n.Verdict, at: datetime, faults: Mapping[str, datetime]
) -> Outage | None:
    """A verdict: only one that says unhealthy begins anything."""
    if event.status == "unhealthy":
        fell = now or Outage(since=at, moment=faults.get(event.fault, at))
        return replace(fell, verdict=fell.verdict or event, unhealthy=True)
    if now is not None and event.status == "degraded":
        return replace(now, suspicion=now.suspicion or event)
    return replace(now, unhealthy=False) if now else None


def _heard(now: Outage | None, at: datetime, *, lost: bool) -> Outage | None:
    """A heart that stops, or beats again."""
    if lost:
        return replace(now or Outage(since=at, moment=at), lost=True, silent=True)
    return replace(now, lost=False) if now else None
