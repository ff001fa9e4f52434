"""The provisioner's tests share inputs, a service on the real bus, and wrappers that end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from schemas import subjects
from schemas.instance_records import InstanceRecord
from schemas.instance_type_catalogue import InstanceTypes
from schemas.messages import encode
from schemas.node_records import node_key
from schemas.node_work import NODE_WORK, NodeWorkAnswer, NodeWorkQuery
from schemas.pool_records import FLEET_KEY, FleetRecord, PoolRecord, pool_key
from schemas.saga_log_entries import SagaEntry, SagaStarted, StepStarted, UndoStarted, saga_codec
from schemas.saga_params import LaunchSpec, SagaParams
from schemas.settings import (
    AgentSettings,
    FleetBudgetSpec,
    NatsSettings,
    PluginSettings,
    PoolSpec,
    Settings,
)
from schemas.step_data import ProvisionInputs, TerminateInputs
from schemas.subjects import saga_tree
from schemas.topology import INSTANCES, LEASES, POOLS, SAGAS
from services.bus.port import Bus, Headers
from services.pool_manager.pool_store import Store
from services.pool_manager.removal_proposals import RemovalProposals
from services.primitives.clock import Clock, SystemClock
from services.provisioner.bootstrap.user_data import BootstrapTemplates
from services.provisioner.instances.instance_decisions import launch_token
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.launch.gang_barrier import GangBarrier
from services.provisioner.launch.launch_lease import PREFIX
from services.provisioner.offerings.offering_allocator import OfferingAllocator
from services.provisioner.offerings.offering_catalogue import OfferingCatalogue
from services.provisioner.offerings.offering_scorer import OfferingScorer
from services.provisioner.offerings.offering_store import OfferingStore
from services.provisioner.offerings.placements import Placements
from services.provisioner.offerings.scheduler_plugins import Schedulers
from services.provisioner.provider_client.provider import (
    Environment,
    Provider,
    ProvisionRequest,
)
from services.provisioner.provider_client.provider_calls import ProviderCalls, Providers
from services.provisioner.providers.fake import FakeProvider
from services.provisioner.saga_step_handlers import SagaStepHandlers
from services.provisioner.service import assemble
from services.provisioner.time_limits import TimeLimits
from services.runtime.consumer_loop import ConsumerLoop
from services.runtime.process import Context
from services.runtime.process_metrics import Instruments
from services.runtime.tracing import Tracing
from services.saga.participant import Command
from services.saga.saga_log import append

FLEET = "fleet-one"
QUICK = TimeLimits(
    call_timeout_seconds=60.0,
    retry_first_seconds=0.01,
    retry_max_seconds=0.05,
    leak_after_seconds=0.1,
    sweep_interval_seconds=0.05,
    sweep_grace_seconds=0.0,
    sweep_look_seconds=0.01,
)
SECONDS_MAX = 60.0
BACKGROUND: list[asyncio.Future[None]] = []
"""Tasks that end with the loop of their test."""


async def record_fleet(bus: Bus) -> None:
    """Record the fleet's ID."""
    await bus.put(POOLS, FLEET_KEY, encode(FleetRecord(id=FLEET)))


async def serve_pool_manager(bus: Bus, spec: PoolSpec | None = None) -> None:
    """Answer proposals to remove machines of pool `web`, of whose work nothing is known to run."""
    spec = spec or PoolSpec(provider="fake", instance_type="h100", min_nodes=1, max_nodes=9)
    await bus.put(POOLS, pool_key("web"), encode(PoolRecord(name="web", spec=spec, desired=1)))
    await answer_proposals(bus, "pool-manager")

    async def idle(data: bytes, _: Headers) -> bytes:
        asked = msgspec.json.decode(data, type=NodeWorkQuery)
        return encode(NodeWorkAnswer(idle=asked.nodes))

    await bus.serve("notifier", "", {subjects.query(NODE_WORK): idle})


async def answer_proposals(bus: Bus, service: str) -> None:
    """Answer proposals to remove machines, as one replica of the pool-manager."""
    store = Store(bus, FleetBudgetSpec())
    store.trust(store.losses)
    BACKGROUND.append(asyncio.ensure_future(store.nodes.run()))
    await bus.serve(service, "", RemovalProposals(bus, SystemClock(), store).endpoints())


async def recorded(bus: Bus, node: str = "web-1") -> InstanceRecord:
    """Return the record of a node; there must be one."""
    found = await InstanceStore(bus).get(f"web.{node}")
    assert found is not None
    return found


def fake(**options: Any) -> FakeProvider:
    """A fake provider named `fake`."""
    environment = Environment(
        name="fake", fleet=FLEET, nats_url="nats://127.0.0.1:1", data_dir=Path()
    )
    return FakeProvider(options=FakeProvider.Options(**options), environment=environment)


def launch(**changes: Any) -> LaunchSpec:
    """Return the launch that the tests order."""
    plain = {"fleet": FLEET, "provider": "fake", "instance_type": "h100", "gpu_count": 8}
    return LaunchSpec(**(plain | changes))


def token_of(name: str = "web-1", fleet: str = FLEET) -> str:
    """Return the launch token of a node of pool `web`."""
    return launch_token(fleet, "web", name)


async def forget_instances(bus: Bus) -> None:
    """Remove every record, because the next simulated cloud gives the same IDs again."""
    for entry in await bus.entries(INSTANCES):
        await bus.delete(INSTANCES, entry.key)


def request(name: str = "web-1", **changes: Any) -> ProvisionRequest:
    """Return the request that the tests make of a provider."""
    values: dict[str, Any] = {
        "name": name,
        "fleet": FLEET,
        "pool": "web",
        "node": name,
        "token": token_of(name, changes.get("fleet", FLEET)),
        "instance_type": "h100",
        "gpu_count": 2,
    }
    return ProvisionRequest(**(values | changes))


def provision(node: str, saga: str = "", **changes: Any) -> Command:
    """The command to launch a node's instance."""
    timeout_seconds = changes.pop("timeout_seconds", 60.0)
    inputs = ProvisionInputs(
        pool="web", node=node, launch=launch(**changes), timeout_seconds=timeout_seconds
    )
    return command(saga or f"scale-up-{node}", "provision", inputs)


def terminate(node: str, saga: str = "") -> Command:
    """The command to remove it, or to undo its launch."""
    inputs = TerminateInputs(pool="web", node=node)
    return command(saga or f"scale-down-{node}", "terminate", inputs)


def command(saga: str, step: str, inputs: Any) -> Command:
    """A command as the participant hands it over."""
    return Command(
        saga=saga, step=step, inputs=msgspec.to_builtins(inputs), id=f"{saga}.{step}.started"
    )


def steps(
    bus: Bus,
    provider: Provider,
    limits: TimeLimits = QUICK,
    templates: BootstrapTemplates | None = None,
) -> SagaStepHandlers:
    """Return the step handlers of one replica with one provider."""
    return step_handlers(bus, providers(provider, limits), limits, templates)


def step_handlers(
    bus: Bus,
    calls: Providers,
    limits: TimeLimits = QUICK,
    templates: BootstrapTemplates | None = None,
    types: InstanceTypes = InstanceTypes(),  # noqa: B008 - it is frozen
    fleet_cap: float = 0.0,
    configured: Mapping[str, PluginSettings] = MappingProxyType({}),
    clock: Clock = SystemClock(),  # noqa: B008 - it has no state
) -> SagaStepHandlers:
    """Return the step handlers of one replica at these providers."""
    store = InstanceStore(bus)
    scorer = OfferingScorer(store, clock, OfferingCatalogue(types, calls.traits()))
    offerings, schedulers = OfferingStore(bus, clock), Schedulers({}, None)
    placements = Placements(clock, store, offerings)
    allocator = OfferingAllocator(
        bus, clock, store, offerings, scorer, schedulers, placements, fleet_cap
    )
    templates = templates or BootstrapTemplates(NatsSettings(), AgentSettings(), Path())
    gangs = GangBarrier(clock, store, offerings, placements)
    return SagaStepHandlers(
        *(bus, clock, store, calls, limits, templates, allocator, gangs, offerings, ""), configured
    )


def providers(provider: Provider, timing: TimeLimits = QUICK) -> Providers:
    """One provider, as the service holds it."""
    calls = ProviderCalls(provider, call_timeout_seconds=timing.call_timeout_seconds)
    return Providers({provider.name: calls})


def context(bus: Bus, replica: str = "provisioner-1", settings: Settings | None = None) -> Context:
    """Return the context that the process gives its service."""
    return Context(
        name="provisioner",
        replica=replica,
        bus=bus,
        clock=SystemClock(),
        settings=settings or Settings(),
        settings_file=None,
        instruments=Instruments(),
        tracing=Tracing("provisioner"),
    )


@asynccontextmanager
async def running(
    bus: Bus,
    provider: Provider,
    timing: TimeLimits = QUICK,
    replica: str = "provisioner-1",
    types: InstanceTypes = InstanceTypes(),  # noqa: B008 - it is frozen
) -> AsyncIterator[None]:
    """Run one replica of the service on the real bus."""
    given = context(bus, replica)
    service = assemble(given, providers(provider, timing), timing, types)
    loops = [
        ConsumerLoop(bus, each, given.clock, given.instruments, given.tracing).run
        for each in service.consumers
    ]
    tasks = [asyncio.ensure_future(each()) for each in (*service.tasks, *loops)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert service.close is not None
        await service.close()


async def start_saga(bus: Bus, saga: str) -> int:
    """Append the first entry of a saga's log, as the coordinator does."""
    params = SagaParams(pool="web", node="web-1")
    entry = SagaStarted(
        id=f"{saga}.started", time=datetime.now(UTC), saga=saga, kind="replace", params=params
    )
    return await append(bus, entry, 0, {})


async def start_step(bus: Bus, wanted: Command, expected: int = 0, *, undo: bool = False) -> int:
    """Append a command to its saga's log; to a new log where nothing is expected."""
    expected = expected or await start_saga(bus, wanted.saga)
    kind = UndoStarted if undo else StepStarted
    entry = kind(
        id=f"{wanted.saga}.{wanted.step}.{'undo-' if undo else ''}started",
        time=datetime.now(UTC),
        saga=wanted.saga,
        step=wanted.step,
        inputs=wanted.inputs,
    )
    return await append(bus, entry, expected, {})


async def answer_to(bus: Bus, saga: str, after: int) -> tuple[SagaEntry, int]:
    """Return the first entry of a saga's log after a sequence, and the entry's own sequence."""
    async with asyncio.timeout(SECONDS_MAX):
        async for stored in bus.follow(SAGAS.name, [saga_tree(saga)], "all"):
            if stored.sequence > after:
                entry = saga_codec.decode(stored.data)
                assert isinstance(entry, SagaEntry)
                return entry, stored.sequence
    raise AssertionError("the log ended")


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition, looking often."""
    async with asyncio.timeout(SECONDS_MAX):
        while not await condition():
            await asyncio.sleep(0.01)


class Killed(BaseException):
    """The process died here."""


class Life:
    """Counts effects, and ends at one of them."""

    def __init__(self, ends_at: int) -> None:
        """End at the so-manieth point; 0: never."""
        self.ends_at = ends_at
        self.points = 0

    def point(self) -> None:
        """A place where a process may die."""
        self.points += 1
        if self.points == self.ends_at:
            raise Killed


class Mortal:
    """Passes calls on, and dies before or after one of the effects."""

    EFFECTS = frozenset(
        {"create", "update", "publish", "get", "last", "provision", "terminate", "list"}
    )

    def __init__(self, real: Any, life: Life, effects: Iterable[str] = EFFECTS) -> None:
        """Wrap a bus or a provider, or a client of one with effects of its own."""
        self._real = real
        self._life = life
        self._effects = frozenset(effects)

    def __getattr__(self, name: str) -> Any:
        """The same method, mortal."""
        found = getattr(self._real, name)
        if name not in self._effects:
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._life.point()
            result = await found(*args, **kwargs)
            self._life.point()
            return result

        return call


async def lapsed(bus: Bus, node: str) -> None:
    """The lease of a dead replica expires, sooner than usual."""
    await bus.delete(LEASES, f"{PREFIX}{node_key('web', node)}")


class Held:
    """A provider of which one call takes effect only when released."""

    def __init__(self, real: FakeProvider, call: str = "provision") -> None:
        """Wrap a provider."""
        self._real = real
        self._call = call
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        """Everything else passes."""
        found = getattr(self._real, name)
        if name != self._call:
            return found

        async def held(*arguments: Any) -> Any:
            self.entered.set()
            await self.go_on.wait()
            return await found(*arguments)

        return held
