"""Says which nodes are not replaced because their successors would end with them. Pure."""

from datetime import datetime
from typing import Final

from schemas.pool_records import PoolRecord
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.shared_ends import stays_until
from services.pool_manager.planner.sizing.found_condition import FoundCondition

NAMED_MAX: Final = 5


def capacity_ends(
    snapshot: PoolSnapshot, record: PoolRecord, now: datetime
) -> FoundCondition | None:
    """Return what is published of nodes that end with their capacity."""
    del now
    if not record.capacity_ends:
        return None
    nodes = [
        (node.node, found[1].deadline)
        for node in snapshot.nodes.needs_attention
        if (found := stays_until(node, record)) is not None and found[1].deadline is not None
    ]
    if not nodes:
        return None
    first = min(at for _, at in nodes)
    places = sorted({each.place for each in record.capacity_ends.values() if each.shared})
    named = ", ".join(sorted(name for name, _ in nodes)[:NAMED_MAX])
    more = f" and {len(nodes) - NAMED_MAX} more" if len(nodes) > NAMED_MAX else ""
    return FoundCondition(
        reason=f"capacity ends at {first:%Y-%m-%d %H:%M} UTC ({'; '.join(places)}): {named}{more} "
        "end with it and are not replaced, as what is launched there has the same end",
        remedy="extend the reservation, or let the pool launch elsewhere (zones, market, "
        "providers); work is drained before the end",
    )
