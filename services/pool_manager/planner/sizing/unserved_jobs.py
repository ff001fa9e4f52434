"""Says which jobs a pool does not grow for any more, because nodes did not help them. Pure."""

from datetime import datetime, timedelta
from typing import Final

from schemas.duration import format_duration
from schemas.pool_records import PoolRecord
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.sizing.found_condition import FoundCondition

AGAIN_AFTER: Final = timedelta(hours=6)
"""Jobs that were not served are tried once more then: what they waited for may be there."""


def growth_without_effect(
    snapshot: PoolSnapshot, record: PoolRecord, now: datetime
) -> FoundCondition | None:
    """Return what is published of jobs that kept waiting beside nodes without work."""
    del snapshot, now
    if not record.unserved:
        return None
    named = ", ".join(f"{count} of {shape}" for shape, count in sorted(record.unserved.items()))
    again = format_duration(AGAIN_AFTER.total_seconds())
    return FoundCondition(
        reason=f"nodes were added for jobs that still wait while these nodes have no work "
        f"({named}); the pool does not grow for those jobs",
        remedy="look at why the workload system does not start them: labels, quotas, GPUs for each "
        f"node. More jobs let the pool grow, the same ones again after {again}; "
        f"navarch scale {record.name} N sets a size by hand",
    )
