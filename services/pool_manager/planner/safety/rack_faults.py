"""Faults of the NVLink fabric, where the nodes of a rack share one: they are the rack's. Pure.

A switch or a fabric manager that fails is seen by several nodes of its rack within moments. So the
first of them waits for `incident.window`: until then it shows whether it is alone. Two nodes make
it the rack's fault, which is one incident and one decision, if one of them at least is unhealthy:
how grave a fault is, the health policy says. Such faults in many racks at once are a
wave like any other: a bad driver, not many broken racks.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from schemas.breaker_state import OpenIncident
from schemas.fault_signature import RACKS, is_of_fabric
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import cloud_notices, rack_units
from services.pool_manager.planner.node_counts import Nodes, is_down, is_gone
from services.pool_manager.planner.safety.fault_waves import (
    FaultWave,
    UnhealthyNode,
    fault_signature,
    first_run,
)
from services.primitives.common_causes import nodes_needed

RACK_FAULT_NODES: Final = 2
"""So many nodes of one rack make a fault of the fabric the rack's."""
RACK_WAVE_MIN: Final = 2
"""So many racks at least make a wave."""


def has_fabric_fault(record: PoolRecord, node: NodeRecord) -> bool:
    """Return whether what makes a node unhealthy may be its rack's."""
    return node.health == "unhealthy" and _shows_fabric_fault(record, node)


def of_fabric(record: PoolRecord, nodes: Nodes) -> tuple[UnhealthyNode, ...]:
    """The nodes whose fault may be their rack's, degraded ones too; the first first."""
    if not rack_units.is_by_rack(record):
        return ()
    found = [
        UnhealthyNode(node=each, what=fault_signature(each), since=each.health_at)
        for each in nodes.needs_attention
        if each.state in ("active", "leaving")
        and each.health_at is not None
        and _shows_fabric_fault(record, each)
    ]
    return tuple(sorted(found, key=lambda each: (each.since, each.node.node)))


def incident_of(record: PoolRecord, rack: str) -> OpenIncident | None:
    """The open incident for which a rack is replaced as a whole."""
    return record.incidents.get(incident_key(rack)) if rack else None


def decided_at(record: PoolRecord, node: NodeRecord) -> datetime | None:
    """Return when it is decided whether a node's fault is its rack's; None: that is no question.

    Where the rack has an incident, it is one for each of its nodes, whatever they have by now.
    """
    incident = incident_of(record, node.rack)
    since = incident.since if incident is not None else node.health_at
    if since is None or (incident is None and not has_fabric_fault(record, node)):
        return None
    return since + timedelta(seconds=record.spec.health.incident.window)


def find(
    record: PoolRecord,
    nodes: Nodes,
    of_racks: tuple[UnhealthyNode, ...],
    known: Mapping[str, OpenIncident],
    now: datetime,
) -> tuple[FaultWave, ...]:
    """The incidents of racks that are not known yet, and the wave of many racks at once."""
    units: dict[str, list[UnhealthyNode]] = {}
    there = nodes.racks
    for each in of_racks:
        units.setdefault(rack_units.unit_of(record, each.node, there), []).append(each)
    found = [
        FaultWave(what=incident_key(rack), scope="rack", within=rack, members=at_once, as_unit=True)
        for members in units.values()
        if rack_units.is_rack(record, rack := members[0].node.rack, there)
        and incident_key(rack) not in known
        and (at_once := _at_once(record, members))
    ]
    wave = _of_many_racks(record, nodes, units, known, now)
    return (*wave, *found)


# --- parts ---------------------------------------------------------------------------------------


def _shows_fabric_fault(record: PoolRecord, node: NodeRecord) -> bool:
    return (
        rack_units.is_by_rack(record)
        and not node.health_drill
        and node.health in ("unhealthy", "degraded")
        and is_of_fabric(node.health_kind, node.health_code)
        and not (is_gone(node) or is_down(node) or cloud_notices.taken_reason(node))
    )


def incident_key(rack: str) -> str:
    """Return the key of a rack's incident in its pool's record."""
    return f"fabric-{rack}"


def _at_once(record: PoolRecord, members: list[UnhealthyNode]) -> tuple[UnhealthyNode, ...]:
    """The first nodes of a rack within the window; none where each was alone in it."""
    window = timedelta(seconds=record.spec.health.incident.window)
    for place, first in enumerate(members):
        found = tuple(each for each in members[place:] if each.since - first.since <= window)
        grave = any(each.node.health == "unhealthy" for each in found)
        if grave and len(found) >= RACK_FAULT_NODES:
            return found
    return ()


def _of_many_racks(
    record: PoolRecord,
    nodes: Nodes,
    units: Mapping[str, list[UnhealthyNode]],
    known: Mapping[str, OpenIncident],
    now: datetime,
) -> tuple[FaultWave, ...]:
    """The wave that faults in as many racks at once are as would be one in as many nodes."""
    if RACKS in known and known[RACKS].hold_ended_at is None:
        return ()
    settled = known[RACKS].hold_ended_at if RACKS in known else None
    spec = record.spec.health.incident
    racks = rack_units.units(record, len(nodes))
    wanted = max(RACK_WAVE_MIN, nodes_needed(spec, racks))
    firsts = [
        first
        for members in units.values()
        for first in [each for each in members if each.node.health == "unhealthy"][:1]
        if settled is None or first.since > settled
    ]
    firsts.sort(key=lambda each: (each.since, each.node.node))
    if not (run := first_run(tuple(firsts), spec, wanted, now)):
        return ()
    since, until = run[0].since, run[0].since + timedelta(seconds=spec.window)
    members = [
        each
        for found in units.values()
        for each in found
        if since <= each.since <= until and each.node.health == "unhealthy"
    ]
    members.sort(key=lambda each: (each.since, each.node.node))
    return (FaultWave(what=RACKS, scope="pool", within="", members=tuple(members)),)
