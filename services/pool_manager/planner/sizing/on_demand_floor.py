"""Keeps as many of a pool's nodes on demand or reserved as it requires. Pure.

Each launch is decided with its market: while too few nodes are on demand or reserved, with what
comes and without what leaves, the next one must not be spot. Such a launch has no spot offerings,
so that none takes the place, however long there is no other capacity. A pool that becomes smaller
keeps those that are required. A node whose market is not known counts as spot.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, Literal

import msgspec

from schemas.node_records import NodeRecord
from schemas.pool_events import OnDemandShort
from schemas.pool_records import OpenSaga, PoolRecord
from services.pool_manager.planner.disruption_budget import limit
from services.pool_manager.planner.node_counts import Nodes, nodes_removed
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot

STAYING: Final = ("on-demand", "reserved")
"""Markets from which the cloud takes no instance back."""


def required(record: PoolRecord) -> int:
    """Nodes that must not be spot; in a smaller pool all of them."""
    least = record.spec.on_demand_min
    return min(limit(least, record.desired), record.desired) if least else 0


def expected(record: PoolRecord, nodes: Nodes) -> int:
    """Nodes that are not spot when all that is open has come to its end."""
    coming = {each.new_node for each in record.open.values() if each.not_spot and each.new_node}
    staying = {each.node for each in nodes if each.market in STAYING or each.node in coming}
    return len((staying | coming) - nodes_removed(record))


def serving(nodes: Iterable[NodeRecord]) -> int:
    """Nodes in service that are not spot."""
    return sum(each.state == "active" and each.market in STAYING for each in nodes)


def with_markets(record: PoolRecord, nodes: Nodes, begun: Iterable[str]) -> PoolRecord:
    """The record, in which as many of the launches just begun as are missing must not be spot."""
    if not record.spec.on_demand_min:
        return record
    missing = required(record) - expected(record, nodes)
    launches = [saga for saga in begun if record.open[saga].new_node][: max(0, missing)]
    if not launches:
        return record
    firm = {saga: msgspec.structs.replace(record.open[saga], not_spot=True) for saga in launches}
    return msgspec.structs.replace(record, open={**record.open, **firm})


def decided(snapshot: PoolSnapshot, plan: PoolPlan) -> PoolPlan:
    """A plan, with the markets of what it launches."""
    record = with_markets(plan.record, snapshot.nodes, plan.start)
    if record is plan.record:
        return plan
    start: dict[str, OpenSaga] = {saga: record.open[saga] for saga in plan.start}
    return replace(plan, record=record, start=start)


def kept(
    record: PoolRecord, nodes: Nodes, free: Sequence[NodeRecord], count: int
) -> list[NodeRecord]:
    """The first of the nodes that may leave, without those that are required."""
    if not record.spec.on_demand_min:
        return list(free[:count])
    surplus = expected(record, nodes) - required(record)
    found: list[NodeRecord] = []
    for node in free:
        if len(found) == count:
            break
        if node.market in STAYING:
            if surplus <= 0:
                continue
            surplus -= 1
        found.append(node)
    return found


def reported(
    snapshot: PoolSnapshot, record: PoolRecord, now: datetime
) -> tuple[PoolRecord, tuple[OnDemandShort, ...]]:
    """Publish once that too few are on demand and nothing under way changes it, and its end."""
    least, there = required(record), serving(snapshot.nodes)
    if record.on_demand_short:
        if there < least:
            return record, ()
    elif expected(record, snapshot.nodes) >= least:
        return record, ()
    status: Literal["opened", "closed"] = "closed" if record.on_demand_short else "opened"
    event = OnDemandShort(
        id=f"on-demand-short-{record.name}-{status}-{snapshot.revision}",
        time=now,
        pool=record.name,
        status=status,
        nodes=there,
        required=least,
        reason=sentence(record, snapshot.nodes),
        remedy="" if record.on_demand_short else remedy(record),
    )
    return msgspec.structs.replace(record, on_demand_short=not record.on_demand_short), (event,)


def sentence(record: PoolRecord, nodes: Iterable[NodeRecord]) -> str:
    """Return how many on-demand or reserved nodes are in service, of how many, in words."""
    return (
        f"{serving(nodes)} of the {required(record)} nodes that must be on demand or reserved "
        f"(on_demand_min: {record.spec.on_demand_min}) are in service"
    )


def remedy(record: PoolRecord) -> str:
    """Return what an operator can do about missing on-demand nodes."""
    gap = (
        f"a launch that failed is tried again, and never as spot: navarch why {record.name}"
        if record.failures
        else "no node is missing, so none is launched: navarch replace NODE makes a spot node one"
    )
    return f"{gap}; else lower on_demand_min"
