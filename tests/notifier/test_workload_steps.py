"""Steps in the workload systems of their pools, in virtual time on the in-memory bus."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from schemas.health_records import GpuHealth, HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import encode
from schemas.node_events import GpuIdentity
from schemas.node_records import CloudNotice, NodeRecord, node_key
from schemas.saga_params import LaunchSpec
from schemas.settings import PoolSpec
from schemas.step_data import DrainOutputs
from schemas.topology import HEALTH, INSTANCES, NODES, POOLS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.notifier.node_references import read_reference
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import (
    GpuReference,
    Notifier,
    StepFailure,
    WorkloadOrder,
)
from services.notifier.workload_availability import WorkloadAvailability
from services.notifier.workload_steps import WorkloadSteps
from services.primitives.errors import BusError
from services.primitives.race import race
from services.runtime.failure_register import FailureRegister
from services.saga.participant import Command
from services.simulator.engine.virtual_time import VirtualClock, run
from tests.notifier.test_drain_watch import Scheduler

POOL = PoolSpec(provider="fake", instance_type="h100", min_nodes=1, max_nodes=2)


class Evicting(Scheduler):
    """Ends its work on an eviction."""

    async def evict(self, order: Any) -> None:
        """Note when, and end the work."""
        assert order.deadline is not None
        self.evicted.append(VirtualClock().monotonic())
        self.busy.discard(order.node.node)


def with_bus(work: Callable[[MemoryBus], Awaitable[None]]) -> None:
    """Run on a bus with the records' buckets, and a record of node `n` of each pool."""

    async def whole() -> None:
        server = MemoryServer(VirtualClock())
        bus = MemoryBus(server, PerfectLink())
        await set_up(bus, VirtualClock(), replicas=1)
        for pool in ("p", "configured"):
            record = NodeRecord(pool=pool, node="n", state="active")
            await bus.put(NODES, node_key(pool, "n"), encode(record))
        await work(bus)
        server.close()

    run(whole)


def steps(bus: MemoryBus, default: Notifier, named: Mapping[str, Notifier] = {}) -> WorkloadSteps:
    """The steps of a fleet whose pool `configured` is in the configuration."""
    configured = {"configured": msgspec.structs.replace(POOL, notifiers=("slurm", "hook"))}
    notifiers = PoolNotifiers(default, named, configured if named else {}, bus)
    failures = FailureRegister(CollectorRegistry())
    availability = WorkloadAvailability(VirtualClock(), failures)
    return WorkloadSteps(notifiers, bus, VirtualClock(), availability)


def command(pool: str, seconds: float | None = None, **more: Any) -> Command:
    """Return a step about node `n`."""
    deadline = None if seconds is None else VirtualClock().now() + timedelta(seconds=seconds)
    inputs = {"pool": pool, "node": "n", "reason": "XID 79", **more}
    return Command(saga="s", step="drain", inputs=inputs, id="e", deadline=deadline)


@pytest.mark.parametrize(("seconds", "evicted"), [(300.0, 290.0), (20.0, 18.0)])
def test_what_is_left_is_evicted_before_the_deadline_and_not_earlier(
    seconds: float, evicted: float
) -> None:
    """Evicted work is requeued; work on a terminated node is lost."""

    async def work(bus: MemoryBus) -> None:
        scheduler = Evicting(busy={"n"}, poll_seconds=0.5)
        begun = VirtualClock().monotonic()
        outputs = await steps(bus, scheduler).drain(command("p", seconds))
        assert outputs == DrainOutputs()
        assert [at - begun for at in scheduler.evicted] == [pytest.approx(evicted, abs=0.1)]

    with_bus(work)


async def announce(bus: MemoryBus, seconds: float, *, withdrawn: bool = False) -> None:
    """The cloud takes the node so much later, as its record says."""
    now = VirtualClock().now()
    notice = CloudNotice(
        kind="preemption",
        effect="reclaim",
        deadline=now + timedelta(seconds=seconds),
        at=now,
        withdrawn=withdrawn,
    )
    record = NodeRecord(pool="p", node="n", state="active", notices={"spot": notice})
    await bus.put(NODES, node_key("p", "n"), encode(record))


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(("announced", "evicted"), [(0.0, 105.0), (60.0, 165.0)])
def test_what_is_left_is_evicted_before_the_cloud_takes_the_node(
    announced: float, evicted: float, waits: bool
) -> None:
    """The drain ends five seconds before the removal, also where that is announced during it."""

    async def work(bus: MemoryBus) -> None:
        scheduler, clock = Evicting(busy={"n"}), VirtualClock()
        begun = clock.monotonic()
        drain = command("p", None if waits else 3_600.0)
        performed = steps(bus, scheduler)
        if not announced:
            await announce(bus, 120.0)
        _, pending = await asyncio.wait(
            [asyncio.create_task(performed.drain(drain))], timeout=announced or None
        )
        if announced:
            await announce(bus, 120.0)
            await asyncio.wait(pending)
        assert [at - begun for at in scheduler.evicted] == [pytest.approx(evicted, abs=0.6)]

    with_bus(work)


def test_a_withdrawn_notice_evicts_nothing() -> None:
    """A record that cannot be read changes nothing of what is known, either."""

    async def work(bus: MemoryBus) -> None:
        scheduler, clock = Evicting(busy={"n"}), VirtualClock()
        await announce(bus, 120.0)
        performed = asyncio.create_task(steps(bus, scheduler).drain(command("p")))
        await clock.sleep(60.0)
        await announce(bus, 60.0, withdrawn=True)
        await clock.sleep(600.0)
        assert scheduler.evicted == []
        performed.cancel()
        await asyncio.wait([performed])

    with_bus(work)


def test_eviction_goes_on_while_the_bus_does_not_answer() -> None:
    """The last announcement that was read decides when."""

    class Unreachable(MemoryBus):
        broken = False

        async def get(self, bucket: Any, key: str) -> Any:
            """Fail as a bus that is away."""
            if self.broken:
                raise BusError("away")
            return await super().get(bucket, key)

    async def whole() -> None:
        server, clock = MemoryServer(VirtualClock()), VirtualClock()
        bus = Unreachable(server, PerfectLink())
        await set_up(bus, clock, replicas=1)
        scheduler = Evicting(busy={"n"})
        begun = clock.monotonic()
        await announce(bus, 120.0)
        performed = asyncio.create_task(steps(bus, scheduler).drain(command("p", 3_600.0)))
        await clock.sleep(5.0)
        bus.broken = True
        await asyncio.wait([performed])
        assert [at - begun for at in scheduler.evicted] == [pytest.approx(105.0, abs=0.6)]
        server.close()

    run(whole)


@pytest.mark.parametrize("hangs", [True, False])
def test_one_of_two_systems_is_away_and_the_work_in_the_other_is_evicted_in_time(
    hangs: bool,
) -> None:
    """The node is terminated at the deadline either way: work not requeued would be lost."""

    class Away(Scheduler):
        async def drain(self, order: WorkloadOrder) -> None:  # noqa: ARG002
            """Hang as a webhook that repeats its request, or fail as a command does."""
            if hangs:
                await VirtualClock().sleep(10_000)
            raise ConnectionError("away")

    async def work(bus: MemoryBus) -> None:
        begun = VirtualClock().monotonic()
        scheduler, away = Evicting(busy={"n"}), Away(failures=10_000)
        performed = steps(bus, Scheduler(), {"slurm": scheduler, "hook": away})
        order = command("configured", 300.0)
        await race(performed.drain(order), VirtualClock().sleep(300.0))
        assert [at - begun for at in scheduler.evicted] == [pytest.approx(290.0, abs=0.1)]

    with_bus(work)


def test_a_drain_whose_order_fails_for_a_while_is_ordered_and_ends() -> None:
    """The same holds for a drain that an earlier delivery has begun."""

    class Late(Scheduler):
        orders = 0

        async def drain(self, order: WorkloadOrder) -> None:  # noqa: ARG002
            """Fail twice."""
            self.orders += 1
            if self.orders < 3:
                raise ConnectionError("away")

    async def work(bus: MemoryBus) -> None:
        scheduler = Late(failures=1)
        outputs = await steps(bus, scheduler).drain(
            dataclasses.replace(command("p", 300.0), deliveries=2)
        )
        assert (outputs, scheduler.orders, scheduler.evicted) == (DrainOutputs(), 3, [])

    with_bus(work)


def test_a_drain_without_a_deadline_evicts_nothing() -> None:
    """`drain: wait` waits for as long as the work needs."""

    async def work(bus: MemoryBus) -> None:
        scheduler = Evicting(busy={"n"})
        clock = VirtualClock()
        await race(steps(bus, scheduler).drain(command("p")), clock.sleep(1_000))
        assert scheduler.evicted == []

    with_bus(work)


def test_an_immediate_drain_evicts_at_once() -> None:
    """The node goes next: its work is requeued, and not waited for."""

    async def work(bus: MemoryBus) -> None:
        scheduler = Evicting(busy={"n", "m"})
        outputs = await steps(bus, scheduler).drain(command("p", 30.0, wait=False))
        assert (outputs, scheduler.busy) == (DrainOutputs(drain_confirmed=False), {"m"})

    with_bus(work)


def test_each_pool_has_its_own_workload_systems() -> None:
    """The systems come from the configuration, or for a pool made by request from its record."""

    async def work(bus: MemoryBus) -> None:
        fleet, slurm, hook = Scheduler(name="fleet"), Scheduler(name="slurm"), Scheduler()
        of = steps(bus, fleet, {"slurm": slurm, "hook": hook})._notifiers.of
        await bus.put(POOLS, "pool.made", b'{"spec": {"notifiers": ["slurm"]}}')
        assert (await of("configured")).name == "slurm+scheduler"
        assert await of("configured") is await of("configured")
        assert await of("made") is slurm
        assert await of("unknown") is fleet
        await bus.put(POOLS, "pool.made", b'{"spec": {"notifiers": ["slrm"]}}')
        with pytest.raises(StepFailure, match=r"'slrm'.*known: slurm, hook.*restart"):
            await of("made")

    with_bus(work)


@pytest.mark.parametrize(
    ("step", "seconds", "wait", "taken", "ends", "urgency"),
    [
        ("drain", 300.0, True, None, 290.0, "deadline"),
        ("drain", 300.0, True, 120.0, 120.0, "deadline"),
        ("drain", 60.0, True, 120.0, 54.0, "deadline"),
        ("drain", None, True, None, None, "wait"),
        ("drain", 15.0, False, None, 13.5, "immediate"),
        ("vacate", 5.0, False, 120.0, 120.0, "deadline"),
        ("vacate", 5.0, False, None, None, "wait"),
    ],
)
def test_work_is_given_no_longer_than_its_node_has(
    step: str,
    seconds: float | None,
    wait: bool,
    taken: float | None,
    ends: float | None,
    urgency: str,
) -> None:
    """The cloud's deadline counts where it is earlier; notices that were withdrawn do not."""

    class Recording(Scheduler):
        async def drain(self, order: WorkloadOrder) -> None:
            """Keep the order."""
            orders.append(order)

    orders: list[WorkloadOrder] = []

    async def work(bus: MemoryBus) -> None:
        now = VirtualClock().now()

        def notice(seconds: float, **more: Any) -> CloudNotice:
            return CloudNotice(at=now, deadline=now + timedelta(seconds=seconds), **more)

        notices = {"x": notice(1.0, withdrawn=True), "y": notice(2.0, effect="reboot")}
        if taken is not None:
            notices["z"] = notice(taken)
        record = NodeRecord(pool="p", node="n", notices=notices)
        await bus.put(NODES, node_key("p", "n"), encode(record))
        performed = steps(bus, Recording())
        action = performed.start_drain if step == "vacate" else performed.drain
        await action(command("p", seconds, wait=wait))
        [order] = orders
        expected = None if ends is None else now + timedelta(seconds=ends)
        assert (order.deadline, order.urgency) == (expected, urgency)

    with_bus(work)


def test_a_reference_has_what_the_records_say_and_a_name_without_any() -> None:
    """The node may be gone with its records, and its uncordon still be repeated."""

    async def work(bus: MemoryBus) -> None:
        bare = await read_reference(bus, "p", "n")
        assert (bare.pool, bare.node, bare.hostname, bare.faulty_gpus) == ("p", "n", "", ())
        now = VirtualClock().now()
        launch = LaunchSpec(fleet="f", provider="aws", instance_type="h100", labels={"rack": "r1"})
        records = {
            NODES: NodeRecord(pool="p", node="n", hostname="gpu-7", address="10.0.0.7"),
            INSTANCES: InstanceRecord(
                pool="p",
                instance="n",
                provider="aws",
                token="t",
                launch=launch,
                provider_id="i-1",
                intended_at=now,
            ),
            HEALTH: HealthRecord(
                pool="p", node="n", gpus=(GpuHealth(index=3, status="unhealthy", since=now),)
            ),
        }
        for bucket, record in records.items():
            await bus.put(bucket, node_key("p", "n"), msgspec.json.encode(record))
        found = await read_reference(bus, "p", "n")
        assert (found.hostname, found.address, found.provider_id) == ("gpu-7", "10.0.0.7", "i-1")
        assert (found.labels, found.faulty_gpus) == ({"rack": "r1"}, (3,))

    with_bus(work)


class Cordoning(Scheduler):
    """Keeps work off single GPUs."""

    async def cordon_gpus(self, order: WorkloadOrder) -> None:
        """Note the order."""
        self.gpu_orders = [*getattr(self, "gpu_orders", []), order]


def test_an_order_about_gpus_names_them_by_index_and_uuid() -> None:
    """A UUID that is not known is empty; a system without single GPUs refuses, but to lift one."""

    async def work(bus: MemoryBus) -> None:
        gpus = (GpuIdentity(index=0, uuid="GPU-a"), GpuIdentity(index=3, uuid="GPU-d"))
        record = NodeRecord(pool="p", node="n", hostname="gpu-7", gpus=gpus)
        await bus.put(NODES, node_key("p", "n"), msgspec.json.encode(record))
        able, unable = Cordoning(), Scheduler()
        await steps(bus, able).cordon_gpus(command("p", gpus=[3, 5]))
        await steps(bus, able).cordon_gpus(command("p"))
        placed, lifted = able.gpu_orders
        assert placed.gpus == (GpuReference(index=3, uuid="GPU-d"), GpuReference(index=5))
        assert (placed.node.hostname, placed.reason, lifted.gpus) == ("gpu-7", "XID 79", ())
        with pytest.raises(StepFailure, match="cannot keep work off a single GPU") as refused:
            await steps(bus, unable).cordon_gpus(command("p", gpus=[3]))
        assert refused.value.error == "INVALID"
        await steps(bus, unable).cordon_gpus(command("p"))

    with_bus(work)


def test_a_node_whose_gpus_cannot_be_returned_stays_cordoned() -> None:
    """The record goes on to say that the node is cordoned: a spare would take work unseen."""

    class Refusing(Cordoning):
        uncordoned = ""

        async def cordon_gpus(self, order: WorkloadOrder) -> None:
            raise StepFailure(f"refused: {order.key}")

        async def uncordon(self, order: WorkloadOrder) -> None:
            self.uncordoned = order.key

    async def work(bus: MemoryBus) -> None:
        refusing = Refusing()
        with pytest.raises(StepFailure, match="refused"):
            await steps(bus, refusing).return_node(command("p"))
        assert not refusing.uncordoned

    with_bus(work)


@pytest.mark.parametrize("recorded", [(), (3,)])
def test_an_uncordon_leaves_cordoned_the_gpus_that_are_recorded(recorded: tuple[int, ...]) -> None:
    """A store that was rolled back knows nothing of a GPU cordoned since: it gets work again."""

    async def work(bus: MemoryBus) -> None:
        record = NodeRecord(pool="p", node="n", cordoned_gpus=recorded)
        await bus.put(NODES, node_key("p", "n"), msgspec.json.encode(record))
        able, unable = Cordoning(), Scheduler()
        await steps(bus, able).return_node(command("p"))
        await steps(bus, unable).return_node(command("p"))
        (order,) = able.gpu_orders
        assert (tuple(each.index for each in order.gpus), order.key) == (recorded, "s/drain/gpus")

    with_bus(work)


@pytest.mark.parametrize(("spare", "uncordoned"), [(True, ["n"]), (False, [])])
def test_a_node_in_service_is_not_promoted_again(spare: bool, uncordoned: list[str]) -> None:
    """A saga whose log was lost promotes no node in service.

    An operator may have cordoned the node since.
    """

    class Uncordoning(Scheduler):
        async def uncordon(self, order: WorkloadOrder) -> None:
            returned.append(order.node.node)

    returned: list[str] = []

    async def work(bus: MemoryBus) -> None:
        record = NodeRecord(pool="p", node="n", state="active", spare=spare)
        await bus.put(NODES, node_key("p", "n"), msgspec.json.encode(record))
        await steps(bus, Uncordoning()).promote(command("p"))
        assert returned == uncordoned

    with_bus(work)
