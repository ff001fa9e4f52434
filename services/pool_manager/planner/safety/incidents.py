"""Finds which unhealthy nodes are one incident, and for how long that holds them back. Pure.

Many nodes that fall unhealthy of one cause at once (`waves`) are one incident: a bad driver, a dead
switch, a job that breaks GPUs, a broker that was away. Replacing each would cost the pool and
repair nothing. The breaker is open for it until no node has it any more, or an operator closes it.
After the hold those of its nodes are remediated, one at a time, of which more is known than the
fault that they share: a failed diagnostic, what NVML reports, or the provider's word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from schemas.breaker_state import OpenIncident
from schemas.duration import format_duration
from schemas.fault_signature import SILENCE, in_words, shared
from schemas.health_records import HealthRecord
from schemas.node_records import NodeRecord
from schemas.pool_events import INCIDENT_NAMED_MAX, Incident, PoolEvent
from schemas.pool_records import PoolRecord
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.safety import rack_faults, slow_waves
from services.pool_manager.planner.safety.fault_evidence import is_confirmed
from services.pool_manager.planner.safety.fault_waves import (
    FaultWave,
    UnhealthyNode,
    belongs,
    fault_signature,
    find,
    find_unhealthy,
    unhealthy_since,
)

OVER: Final = "no node has it any more"
LET_GO: Final = "an operator closed the breaker: the budget alone decides"


@dataclass(frozen=True, slots=True)
class ObservedIncidents:
    """Holds what a look at a pool's incidents came to."""

    record: PoolRecord
    events: tuple[PoolEvent, ...] = ()


def observe(
    record: PoolRecord,
    nodes: Nodes,
    health: Mapping[str, HealthRecord],
    revision: int,
    now: datetime,
) -> ObservedIncidents:
    """Open, and close, incidents by what the nodes have."""
    unhealthy = find_unhealthy(nodes)
    # A fault of a rack's fabric is the rack's, and no node's.
    of_racks = rack_faults.of_fabric(record, nodes)
    incidents: dict[str, OpenIncident] = {}
    events: list[PoolEvent] = []
    for what, each in record.incidents.items():
        some = (*unhealthy, *of_racks) if each.as_unit else unhealthy
        kept = _kept(record, what, each, some, now)
        if each.hold_ended_at is None and (kept is None or kept.hold_ended_at is not None):
            reason = OVER if kept is None else LET_GO
            events.append(_event(record, each, what, "closed", reason, revision, now))
        if kept is not None:
            incidents[what] = _with_others(kept, nodes, now)
    racks_own = {each.node.node for each in of_racks}
    others = tuple(each for each in unhealthy if each.node.node not in racks_own)
    waves = find(record.spec.health.incident, nodes, others, incidents, now)
    waves += rack_faults.find(record, nodes, of_racks, incidents, now)
    of_waves = {wave.what: _opened(wave, now) for wave in waves}
    known = msgspec.structs.replace(record, incidents=incidents | of_waves)
    slow = slow_waves.find(known, len(nodes), unhealthy, health, now)
    for wave in (*waves, *slow):
        opened = _opened(wave, now)
        opened = incidents[wave.what] = _with_others(opened, nodes, opened.since)
        named = tuple(each.node.node for each in wave.members)
        reason = _opened_reason(record, wave, opened)
        events.append(_event(record, opened, wave.what, "opened", reason, revision, now, named))
    if incidents != record.incidents:
        record = msgspec.structs.replace(record, incidents=incidents)
    return ObservedIncidents(record, tuple(events))


def until(record: PoolRecord, incident: OpenIncident) -> datetime:
    """Return when an incident stops holding its nodes back."""
    return incident.since + timedelta(seconds=record.spec.health.incident.hold)


def holding(record: PoolRecord) -> dict[str, OpenIncident]:
    """The incidents for which the breaker is open: until none of their nodes is unhealthy any more.

    That a replacement comes up says nothing about the node that it replaced.
    """
    return {
        what: each
        for what, each in record.incidents.items()
        if not (each.released or each.as_unit) and each.hold_ended_at is None
    }


def may_remediate(
    record: PoolRecord, node: NodeRecord, health: HealthRecord | None, now: datetime
) -> bool:
    """Return whether a node may be remediated though incidents are open.

    Once their hold has passed, one that belongs to none of them may, and one whose own evidence
    confirms its fault.
    """
    if any(now < until(record, each) for each in holding(record).values()):
        return False
    return all(_may_be_probed(node, each) for each in _unconfirmed(record, node, health).values())


def may_begin(
    record: PoolRecord, node: NodeRecord, health: HealthRecord | None, now: datetime
) -> bool:
    """Return whether a node's repair may begin: of silent ones one for each hold of their incident.

    Their provider says that their instances run, and they may have work: a person has time to say
    more before the next.
    """
    if not may_remediate(record, node, health, now):
        return False
    waits = (_next_probe(record, each) for each in _unconfirmed(record, node, health).values())
    return all(at is not None and now >= at for at in waits)


def probed(
    record: PoolRecord, node: NodeRecord, health: HealthRecord | None, now: datetime
) -> PoolRecord:
    """Return the record once a node's repair begins."""
    changed = {
        what: msgspec.structs.replace(each, probed_at=now)
        for what, each in _unconfirmed(record, node, health).items()
    }
    incidents = {**record.incidents, **changed}
    return msgspec.structs.replace(record, incidents=incidents) if changed else record


def _unconfirmed(
    record: PoolRecord, node: NodeRecord, health: HealthRecord | None
) -> dict[str, OpenIncident]:
    """Return the incidents that a node belongs to without evidence of its own."""
    what, since = fault_signature(node), unhealthy_since(node)
    if since is None or is_confirmed(node, health):
        return {}
    unhealthy = UnhealthyNode(node=node, what=what, since=since)
    return {key: each for key, each in holding(record).items() if belongs(unhealthy, key, each)}


def _may_be_probed(node: NodeRecord, incident: OpenIncident) -> bool:
    """Whether a repair alone shows how a silent node is: its provider says that it runs.

    Where none is heard the cause is a link or a release of the agent, and no repair would help.
    """
    silent = fault_signature(node) == SILENCE and node.provider_state == "present"
    return silent and incident.heard_since is not None


def _with_others(incident: OpenIncident, nodes: Nodes, now: datetime) -> OpenIncident:
    """Return a silence with since when others that have the same in common are heard."""
    if incident.kind != SILENCE:
        return incident
    alike = [
        node
        for node in nodes
        if node.state == "active"
        if incident.scope == "pool" or shared(node, incident.scope) == incident.within
    ]
    silent, beats = ({node.region for node in alike if node.lost is lost} for lost in (True, False))
    heard = silent <= beats
    if heard is (incident.heard_since is not None):
        return incident
    return msgspec.structs.replace(incident, heard_since=now if heard else None)


def _next_probe(record: PoolRecord, incident: OpenIncident) -> datetime | None:
    """Return from when a silent node may be repaired; None: while no other is heard.

    After a cut the others are heard first, and the rest need time to connect again.
    """
    if incident.heard_since is None:
        return None
    last = max(incident.heard_since, incident.probed_at or incident.heard_since)
    return last + timedelta(seconds=record.spec.health.incident.hold)


def released(record: PoolRecord) -> PoolRecord:
    """The record with every incident let go: a person has decided."""
    incidents = {
        what: msgspec.structs.replace(each, released=not each.as_unit)
        for what, each in record.incidents.items()
    }
    return msgspec.structs.replace(record, incidents=incidents, recent_remediations={})


def next_end(record: PoolRecord, now: datetime) -> datetime | None:
    """Return when the next incident stops holding its nodes back."""
    ends = (
        at
        for each in record.incidents.values()
        if each.hold_ended_at is None and not each.as_unit
        for at in (until(record, each), _next_probe(record, each))
    )
    return min((end for end in ends if end is not None and end > now), default=None)


def describe_incident(what: str, incident: OpenIncident) -> str:
    """Return an incident in words: `300 nodes with XID 79`, `6 nodes in rack r12`."""
    match incident.scope:
        case _ if incident.as_unit:
            shared = f"of rack {incident.within} with faults of its fabric"
        case "pool":
            shared = f"with {in_words(what)}"
        case "rack" | "zone":
            shared = f"in {incident.scope} {incident.within}"
        case "job":
            shared = f"with work of job {incident.within}"
        case "driver":
            shared = f"with driver version {incident.within}"
        case "provider":
            shared = f"at provider {incident.within}"
    return f"{incident.nodes} nodes {shared}"


# --- parts ---------------------------------------------------------------------------------------


def _kept(
    record: PoolRecord,
    what: str,
    each: OpenIncident,
    unhealthy: tuple[UnhealthyNode, ...],
    now: datetime,
) -> OpenIncident | None:
    """The incident as it goes on; None: it is over."""
    since = [one.since for one in unhealthy if belongs(one, what, each)]
    if each.hold_ended_at is not None:
        return each if any(moment <= each.hold_ended_at for moment in since) else None
    if not since:
        return None
    each = _counted(each, since)
    if each.released and now >= until(record, each):
        return msgspec.structs.replace(each, hold_ended_at=now)
    return each


def _counted(each: OpenIncident, since: Sequence[datetime]) -> OpenIncident:
    """The incident with the nodes that have joined it: verdicts come one after the other.

    Those that were judged before the last one are found while all of them are unhealthy.
    """
    last = each.joined_at or each.last
    later = [moment for moment in since if moment > last]
    nodes = max(each.nodes + len(later), len(since))
    if nodes == each.nodes:
        return each
    return msgspec.structs.replace(each, nodes=nodes, joined_at=max([last, *later]))


def _opened(wave: FaultWave, now: datetime) -> OpenIncident:
    node = wave.members[0].node
    unhealthy = node.health == "unhealthy"
    since = now if wave.earlier else wave.members[0].since
    return OpenIncident(
        since=since,
        last=max(since, wave.members[-1].since),
        nodes=len(wave.members) + wave.earlier,
        kind=node.health_kind if unhealthy else SILENCE,
        code=node.health_code if unhealthy else 0,
        fault=node.health_fault if unhealthy else "",
        scope=wave.scope,
        within=wave.within,
        as_unit=wave.as_unit,
    )


def _opened_reason(record: PoolRecord, wave: FaultWave, opened: OpenIncident) -> str:
    nodes = describe_incident(wave.what, opened)
    if wave.as_unit:
        return f"{nodes} at once have one cause: the rack is replaced as a whole"
    how = "at once"
    if wave.earlier:
        window = format_duration(record.spec.budget.window)
        repaired = wave.earlier if wave.earlier > 1 else "one"
        how = f"within {window}, {repaired} of them repaired already,"
    hold = format_duration(record.spec.health.incident.hold)
    return (
        f"{nodes} {how} have one cause: none is repaired for {hold}, "
        "and then only those that show evidence of their own, one at a time. "
        f"To repair all: navarch breaker close {record.name} --reason TEXT"
    )


def _event(
    record: PoolRecord,
    incident: OpenIncident,
    what: str,
    status: Literal["opened", "closed"],
    reason: str,
    revision: int,
    now: datetime,
    named: tuple[str, ...] = (),
) -> Incident:
    ident = f"{what}-{incident.since.timestamp():.0f}"
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
        named=named[:INCIDENT_NAMED_MAX],
        first=incident.since,
        last=incident.last,
        reason=reason,
        scope=incident.scope,
        within=incident.within,
    )
