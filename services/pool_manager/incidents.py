"""Which of a pool's sick nodes are one trouble, and how many of them may be acted on. Pure.

Many nodes that fall ill of the same thing at once (one XID, or silence) are one incident: a bad
driver, a dead switch, a job that breaks GPUs, a broker that was away. Replacing each would cost the
pool and mend nothing. So while an incident is open one of its nodes is replaced at a time; of
silent nodes none is, until it has shown that they do not return, and then one at a time.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from schemas.pool_events import Incident, PoolEvent
from schemas.records import NodeRecord, OpenIncident, PoolRecord
from schemas.settings import IncidentSpec
from services.pool_manager import notices

SILENCE: Final = "silence"
NAMED_MAX: Final = 50
"""Nodes that an incident's event names; their number stands beside them."""
WHOLE_POOL_NODES: Final = 3
"""From this size on, a pool that falls silent as a whole is an incident however small it is."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at a pool's incidents came to."""

    record: PoolRecord
    events: tuple[PoolEvent, ...] = ()


def sickness(node: NodeRecord) -> str:
    """What a node has, as incidents tell it apart: `xid-79`, `silence`; empty: nothing to compare.

    A silent node whose instance the provider says is gone is no riddle, and no incident's; nor is
    one that the cloud has announced to take.
    """
    if notices.taken(node):
        return ""
    if node.health == "unhealthy":
        if not node.health_kind:
            return ""
        return f"{node.health_kind}-{node.health_code}" if node.health_code else node.health_kind
    return SILENCE if node.lost and node.provider_says != "gone" else ""


def observe(record: PoolRecord, nodes: Iterable[NodeRecord], revision: int, now: datetime) -> Seen:
    """Open, and close, incidents by what the nodes have."""
    spec = record.spec.health.incident
    sick: dict[str, list[tuple[datetime, NodeRecord]]] = {}
    count = 0
    for node in nodes:
        count += 1
        what, since = sickness(node), fell_at(node)
        if what and since is not None and node.state in ("active", "leaving"):
            sick.setdefault(what, []).append((since, node))
    incidents: dict[str, OpenIncident] = {}
    events: list[PoolEvent] = []
    for what, each in record.incidents.items():
        over = what not in sick
        if over or (what != SILENCE and now >= until(record, each)):
            events.append(_event(record, each, what, (), revision, now, over=over))
        else:
            incidents[what] = each
    for what, members in sick.items():
        if what in incidents:
            continue
        members.sort(key=lambda member: (member[0], member[1].node))
        wanted = _threshold(spec, what, max(count, record.desired))
        wave = _wave([since for since, _ in members], spec, wanted, now)
        if wave is not None:
            opened = _opened(members, *wave)
            incidents[what] = opened
            named = tuple(node.node for _, node in members[wave[0] : wave[1]])
            events.append(_event(record, opened, what, named, revision, now, over=None))
    if incidents != record.incidents:
        record = msgspec.structs.replace(record, incidents=incidents)
    return Seen(record, tuple(events))


def fell_at(node: NodeRecord) -> datetime | None:
    """When a node fell ill of what it has."""
    return node.health_at if node.health == "unhealthy" else node.lost_at


def until(record: PoolRecord, incident: OpenIncident) -> datetime:
    """When an incident stops holding its nodes back."""
    return incident.since + timedelta(seconds=record.spec.health.incident.hold)


def room(record: PoolRecord, what: str, now: datetime) -> int | None:
    """How many more nodes with this may be replaced now; None: as many as the budget allows."""
    incident = record.incidents.get(what)
    if incident is None:
        return None
    if what == SILENCE and now < until(record, incident):
        return 0
    return max(0, 1 - sum(1 for each in record.open.values() if each.sickness == what))


def next_end(record: PoolRecord, now: datetime) -> datetime | None:
    """When the next incident stops holding its nodes back."""
    ends = (until(record, each) for each in record.incidents.values())
    return min((end for end in ends if end > now), default=None)


def told(incidents: Mapping[str, OpenIncident], whats: Iterable[str]) -> str:
    """The incidents that hold nodes back, in words."""
    parts = [
        f"{name(what)} on {incidents[what].nodes} nodes"
        for what in sorted(set(whats))
        if what in incidents
    ]
    return f"; one incident: {', '.join(parts)}" if parts else ""


def name(what: str) -> str:
    """A sickness in words: `XID 79`, `silence`."""
    kind, _, code = what.partition("-")
    shown = kind.upper() if kind in ("xid", "sxid") else kind.replace("_", " ")
    return f"{shown} {code}".strip()


# --- parts ---------------------------------------------------------------------------------------


def _threshold(spec: IncidentSpec, what: str, size: int) -> int:
    """So many nodes within the window are one trouble."""
    wanted = max(spec.nodes, math.ceil(size * spec.percent / 100 - 1e-9))
    return min(wanted, size) if what == SILENCE and size >= WHOLE_POOL_NODES else wanted


def _wave(
    times: list[datetime], spec: IncidentSpec, wanted: int, now: datetime
) -> tuple[int, int] | None:
    """The first run of `wanted` or more nodes within the window that is not too old to matter."""
    window = timedelta(seconds=spec.window)
    hold = timedelta(seconds=spec.hold)
    end = 0
    for start, first in enumerate(times):
        end = max(end, start)
        while end < len(times) and times[end] - first <= window:
            end += 1
        if end - start >= wanted and now < first + hold:
            return start, end
    return None


def _opened(members: list[tuple[datetime, NodeRecord]], start: int, end: int) -> OpenIncident:
    node = members[start][1]
    return OpenIncident(
        since=members[start][0],
        last=members[end - 1][0],
        nodes=end - start,
        kind=node.health_kind if node.health == "unhealthy" else SILENCE,
        code=node.health_code if node.health == "unhealthy" else 0,
        fault=node.health_fault if node.health == "unhealthy" else "",
    )


def _event(
    record: PoolRecord,
    incident: OpenIncident,
    what: str,
    named: tuple[str, ...],
    revision: int,
    now: datetime,
    *,
    over: bool | None,
) -> Incident:
    """Opened (`over` is None), or closed: over, or too old to hold nodes back."""
    ident = f"{what}-{incident.since.timestamp():.0f}"
    status: Literal["opened", "closed"] = "opened" if over is None else "closed"
    if over is None:
        held = "none is" if what == SILENCE else "one is"
        reason = f"{incident.nodes} nodes with {name(what)} at once: {held} replaced at a time"
    elif over:
        reason = "no node has it any more"
    else:
        reason = "it is held back no longer; the budget alone decides"
    return Incident(
        id=f"incident-{record.name}-{ident}-{status}-{revision}",
        time=now,
        cause=incident.fault,
        pool=record.name,
        incident=ident,
        status=status,
        kind=incident.kind,
        code=incident.code,
        nodes=incident.nodes,
        named=named[:NAMED_MAX],
        first=incident.since,
        last=incident.last,
        reason=reason,
    )
