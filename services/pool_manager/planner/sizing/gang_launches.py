"""Launches of nodes that must be together: one gang at a time, begun whole in one decision. Pure.

The provisioner launches the nodes of a gang in one place, or fails all of them. So a pool begins
the next gang only when the last saga of the one before has left its record, and a gang that failed
counts as one failure, however many nodes it has.
"""

from collections.abc import Sequence
from typing import Final

from schemas.pool_records import OpenSaga, PoolRecord
from services.pool_manager.planner.sizing.open_sagas import room_for_launches
from services.primitives.backoff import doubled
from services.settings.provider_choices import GANG_MAX

RETRY_FIRST_SECONDS: Final = 30.0
RETRY_MAX_SECONDS: Final = 1200.0
"""Machines that are given back have cost money: each try waits twice as long as the one before."""


def is_forming(record: PoolRecord) -> bool:
    """Return whether launches of a gang are open."""
    return any(each.gang for each in record.open.values())


def next_gang(record: PoolRecord, missing: int) -> int:
    """Return how many nodes to launch together now; 0: a gang is forming, or there is no room."""
    size = min(first_part(record.gangs, missing), GANG_MAX)
    return 0 if is_forming(record) or size > room_for_launches(record) else size


def first_part(gangs: Sequence[int], missing: int) -> int:
    """Return how many of the missing nodes belong together: the last ones are of the last jobs."""
    left = missing
    for size in reversed(gangs):
        if left <= size:
            break
        left -= size
    return left


def others_open(record: PoolRecord, saga: str) -> bool:
    """Return whether launches of a saga's gang are open besides its own."""
    gang = record.open[saga].gang
    return bool(gang) and any(
        each.gang == gang for name, each in record.open.items() if name != saga
    )


def wait_seconds(ended: OpenSaga, failures: int) -> float:
    """Return how long to wait after so many failures of gangs in a row, in seconds; 0: no gang."""
    if ended.gang_size < 2:  # noqa: PLR2004 - one machine is whole by itself
        return 0.0
    return doubled(RETRY_FIRST_SECONDS, failures, RETRY_MAX_SECONDS)
