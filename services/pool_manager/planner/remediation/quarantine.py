"""Decides which unhealthy nodes, or faulty GPUs, are cordoned, and which are released. Pure.

A quarantine disturbs no work: it only keeps new work off a node. So neither breaker, budget, freeze
window nor missing capacity delays it. What bounds it is a cap of its own, of the pool and of the
fleet: verdicts that are wrong on many nodes at once take no more than that. The nodes of an open
incident that show no evidence of their own get half of the pool's cap, rounded up, so that a node
that fails beside a false wave is quarantined all the same where the cap is two or more.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from schemas.enums import SagaKind
from schemas.node_records import NodeRecord
from schemas.pool_events import QuarantineFull
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import cloud_notices, rack_units
from services.pool_manager.planner.disruption_budget import ALL, limit, quarantine_cap
from services.pool_manager.planner.gates import gate_table
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.node_counts import (
    busy,
    is_gone,
    units_quarantined,
)
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot, earlier, to_come
from services.pool_manager.planner.remediation import (
    flapping_nodes,
    gpu_cordons,
    quarantine_recheck,
    recovered_nodes,
    remedy_selection,
)
from services.pool_manager.planner.remediation.quarantine_recheck import is_unconfirmed
from services.pool_manager.planner.safety import cordon_floor, incidents
from services.pool_manager.planner.sizing import spares
from services.pool_manager.planner.sizing.open_sagas import begin, room_for_sagas, with_open

AGAIN_SECONDS: Final = 60.0
"""After a cordon or uncordon that failed, before it is repeated."""
TEXT_NAMED_MAX: Final = 10
WAITING_NAMED_MAX: Final = 50
"""Nodes that an event names."""
RESERVED_AGAIN: Final = "its promotion has failed or was not confirmed: it stays in reserve"


def under_way(record: PoolRecord) -> bool:
    """Return whether a quarantine is being set: its node is unhealthy, and waits for its repair."""
    return any(each.kind == "quarantine" for each in record.open.values())


def quarantine(snapshot: PoolSnapshot, decided: PoolPlan, now: datetime) -> PoolPlan:
    """Release the nodes that are healthy again, and cordon unhealthy ones up to the cap."""
    decided = _recheck(snapshot, _release(snapshot, decided, now), now)
    decided = _reserve(snapshot, decided, now)
    found = _candidates(snapshot, decided.record, now)
    waiting: list[str] = []
    for node, unconfirmed in found:
        if not room_for_sagas(decided.record):
            break
        counted = units_quarantined(decided.record, snapshot.nodes)
        full = _is_full(snapshot, decided.record, len(counted), unconfirmed=unconfirmed)
        unit = rack_units.unit_of(decided.record, node, snapshot.nodes.racks)
        # One with a cordoned GPU counts already, as does another node of its rack.
        full = full and unit not in counted
        whole = node.health == "unhealthy"
        if full or (whole and cordon_floor.refuses(decided.record, snapshot.nodes, node)):
            waiting.append(node.node)
            continue
        reason = node.health_reason or node.health
        if node.health == "unhealthy":
            reason += "; it gets no new work until its repair begins"
            decided = _begun(snapshot, decided, "quarantine", node, reason, now)
        elif flapping_nodes.flaps(node, decided.record, now):
            events = (*decided.events, *flapping_nodes.alerted(node, decided.record, now))
            reason = flapping_nodes.reason(node, decided.record, now)
            decided = _begun(snapshot, decided, "quarantine", node, reason, now)
            decided = replace(decided, events=events)
        else:
            decided = _begun(snapshot, decided, "cordon-gpus", node, reason, now)
    repeated = earlier(decided.wake_at, _next_repeat(snapshot, now))
    repeated = earlier(repeated, quarantine_recheck.next_test(snapshot, decided.record, now))
    return _published(snapshot, replace(decided, wake_at=repeated), waiting, now)


def pool_limit(record: PoolRecord, *, unconfirmed: bool = False) -> int:
    """Nodes of a pool that may be quarantined; of an incident's unconfirmed nodes half as many."""
    desired = rack_units.units(record, record.desired)
    cap = quarantine_cap(record.spec.budget)
    allowed = limit(cap, desired)
    return (allowed + 1) // 2 if unconfirmed and cap != ALL else allowed


def _is_full(snapshot: PoolSnapshot, record: PoolRecord, count: int, *, unconfirmed: bool) -> bool:
    if count >= pool_limit(record, unconfirmed=unconfirmed):
        return True
    others = snapshot.others
    if others is None:
        return False
    return others.quarantined + count >= others.quarantine_limit(
        rack_units.units(record, record.desired)
    )


def _candidates(
    snapshot: PoolSnapshot, record: PoolRecord, now: datetime
) -> list[tuple[NodeRecord, bool]]:
    """Unhealthy nodes that take work, those of an incident last, and whether it is one of those."""
    if not pool_limit(record):
        return []
    taken, held = busy(record), incidents.holding(record)
    found = [
        (node, is_unconfirmed(snapshot, held, node))
        for node in snapshot.nodes.needs_attention
        if node.state == "active"
        and (
            node.health == "unhealthy"
            or gpu_cordons.is_wanted(node)
            or (not node.lost and flapping_nodes.flaps(node, record, now))
        )
        and node.node not in taken
        and _takes_work(node, now)
        and not is_gone(node)
        and gate_table.first(Proposal("quarantine", record, now, node)) is None
        # Where operators have reserved every decision about the node, this is one.
        and (
            node.health == "degraded"
            or remedy_selection.choose(snapshot, node, now).remedy != "alert"
        )
    ]
    return sorted(found, key=lambda each: (each[1], each[0].health_at or now, each[0].node))


def _takes_work(node: NodeRecord, now: datetime) -> bool:
    if node.spare or (node.workload is not None and node.workload.cordoned):
        return False
    if node.quarantine is not None and node.quarantine.failed_at is not None:
        return now >= _repeat_at(node.quarantine.failed_at)
    return not node.cordoned


def _release(snapshot: PoolSnapshot, decided: PoolPlan, now: datetime) -> PoolPlan:
    taken = busy(decided.record)
    for node in snapshot.nodes.needs_attention:
        if node.node in taken or gate_table.first(Proposal("release", decided.record, now, node)):
            continue
        if _is_released(node, now) and not flapping_nodes.flaps(node, decided.record, now):
            degraded = recovered_nodes.works_at(node) is not None
            reason = recovered_nodes.WORKS if degraded else recovered_nodes.HEALTHY
            decided = _begun(snapshot, decided, "uncordon", node, reason, now)
        elif gpu_cordons.is_lifted(node, now) and room_for_sagas(decided.record):
            decided = _begun(snapshot, decided, "cordon-gpus", node, gpu_cordons.LIFTED, now)
    return decided


def _reserve(snapshot: PoolSnapshot, decided: PoolPlan, now: datetime) -> PoolPlan:
    """Cordon the spares again that the workload system may use."""
    for at, node in spares.perhaps_in_use(decided.record, snapshot.nodes):
        if now < _repeat_at(at) or not room_for_sagas(decided.record):
            continue
        if gate_table.first(Proposal("reserve", decided.record, now, node)) is None:
            decided = _begun(snapshot, decided, "cordon", node, RESERVED_AGAIN, now)
    return decided


def _recheck(snapshot: PoolSnapshot, decided: PoolPlan, now: datetime) -> PoolPlan:
    """Recheck those that only their kernel logs accuse."""
    for node in quarantine_recheck.testable(snapshot, decided.record, now):
        if not room_for_sagas(decided.record):
            break
        reason = quarantine_recheck.opened_reason(node)
        decided = _begun(snapshot, decided, "recheck", node, reason, now)
    return decided


def _begun(
    snapshot: PoolSnapshot,
    decided: PoolPlan,
    kind: SagaKind,
    node: NodeRecord,
    reason: str,
    now: datetime,
) -> PoolPlan:
    """The plan with one more saga."""
    saga, opened, record = begin(snapshot.fleet, decided.record, kind, now, node=node)
    opened = msgspec.structs.replace(opened, reason=reason)
    if kind == "cordon-gpus":
        opened = msgspec.structs.replace(opened, faulty_gpus=node.faulty_gpus)
    start = {**decided.start, saga: opened}
    return replace(decided, record=with_open(record, saga, opened), start=start)


def _is_released(node: NodeRecord, now: datetime) -> bool:
    """Whether nothing keeps a node out of service any more that was quarantined or repaired."""
    well = node.is_quarantined or recovered_nodes.is_well_after_repair(node, now)
    if node.state != "active" or not well:
        return False
    failed_at = node.quarantine.failed_at if node.quarantine else None
    return (
        node.health != "unhealthy"
        and not node.lost
        and not node.spare
        and cloud_notices.current_notice(node) is None
        and not (node.workload is not None and node.workload.cordoned)
        and (failed_at is None or now >= _repeat_at(failed_at))
    )


def _repeat_at(failed_at: datetime) -> datetime:
    return failed_at + timedelta(seconds=AGAIN_SECONDS)


def _next_repeat(snapshot: PoolSnapshot, now: datetime) -> datetime | None:
    soonest: datetime | None = None
    for node in snapshot.nodes.needs_attention:
        if node.quarantine is not None and node.quarantine.failed_at is not None:
            soonest = earlier(soonest, to_come(_repeat_at(node.quarantine.failed_at), now))
        if node.promotion_unknown_at is not None:
            soonest = earlier(soonest, to_come(_repeat_at(node.promotion_unknown_at), now))
        for at in (gpu_cordons.repeat_at(node), flapping_nodes.calm_at(node, snapshot.record)):
            soonest = earlier(soonest, to_come(at, now))
        if (works := recovered_nodes.works_at(node)) is not None:
            soonest = earlier(soonest, to_come(works, now))
    return soonest


def _published(
    snapshot: PoolSnapshot, decided: PoolPlan, waiting: Sequence[str], now: datetime
) -> PoolPlan:
    """Publish once that the cap is reached, and once that it no longer is."""
    record = decided.record
    if bool(waiting) == record.quarantine_full:
        return decided
    count = len(units_quarantined(record, snapshot.nodes))
    status: Literal["opened", "closed"] = "opened" if waiting else "closed"
    event = QuarantineFull(
        id=f"quarantine-full-{record.name}-{status}-{snapshot.revision}",
        time=now,
        pool=record.name,
        status=status,
        quarantined=count,
        limit=pool_limit(record),
        waiting=tuple(waiting[:WAITING_NAMED_MAX]),
        reason=_full_reason(record, waiting, count) if waiting else _RESOLVED,
        remedy=_remedy(record) if waiting else "",
    )
    record = msgspec.structs.replace(record, quarantine_full=bool(waiting))
    return replace(decided, record=record, events=(*decided.events, event))


_RESOLVED: Final = "no unhealthy node is left in service for the cap"


def _full_reason(record: PoolRecord, waiting: Sequence[str], count: int) -> str:
    stated = quarantine_cap(record.spec.budget)
    wave = " (an incident's unconfirmed nodes use half of it)" if incidents.holding(record) else ""
    cap = f"budget.max_quarantined of the pool ({stated}) or of the fleet allows{wave}"
    if stated == ALL:
        cap = "budget.cordon_floor of the pool or budget.max_quarantined of the fleet allows"
    return (
        f"{count} {rack_units.called(record)} are quarantined or have a cordoned GPU, as many as "
        f"{cap}; {len(waiting)} more nodes still take work on what is unhealthy: "
        f"{', '.join(waiting[:TEXT_NAMED_MAX])}"
    )


def _remedy(record: PoolRecord) -> str:
    return (
        f"see navarch list --pool {record.name}. If the faults are real: navarch cordon NODE, or "
        "raise budget.max_quarantined or lower budget.cordon_floor; if they are false: "
        "navarch uncordon NODE for each quarantined node"
    )
