"""Fixtures of the bus suite: every bus there is, and the consumer loop over it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.node_events import node_codec
from schemas.settings import NatsSettings
from schemas.stream_specs import DurableSpec
from schemas.topology import EVENTS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.nats.archive_bus import ArchiveBus
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.port import Bus
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
from services.runtime.consumer_loop import Consumer, ConsumerLoop, Handle, Received
from services.runtime.crash_guard import CrashGuard
from services.runtime.process_metrics import Instruments
from services.runtime.sender_quota import SenderLimit
from services.runtime.tracing import Tracing
from tests.support.clients import archive_connected
from tests.support.cutting import Cuttable, MemoryLine, Proxy


async def collect(stream: AsyncIterator[Any], count: int) -> list[Any]:
    """The first `count` of what an endless stream yields."""
    found = []
    async with asyncio.timeout(60), aclosing(stream):
        async for each in stream:
            found.append(each)
            if len(found) == count:
                break
    return found


@pytest.fixture
async def memory_server() -> AsyncIterator[MemoryServer]:
    """Yield the in-memory server in real time."""
    server = MemoryServer(SystemClock())
    yield server
    server.close()


@pytest.fixture
async def memory_bus(memory_server: MemoryServer) -> AsyncIterator[MemoryBus]:
    """A connection to it, with the whole topology set up."""
    connected = MemoryBus(memory_server, PerfectLink())
    await set_up(connected, SystemClock(), replicas=1)
    yield connected
    await connected.close()


@pytest.fixture(params=["nats", "memory"])
def any_bus(request: pytest.FixtureRequest) -> Bus:
    """Every implementation of the bus: what is asserted here holds for all of them."""
    buses = {"nats": "bus", "memory": "memory_bus"}
    found: Bus = request.getfixturevalue(buses[request.param])
    return found


@pytest.fixture
async def another_bus(
    any_bus: Bus, request: pytest.FixtureRequest
) -> AsyncIterator[Callable[[], Awaitable[Bus]]]:
    """Connect to the same server once more."""
    made: list[Bus] = []

    async def connect() -> Bus:
        if isinstance(any_bus, MemoryBus):
            found: Bus = MemoryBus(request.getfixturevalue("memory_server"), PerfectLink())
        else:
            url = request.getfixturevalue("server").url
            options = ConnectOptions(settings=NatsSettings(url=url), name="another")
            found = await NatsBus.connect(options)
        made.append(found)
        return found

    yield connect
    for each in made:
        await each.close()


@pytest.fixture
async def durable(any_bus: Bus) -> Callable[..., Any]:
    """Make a durable on EVENTS, with the options that the test needs."""

    async def make(
        filter_: str, *, name: str = "test-durable", ack_wait_seconds: float = 30.0, **more: Any
    ) -> DurableSpec:
        spec = DurableSpec(
            stream=EVENTS.name,
            name=name,
            description="a test's",
            filters=(filter_,),
            ack_wait_seconds=ack_wait_seconds,
            **more,
        )
        await any_bus.admin(
            f"CONSUMER.DURABLE.CREATE.{spec.stream}.{spec.name}",
            {"stream_name": spec.stream, "config": spec.config(1)},
        )
        return spec

    return make


@dataclass(slots=True)
class Handler:
    """Notes what a consumer loop hands it, and fails on demand."""

    instruments: Instruments = field(default_factory=Instruments)
    received: list[Received[Any]] = field(default_factory=list)
    done: list[Received[Any]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    """Raised by the next calls, in order."""
    holds: dict[str, asyncio.Event] = field(default_factory=dict)
    """Message id -> what its handling waits for."""
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def __call__(self, received: Received[Any]) -> None:
        self.received.append(received)
        await self._outcome()
        if self.failures:
            raise self.failures.pop(0)
        if hold := self.holds.get(received.message.id):
            await hold.wait()
        self.done.append(received)
        await self._outcome()

    async def _outcome(self) -> None:
        async with self.moved:
            self.moved.notify_all()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until something about what was received is true."""
        async with asyncio.timeout(60), self.moved:
            await self.moved.wait_for(condition)

    def ids(self) -> list[str]:
        """Ids of the messages that were handled to the end, in order."""
        return [each.message.id for each in self.done]

    def count(self, durable: str, outcome: str) -> float:
        """Return how many messages were settled with an outcome."""
        return self.instruments.handled.labels(durable, outcome)._value.get()


@pytest.fixture
def handler() -> Handler:
    """Return the handler that the loop calls."""
    return Handler()


@pytest.fixture
def looping():
    """Run a consumer loop over a bus while the test looks."""

    @asynccontextmanager
    async def run(
        bus: Bus,
        spec: DurableSpec,
        handler: Handler,
        *,
        finish_seconds: float = 0.05,
        limit: SenderLimit | None = None,
        guard: CrashGuard | None = None,
        make_up: Handle | None = None,
    ) -> AsyncIterator[None]:
        consumer = Consumer(
            durable=spec,
            decode=lambda stored: node_codec.decode(stored.data),
            handle=handler,
            key=lambda stored: stored.subject,
            finish_seconds=finish_seconds,
            limit=limit,
            make_up=make_up,
        )
        loop = ConsumerLoop(
            bus, consumer, SystemClock(), handler.instruments, Tracing("test"), guard
        )
        guarding = asyncio.create_task(guard.run()) if guard else None
        task = asyncio.create_task(loop.run())
        try:
            yield
        finally:
            for each in filter(None, (task, guarding)):  # as a process stops
                each.cancel()
                (end,) = await asyncio.gather(each, return_exceptions=True)
                assert isinstance(end, asyncio.CancelledError), end

    return run


@pytest.fixture
async def source(server: EmbeddedServer) -> AsyncIterator[ArchiveBus]:
    """Yield an administrator's connection to a server with the topology."""
    connected = await archive_connected(server)
    await set_up(connected, SystemClock(), replicas=1)
    yield connected
    await connected.close()


@pytest.fixture
async def target_server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """Yield a server without a stream."""
    empty = EmbeddedServer(tmp_path / "empty", sync=False)
    await empty.start()
    yield empty
    await empty.kill()


@pytest.fixture
async def target(target_server: EmbeddedServer) -> AsyncIterator[ArchiveBus]:
    """Yield an administrator's connection to an empty server."""
    connected = await archive_connected(target_server)
    yield connected
    await connected.close()


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Show structs as JSON: a difference in one field is then seen."""
    if op == "==" and isinstance(left, msgspec.Struct) and isinstance(right, msgspec.Struct):
        return [str(msgspec.json.encode(left)), "differs from", str(msgspec.json.encode(right))]
    return None


@pytest.fixture
async def cuttable_nats(server: EmbeddedServer, bus: NatsBus) -> AsyncIterator[Cuttable]:
    """Yield a connection to the real server through a proxy."""
    proxy = Proxy(int(server.url.rsplit(":", 1)[1]))
    await proxy.restore()
    options = ConnectOptions(settings=NatsSettings(url=f"nats://127.0.0.1:{proxy.port}"), name="c")
    connected = await NatsBus.connect(options)
    yield Cuttable(connected, proxy, bus)
    await connected.close()
    await proxy.cut()


@pytest.fixture
async def cuttable_memory(
    memory_server: MemoryServer, memory_bus: MemoryBus
) -> AsyncIterator[Cuttable]:
    """A connection to the in-memory server over a link that can be cut."""
    line = MemoryLine()
    line.bus = MemoryBus(memory_server, line)
    yield Cuttable(line.bus, line, memory_bus)
    await line.bus.close()


@pytest.fixture(params=["nats", "memory"])
def cuttable(request: pytest.FixtureRequest) -> Cuttable:
    """A bus whose connection can be lost, on every implementation, and another beside it."""
    found: Cuttable = request.getfixturevalue(f"cuttable_{request.param}")
    return found
