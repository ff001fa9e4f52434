"""One replica publishes what workload systems say of nodes, once for each change."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas.messages import encode
from schemas.node_events import WorkFailed, WorkGangs, WorkloadState
from schemas.node_records import NodeRecord, WorkloadView, node_key
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, NODES
from services.bus.port import Bus
from services.notifier.node_state_publisher import (
    NodeStatePublisher,
    gangs_of,
    is_asked_about,
    state_event,
    unknown_state,
)
from services.notifier.workload.noop_notifier import NoopNotifier
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import (
    FailedWork,
    NodeReference,
    NodeWorkload,
    RunningWork,
    WorkloadNodeState,
)
from services.operator_text.event_text import describe
from services.primitives.clock import SystemClock
from tests.notifier.test_node_work import fleet_of
from tests.support.inprocess import eventually

NOW = datetime.now(UTC)
NODE = NodeReference(pool="training", node="training-7")
SUBJECT = "navarch.v1.node.training.training-7.event"
DOWN = WorkloadNodeState(ready=False, reason="NodeStatusUnknown")


class Reporting(NoopNotifier):
    """A workload system that says what the test wants."""

    def __init__(self) -> None:
        super().__init__(options=NoopNotifier.Options(), clock=SystemClock())
        self.states: dict[str, WorkloadNodeState] = {}
        self.changed = asyncio.Event()
        self.failures = 0

    async def node_states(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadNodeState]:
        """Return the states that were set, after as many failures as a test has ordered."""
        self.changed.clear()
        if self.failures:
            self.failures -= 1
            self.changed.set()
            raise ConnectionError
        return {each.node: self.states[each.node] for each in nodes if each.node in self.states}

    async def wait_for_node_change(self) -> None:
        """Return when the test has set something."""
        await self.changed.wait()

    def say(self, state: WorkloadNodeState) -> None:
        """Say this of the node from now on."""
        self.states["training-7"] = state
        self.changed.set()


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    """Yield a bus with the topology and one node in service."""
    async with fleet_of(NodeRecord(pool="training", node="training-7", state="active")) as found:
        yield found


@asynccontextmanager
async def publishing(bus: Bus, system: Reporting) -> AsyncIterator[None]:
    """A replica that publishes."""
    publisher = NodeStatePublisher(PoolNotifiers(system, {}, {}, bus), bus, SystemClock())
    running = asyncio.create_task(publisher.run())
    yield
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def stored(bus: Bus, fact: str) -> list[Any]:
    """Return the stored events of a kind."""
    return [decode_stored(each) for each in await bus.read(EVENTS.name, f"{SUBJECT}.{fact}")]


async def test_a_change_is_published_once(bus: Bus) -> None:
    """A ready node says nothing; the record that has the state ends the comparison."""
    system = Reporting()
    system.say(WorkloadNodeState())
    system.failures = 1
    async with publishing(bus, system):
        system.say(DOWN)
        await eventually(lambda: stored(bus, "workload-state"), every=0.02)
        system.changed.set()
        await asyncio.sleep(0.6)
    (event,) = await stored(bus, "workload-state")
    assert isinstance(event, WorkloadState)
    assert (event.ready, event.cordoned, event.reason) == (False, False, "NodeStatusUnknown")
    about = WorkloadView(system="noop", ready=False, reason="NodeStatusUnknown")
    record = NodeRecord(pool="training", node="training-7", state="active", workload=about)
    await bus.put(NODES, node_key("training", "training-7"), encode(record))
    async with publishing(bus, system):
        await asyncio.sleep(0.05)
        assert len(await stored(bus, "workload-state")) == 1
        system.say(WorkloadNodeState())
        await eventually(lambda: published(bus, 2), every=0.02)


@pytest.mark.parametrize(
    ("state", "age", "said"),
    [
        ("active", timedelta(minutes=2), True),
        ("active", timedelta(minutes=1), False),
        ("active", None, False),
        ("registered", timedelta(hours=1), False),
        ("leaving", timedelta(hours=1), False),
    ],
)
def test_a_node_in_service_that_its_workload_system_does_not_know_is_said_to_be(
    state: Any, age: timedelta | None, said: bool
) -> None:
    """Once it has had the time to join; a wrong name shows before the first cordon."""
    admitted = NOW - age if age is not None else None
    node = NodeRecord(pool="training", node="training-7", state=state, admitted_at=admitted)
    found = unknown_state(node, NOW)
    assert (found is not None) is said
    if found is not None:
        text = describe(state_event(NODE, found, "slurm", NOW)).detail
        assert "slurm cannot use it: it has no node of this name" in text
        assert "navarch workload check training" in text


async def test_an_unknown_node_is_published_until_its_system_knows_it(bus: Bus) -> None:
    """An operator may correct the template of the names, or the node joins late."""
    long_ago = NOW - timedelta(hours=1)
    record = NodeRecord(pool="training", node="training-7", state="active", admitted_at=long_ago)
    await bus.put(NODES, node_key("training", "training-7"), encode(record))
    system = Reporting()
    async with publishing(bus, system):
        await eventually(lambda: published(bus, 1), every=0.02)
    (event,) = await stored(bus, "workload-state")
    about = WorkloadView(system="noop", ready=False, reason=event.reason)
    await bus.put(
        NODES,
        node_key("training", "training-7"),
        encode(msgspec.structs.replace(record, workload=about)),
    )
    system.say(WorkloadNodeState())
    async with publishing(bus, system):
        await eventually(lambda: published(bus, 2), every=0.02)
    assert (await stored(bus, "workload-state"))[-1].ready


async def published(bus: Bus, count: int) -> bool:
    """Return whether so many states were published."""
    return len(await stored(bus, "workload-state")) == count


async def test_failed_jobs_are_published_once_across_replicas(bus: Bus) -> None:
    """The next replica goes on after the last one; old failures of an adopted node are history."""
    system = Reporting()
    times = [NOW - timedelta(hours=2), NOW - timedelta(minutes=2), NOW + timedelta(days=9000)]
    failed = [FailedWork(id=f"ml/p{number}", owner="ml", at=at) for number, at in enumerate(times)]
    system.say(WorkloadNodeState(failed=tuple(failed)))
    for _ in range(2):
        async with publishing(bus, system):
            await eventually(lambda: stored(bus, "work-failed"), every=0.02)
            await asyncio.sleep(0.02)
    (event,) = await stored(bus, "work-failed")
    assert isinstance(event, WorkFailed)
    assert describe(event).detail == "ml/p1 of ml failed in noop"


def test_an_event_is_bounded_whatever_the_system_says() -> None:
    """Endless text and times outside of every calendar make an event that can be read."""
    hostile = WorkloadNodeState(
        ready=False, reason="x\n" * 9999, since=datetime.max.replace(tzinfo=UTC)
    )
    event = state_event(NODE, hostile, "kubernetes", NOW)
    assert len(event.reason) == 512
    assert event.since is None
    assert describe(event).title == "workload system"


async def test_gangs_of_an_unhealthy_node_are_published_once_and_of_healthy_ones_never(
    bus: Bus,
) -> None:
    """Only unhealthy and draining nodes are asked about."""

    class Running(Reporting):
        """A job of several nodes is on each."""

        async def workloads(self, nodes: Sequence[NodeReference]) -> Mapping[str, NodeWorkload]:
            """The job, and one of this node alone."""
            jobs = (RunningWork(id="job 1", gang="4711"), RunningWork(id="job 2"))
            return {each.node: NodeWorkload(drained=False, running=jobs) for each in nodes}

    record = NodeRecord(pool="training", node="training-8", state="active", health="unhealthy")
    await bus.put(NODES, node_key("training", "training-8"), encode(record))
    subject = SUBJECT.replace("training-7", "training-8") + ".work-gangs"
    async with publishing(bus, Running()):
        (event,) = await eventually(lambda: bus.read(EVENTS.name, subject), every=0.02)
    decoded = decode_stored(event)
    assert isinstance(decoded, WorkGangs)
    assert decoded.gangs == ("4711",)
    assert await stored(bus, "work-gangs") == []


@pytest.mark.parametrize(
    ("changes", "asked", "gangs"),
    [
        ({}, False, ("new",)),
        ({"health": "unhealthy"}, True, ("new",)),
        ({"lost": True}, True, ("new",)),
        ({"saga": "s", "cordoned": True}, True, ("new",)),
        # what ran when its saga began is kept, and forgotten after it
        ({"saga": "s", "cordoned": True, "gangs": ("old",)}, True, ("old", "new")),
        ({"gangs": ("old",)}, True, ("new",)),
        ({"state": "launching", "saga": "s", "cordoned": True}, False, ("new",)),
    ],
)
def test_what_is_asked_about_and_how_long_it_counts(
    changes: dict[str, Any], asked: bool, gangs: tuple[str, ...]
) -> None:
    """The cost does not grow with the fleet."""
    record = NodeRecord(**{"pool": "p", "node": "n", "state": "active"} | changes)
    answer = NodeWorkload(drained=False, running=(RunningWork(id="job", gang="new"),))
    assert (is_asked_about(record), gangs_of(record, answer)) == (asked, gangs)
