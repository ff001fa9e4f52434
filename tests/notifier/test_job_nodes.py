"""A job's nodes are those that the workload systems of the pools name now."""

from collections.abc import AsyncIterator, Mapping

import pytest

from schemas.enums import NodeState
from schemas.node_records import NodeRecord
from schemas.node_work import JobNodes, JobNodesQuery
from schemas.settings import PoolSpec
from services.bus.port import Bus
from services.notifier.workload.noop_notifier import NoopNotifier
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import (
    NodeWorkload,
    Notifier,
    RunningWork,
    StepFailure,
)
from services.notifier.workload_endpoints import JobNodesEndpoint, is_called
from services.primitives.clock import SystemClock
from tests.notifier.test_node_work import Systems, fleet_of

SLURM = RunningWork(id="job 4711", name="train", owner="alice", gang="4711")
POD = RunningWork(id="team/llama-0", name="llama", owner="team", gang="team/Job/llama")
NODES_OF: Mapping[str, Mapping[str, NodeState]] = {
    "training": {"t1": "active", "t2": "leaving", "t3": "launching"},
    "serving": {"s1": "active"},
    "spare": {"x1": "active"},
}


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    """Yield the bus of a fleet with three pools."""
    nodes = [
        NodeRecord(pool=pool, node=name, state=state)
        for pool, states in NODES_OF.items()
        for name, state in states.items()
    ]
    async with fleet_of(*nodes) as found:
        yield found


async def found(bus: Bus, job: str, *pools: str, **systems: Systems) -> JobNodes:
    """Return what the notifier answers where these pools have these workload systems."""
    named: dict[str, Notifier] = dict(systems)  # type: ignore[arg-type]
    specs = {
        pool: PoolSpec(
            provider="p",
            instance_type="t",
            min_nodes=0,
            max_nodes=9,
            notifiers=(pool,) if pool in systems else (),
        )
        for pool in NODES_OF
    }
    noop = NoopNotifier(options=NoopNotifier.Options(), clock=SystemClock())
    notifiers = PoolNotifiers(noop, named, specs, bus)
    return await JobNodesEndpoint(notifiers, bus).find(JobNodesQuery(job=job, pools=pools))


def runs(*work: RunningWork, total: int = 0) -> NodeWorkload:
    """Return a node with this work."""
    return NodeWorkload(drained=False, running=work, total=total or len(work))


@pytest.mark.parametrize(
    ("work", "names"),
    [
        (SLURM, ("4711", "job 4711", "train")),
        (RunningWork(id="job 4711_3"), ("4711", "4711_3")),
        (POD, ("team/llama-0", "llama-0", "llama", "team/Job/llama")),
    ],
)
def test_a_job_has_its_id_and_its_names(work: RunningWork, names: tuple[str, ...]) -> None:
    """Operators copy names from squeue or kubectl; a name that only begins so does not match."""
    assert all(is_called(each, work) for each in names)
    assert not any(is_called(each, work) for each in ("47", "tra", "job", "team", "3", "471"))


async def test_a_job_is_found_on_every_node_that_may_have_work(bus: Bus) -> None:
    """All pools or those of the query are searched, with one question to each system."""
    training = Systems({"t1": runs(SLURM), "t2": runs(POD, SLURM)})
    serving = Systems({"s1": runs(POD)})
    all_pools = await found(bus, "4711", training=training, serving=serving)
    assert all_pools == JobNodes(nodes=("t1", "t2"), unknown=("pool spare has no workload system",))
    assert (sorted(training.asked), serving.asked) == (["t1", "t2"], ["s1"])
    one = await found(bus, "llama", "serving", training=training, serving=serving)
    assert one == JobNodes(nodes=("s1",))
    assert await found(bus, "gone", "training", training=training) == JobNodes()


@pytest.mark.parametrize(
    ("system", "unknown"),
    [
        (Systems(fails="slurmctld does not answer"), "scripted: slurmctld does not answer"),
        (Systems(name="silent", reports_running=False), "silent does not report what runs in pool"),
        (Systems({"t1": runs(POD, total=21), "t2": runs()}), "does not list all of t1"),
        (Systems({"t1": StepFailure("no name"), "t2": runs()}), "does not list all of t1"),
        (Systems({"t1": runs()}), "does not list all of t2"),
        (
            Systems({"t1": NodeWorkload(drained=False, unsure=True), "t2": runs()}),
            "does not list all of t1",
        ),
    ],
)
async def test_what_is_not_known_is_said(bus: Bus, system: Systems, unknown: str) -> None:
    """An empty answer would read as a job that has ended."""
    answer = await found(bus, "4711", "training", training=system)
    assert answer.nodes == ()
    assert len(answer.unknown) == 1
    assert unknown in answer.unknown[0]
