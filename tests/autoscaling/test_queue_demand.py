"""The demand is the number of nodes that whole waiting jobs need, within the room."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.pool_manager.autoscaling.autoscalers import PoolMetrics, PoolState, Queue
from services.pool_manager.autoscaling.metrics_sources import WaitingJobs
from services.pool_manager.autoscaling.queue_demand import QueueDemand, demand_of

NOW = datetime(2030, 1, 7, tzinfo=UTC)
JOBS = st.lists(
    st.builds(
        WaitingJobs,
        nodes=st.sampled_from([1, 1, 1, 2, 4, 16]),
        gpus=st.integers(0, 9),
        count=st.integers(0, 50),
        parts=st.dictionaries(st.integers(0, 9), st.integers(0, 20), max_size=3),
    ),
    max_size=12,
)


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ([], QueueDemand()),
        ([WaitingJobs(count=3)], QueueDemand(nodes=3, jobs=3)),
        ([WaitingJobs(nodes=4, count=2)], QueueDemand(nodes=8, jobs=2, gangs=(4, 4))),
        ([WaitingJobs(gpus=2, count=5)], QueueDemand(nodes=2, jobs=5)),
        (
            [WaitingJobs(gpus=6, count=2), WaitingJobs(gpus=2, count=2)],
            QueueDemand(nodes=2, jobs=4),
        ),
        ([WaitingJobs(gpus=3, count=4)], QueueDemand(nodes=2, jobs=4)),
        ([WaitingJobs(nodes=2, gpus=1)], QueueDemand(nodes=2, jobs=1, gangs=(2,))),
        # Parts share nodes by their GPUs; a gang that fills one node shares it.
        ([WaitingJobs(nodes=4, gpus=2, parts={2: 4})], QueueDemand(nodes=1, jobs=1)),
        (
            [WaitingJobs(nodes=5, gpus=8, count=2, parts={8: 2, 2: 3})],
            QueueDemand(nodes=6, jobs=2, gangs=(3, 3)),
        ),
        (
            [WaitingJobs(nodes=2, gpus=2, parts={2: 2}), WaitingJobs(gpus=4)],
            QueueDemand(nodes=1, jobs=2),
        ),
        ([WaitingJobs(nodes=81, gpus=1, parts={1: 81})], QueueDemand(too_large=1)),
        (
            [WaitingJobs(nodes=80, gpus=1, parts={1: 80})],
            QueueDemand(nodes=10, jobs=1, gangs=(10,)),
        ),
        ([WaitingJobs(nodes=2, gpus=9, parts={9: 2})], QueueDemand(too_large=1)),
        ([WaitingJobs(nodes=6, count=3)], QueueDemand(nodes=6, jobs=1, gangs=(6,), without_room=2)),
        ([WaitingJobs(nodes=11)], QueueDemand(too_large=1)),
        ([WaitingJobs(gpus=16)], QueueDemand(too_large=1)),
        (
            [WaitingJobs(nodes=8), WaitingJobs(nodes=4), WaitingJobs()],
            QueueDemand(nodes=9, jobs=2, gangs=(8,), without_room=1),
        ),
    ],
)
def test_demand(waiting: list[WaitingJobs], expected: QueueDemand) -> None:
    """A pool of up to ten nodes with eight GPUs each, all free."""
    found = demand_of(waiting, gpus_per_node=8, jobs_per_node=1, room=10, nodes_max=10)
    assert found == expected


def test_unknown_gpus_and_shared_nodes() -> None:
    """A job takes a node if the number of GPUs is unknown; jobs that state nothing share one."""
    jobs = [WaitingJobs(gpus=2, count=3), WaitingJobs(count=7)]
    found = demand_of(jobs, gpus_per_node=0, jobs_per_node=4, room=10, nodes_max=10)
    assert found == QueueDemand(nodes=5, jobs=10)


@given(JOBS, st.integers(0, 8), st.sampled_from([0.5, 1, 3]), st.integers(-2, 40))
def test_no_part_of_a_job_gets_nodes(
    jobs: list[WaitingJobs], gpus: int, share: float, room: int
) -> None:
    """Nodes stay within the room; each job is counted once; without room for any there are none."""
    found = demand_of(jobs, gpus_per_node=gpus, jobs_per_node=share, room=room, nodes_max=20)
    assert 0 <= found.nodes <= max(room, 0)
    assert found.jobs + found.without_room + found.too_large == sum(each.count for each in jobs)
    if not found.jobs:
        assert found.nodes == 0
    gangs = [each for each in jobs if each.nodes > 1]
    if len(gangs) == len(jobs) == 1 and gpus >= gangs[0].gpus:
        assert found.nodes == found.jobs * gangs[0].nodes


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 40)), max_size=8))
def test_packing_is_near_the_least(shapes: list[tuple[int, int]]) -> None:
    """Jobs on parts of nodes take under twice the nodes that their GPUs fill, and one."""
    jobs = [WaitingJobs(gpus=gpus, count=count) for gpus, count in shapes]
    found = demand_of(jobs, gpus_per_node=8, jobs_per_node=1, room=10_000, nodes_max=10_000)
    least = math.ceil(sum(gpus * count for gpus, count in shapes) / 8)
    assert least <= found.nodes <= 2 * least + 1


@pytest.mark.parametrize(
    ("metrics", "target", "reason"),
    [
        (PoolMetrics(waiting=(), busy_nodes=0), 0, "0 nodes are busy, 0 waiting jobs need 0 nodes"),
        (PoolMetrics(waiting=(WaitingJobs(nodes=4),), busy_nodes=0), 4, "1 waiting jobs"),
        (PoolMetrics(waiting=(WaitingJobs(nodes=4),), busy_nodes=3), 7, "3 nodes are busy"),
        (PoolMetrics(waiting=()), 5, "0 waiting jobs"),
        (PoolMetrics(waiting=(WaitingJobs(gpus=8, count=3),)), 7, "3 waiting jobs need 3"),
        (PoolMetrics(waiting=(WaitingJobs(nodes=9),), busy_nodes=4), 4, "max_nodes 12 has no room"),
        (PoolMetrics(waiting=(WaitingJobs(nodes=13),), busy_nodes=4), 4, "larger than the pool"),
        (PoolMetrics(waiting=(), busy_nodes=1, not_for_nodes=2), 1, "2 do not wait for nodes"),
        (PoolMetrics(waiting=(), busy_nodes=1, not_for_pool=3), 1, "3 need nodes of another kind"),
    ],
)
def test_queue_follows_the_demand(metrics: PoolMetrics, target: int, reason: str) -> None:
    """A pool grows for whole jobs, shrinks to what is busy, and goes to nothing and back."""
    state = PoolState(
        pool="training",
        current_nodes=5,
        ready_nodes=4,
        min_nodes=0,
        max_nodes=12,
        gpus_per_node=8,
        metrics=metrics,
        now=NOW,
    )
    found = Queue(options=Queue.Options()).recommend(state)
    assert found.target_nodes == target
    assert reason in found.reason
