"""Decides when a node leaves that its cloud retires in days: at a quiet time, or at last. Pure.

It leaves in a service window of its pool, as what is renewed does; where none opens in time, as
soon as it has no work. At last it leaves when its
drain and its successor's launch must begin to be done before the cloud takes it; where many are
announced for one time they begin earlier, as the budget takes a few of them at a time. A job that
runs on then is asked for a checkpoint and drained, like any other.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import cloud_notices, rack_units
from services.pool_manager.planner.disruption_budget import limit
from services.pool_manager.planner.idle_nodes import is_idle
from services.pool_manager.planner.node_counts import busy
from services.pool_manager.planner.pool_snapshot import NodeUse
from services.pool_manager.planner.safety import maintenance_windows
from services.pool_manager.planner.safety.maintenance_windows import Opening

USES_READ_MAX: Final = 100
"""Nodes of one decision whose use is read, those first that leave first."""


def retired_at(nodes: Iterable[NodeRecord]) -> list[datetime]:
    """Return when the cloud takes those of a pool's nodes that it retires, earliest first."""
    found = (cloud_notices.retires_at(node) for node in nodes if node.notices)
    return sorted(at for at in found if at is not None)


def waits_until(
    node: NodeRecord,
    record: PoolRecord,
    times: Sequence[datetime],
    use: Mapping[str, NodeUse] | None,
    now: datetime,
) -> datetime | None:
    """Return until when at most a retirement waits, beside those at `times`; None: not at all."""
    at = cloud_notices.retires_at(node)
    if at is None or (node.cordoned and not node.sole_notice):
        return None  # it has no work to wait for, or leaves for another reason
    latest = _latest_at(at, record, times)
    served = maintenance_windows.opening(record.spec.windows, "service", now) is not None
    if now >= latest or served:
        return None
    if is_idle(node, use, now) and window_before(latest, record, now) is None:
        return None
    return latest


def window_before(latest: datetime, record: PoolRecord, now: datetime) -> Opening | None:
    """Return the next service window of the pool, where it opens before a retirement must begin."""
    coming = maintenance_windows.next_opening(record.spec.windows, "service", now)
    return coming if coming is not None and coming.start < latest else None


def asked_about(record: PoolRecord, nodes: Iterable[NodeRecord], now: datetime) -> list[str]:
    """Return the nodes whose use decides whether they leave, those first that leave first."""
    nodes, taken = tuple(nodes), busy(record)
    times = retired_at(nodes)
    found = [
        (latest, node.node)
        for node in nodes
        if node.notices
        and node.node not in taken
        and (latest := waits_until(node, record, times, None, now)) is not None
        and window_before(latest, record, now) is None
    ]
    return [name for _, name in sorted(found)[:USES_READ_MAX]]


def _latest_at(at: datetime, record: PoolRecord, times: Sequence[datetime]) -> datetime:
    """When it must begin, where so many at a time as the budget allows are taken by then."""
    together = bisect_right(times, at)
    desired = rack_units.units(record, record.desired)
    at_once = max(1, math.ceil(limit(record.spec.budget.max_unavailable, desired) / 2))
    rounds = max(1, math.ceil(together / at_once))
    return at - rounds * cloud_notices.needed(record.spec)
