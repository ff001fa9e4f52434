"""Finds whether a growth served the jobs that it was for; a pool grows no more for others. Pure.

A job may wait for something else than nodes: a label that no node has, a quota, a volume. While it
waits it looks like demand, and each growth for it would lead to the next, up to max_nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.pool_records import Growth, PoolRecord
from services.pool_manager.autoscaling.autoscalers import PoolMetrics
from services.pool_manager.autoscaling.metrics_sources import WaitingJobs
from services.pool_manager.planner.sizing.unserved_jobs import AGAIN_AFTER

GRACE: Final = timedelta(minutes=5)
"""After the last of the added nodes is in service: schedulers look at a job again in that time, as
Kubernetes does each five minutes (`flushUnschedulablePodsInterval` of its queue)."""
UNKNOWN_AFTER: Final = timedelta(hours=2)
"""A growth whose nodes are not in service after that says nothing about the jobs."""
BUSY_PERCENT: Final = 1.0
"""A node above it has work."""
SHAPES_MAX: Final = 50
"""Shapes that are kept in a pool's record."""
ANY_SHAPE: Final = "jobs"
"""Of a source that says only how many wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedNodes:
    """Describes the nodes that came into service since a growth."""

    admitted: Sequence[datetime] = ()
    least_busy: float | None = None
    """How busy the GPUs of the least busy are, in percent; None: unknown: the jobs alone say
    whether it helped."""
    idle: int = 0
    """Nodes in service, these and others, that are known to have no work."""


def shapes(metrics: PoolMetrics) -> dict[str, int] | None:
    """Return how many jobs of each shape wait; None: unknown."""
    if metrics.waiting is None:
        return None if metrics.pending_jobs is None else {ANY_SHAPE: metrics.pending_jobs}
    found: dict[str, int] = {}
    for each in metrics.waiting:
        found[_shape(each)] = found.get(_shape(each), 0) + each.count
    return dict(list(found.items())[:SHAPES_MAX])


def _shape(jobs: WaitingJobs) -> str:
    return f"{jobs.nodes} x {jobs.gpus} GPUs" if jobs.gpus else f"{jobs.nodes} x 1 node"


def judged(
    record: PoolRecord, metrics: PoolMetrics, added: AddedNodes, now: datetime
) -> PoolRecord:
    """Return the record with what is known now of the last growth, and of jobs it did not serve."""
    waiting = shapes(metrics)
    if waiting is None:
        return record
    growth, since, before, gone = _kept(record), now, dict[str, int](), dict[str, int]()
    if record.unserved_since is not None and now - record.unserved_since < AGAIN_AFTER:
        since, before, gone = record.unserved_since, record.unserved, record.unserved_gone
    if growth is not None and _is_unserved(growth, waiting, added, now):
        gone = {shape: count for shape, count in gone.items() if shape not in growth.waiting}
        before, since, growth = {**before, **growth.waiting}, now, None
    elif growth is not None and _has_effect(growth, waiting, added, now):
        if not _works(added):
            gone = _gone(growth.waiting, _capped(growth.waiting, waiting), gone)
        growth = None
    elif growth is not None and now - growth.at >= UNKNOWN_AFTER:
        growth = None
    unserved = _capped(before, waiting)
    gone = _gone(before, unserved, gone) if added.idle else {}
    return msgspec.structs.replace(
        record,
        growth=growth,
        unserved=unserved,
        unserved_gone=gone,
        unserved_since=since if unserved or gone else None,
    )


def _kept(record: PoolRecord) -> Growth | None:
    """Return the last growth without the nodes by which an operator has shrunk the pool since."""
    growth = record.growth
    fewer = growth.size - record.desired if growth is not None else 0
    if growth is None or not 0 < fewer < growth.nodes:
        return growth
    return msgspec.structs.replace(growth, nodes=growth.nodes - fewer, size=record.desired)


def _capped(counts: Mapping[str, int], waiting: Mapping[str, int]) -> dict[str, int]:
    """Return the counts, of each shape no more than wait."""
    left = {shape: min(count, waiting.get(shape, 0)) for shape, count in counts.items()}
    return {shape: count for shape, count in left.items() if count > 0}


def _gone(
    before: Mapping[str, int], unserved: Mapping[str, int], gone: Mapping[str, int]
) -> dict[str, int]:
    """Return how many have gone, with those that wait no more."""
    found = {
        shape: gone.get(shape, 0) + before.get(shape, 0) - unserved.get(shape, 0)
        for shape in {**gone, **before}
    }
    left = [(shape, count) for shape, count in found.items() if count]
    return dict(left[-SHAPES_MAX:])


def not_helped(record: PoolRecord, metrics: PoolMetrics, idle: int) -> dict[str, int]:
    """Return the jobs for which more nodes are no help, by their shapes.

    Where some went unserved, others that come have the nodes without work that were added for
    those: so many are not grown for.
    """
    waiting, found = shapes(metrics) or {}, dict(record.unserved)
    for shape, count in record.unserved_gone.items():
        again = max(0, min(count, idle, waiting.get(shape, 0) - found.get(shape, 0)))
        idle -= again
        if again:
            found[shape] = found.get(shape, 0) + again
    return found


def _has_effect(growth: Growth, waiting: dict[str, int], added: AddedNodes, now: datetime) -> bool:
    """Return whether fewer jobs wait, or all nodes have come and have work.

    Where one of several has none, the jobs that wait beside it do not wait for nodes.
    """
    fewer = any(waiting.get(shape, 0) < count for shape, count in growth.waiting.items())
    if len(added.admitted) < growth.nodes or added.least_busy is None:
        return fewer
    # Jobs that are withdrawn within minutes were not served by nodes that have no work.
    return _works(added) or (fewer and now - max(added.admitted, default=now) >= GRACE)


def _works(added: AddedNodes) -> bool:
    """Return whether no node is known to have no work."""
    return added.least_busy is None or added.least_busy > BUSY_PERCENT


def _is_unserved(growth: Growth, waiting: dict[str, int], added: AddedNodes, now: datetime) -> bool:
    """Whether all nodes have been in service for long, one without work, and every job waits."""
    if _has_effect(growth, waiting, added, now):
        return False
    return len(added.admitted) >= growth.nodes and now - max(added.admitted) >= GRACE


def without_unserved(metrics: PoolMetrics, unserved: dict[str, int]) -> PoolMetrics:
    """Return what an autoscaler sees: those jobs wait for something else than nodes."""
    if not unserved:
        return metrics
    left, waiting = dict(unserved), []
    for each in metrics.waiting or ():
        taken = min(each.count, left.get(_shape(each), 0))
        left[_shape(each)] = left.get(_shape(each), 0) - taken
        if each.count > taken:
            waiting.append(msgspec.structs.replace(each, count=each.count - taken))
    count = sum(unserved.values())
    pending, depth = metrics.pending_jobs, metrics.queue_depth
    return replace(
        metrics,
        waiting=None if metrics.waiting is None else tuple(waiting),
        pending_jobs=None if pending is None else max(0, pending - count),
        queue_depth=None if depth is None else max(0, depth - count),
        not_for_nodes=metrics.not_for_nodes + count,
    )


def is_awaited(record: PoolRecord, metrics: PoolMetrics, target: int) -> bool:
    """Return whether a growth would be for jobs for which nodes have just been added."""
    waiting, growth = shapes(metrics), record.growth
    if growth is None or waiting is None or target <= record.desired:
        return False
    return all(count <= growth.waiting.get(shape, 0) for shape, count in waiting.items())


def with_growth(
    record: PoolRecord, previous: int, metrics: PoolMetrics, now: datetime
) -> PoolRecord:
    """Return a record of a new size with what it grew for."""
    waiting = {shape: count for shape, count in (shapes(metrics) or {}).items() if count}
    grew = record.desired > previous and waiting
    nodes, size = record.desired - previous, record.desired
    growth = Growth(at=now, nodes=nodes, waiting=waiting, size=size) if grew else None
    return msgspec.structs.replace(record, growth=growth)
