"""Says which nodes are not replaced because their successors would end with them. Pure."""

from datetime import datetime
from typing import Final

from schemas.pool_records import PoolRecord
from services.operator_text.quantities import first_of
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.shared_ends import shared_places, stays_until
from services.pool_manager.planner.sizing.found_condition import FoundCondition

NAMED_MAX: Final = 5


def capacity_ends(
    snapshot: PoolSnapshot, record: PoolRecord, now: datetime
) -> FoundCondition | None:
    """Return what is published of nodes that end with their capacity."""
    del now
    if not record.capacity_ends:
        return None
    ending = {
        node.node: found[1].deadline
        for node in snapshot.nodes.needs_attention
        if (found := stays_until(node, record)) is not None
    }
    if not ending:
        return None
    first = min(at for at in ending.values() if at is not None)
    places = "; ".join(sorted(shared_places(record)))
    named = first_of(sorted(ending), NAMED_MAX)
    return FoundCondition(
        reason=f"capacity ends at {first:%Y-%m-%d %H:%M} UTC ({places}): {named} "
        "end with it and are not replaced, as what is launched there has the same end",
        remedy="extend the reservation, or let the pool launch elsewhere (zones, market, "
        "providers); work is drained before the end",
    )
