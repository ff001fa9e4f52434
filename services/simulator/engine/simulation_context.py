"""Holds what one simulation shares: clock, randomness, server, history, processes, records.

The services load the simulated cloud and workload system as plugins, which find their simulation
here.
"""

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, TypeVar

import msgspec

from schemas import subjects
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import LimitedDecoder, decoder
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord, pool_key
from schemas.stream_specs import BucketSpec
from schemas.topology import HEALTH, INSTANCES, LEASES, NODES, POOLS, SAGAS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.port import Stored
from services.primitives.errors import Unavailable
from services.simulator.engine.fatal_messages import FatalMessages
from services.simulator.engine.network_faults import NetworkFaults
from services.simulator.engine.run_history import RunHistory
from services.simulator.engine.virtual_time import (
    TASK_OWNER,
    TaskOwner,
    VirtualClock,
    VirtualLoop,
)

T = TypeVar("T", bound=msgspec.Struct)
DECODED_MAX: Final = 20_000
"""Decoded records that are kept."""

_instances = LimitedDecoder(InstanceRecord)
_nodes = LimitedDecoder(NodeRecord)
_health = LimitedDecoder(HealthRecord)
_pools = decoder(PoolRecord)
CURRENT_SIMULATION: contextvars.ContextVar["SimulationContext"] = contextvars.ContextVar(
    "simulation"
)
"""The simulation that the current task belongs to."""

FLEET: Final = "simulated"
LATENCY_SECONDS_MAX: Final = 0.004
"""Of an ordinary call, each way."""
TIMEOUT_SECONDS: Final = 5.0
"""How long a caller waits for what never arrives."""
RENEWALS: Final = f"$KV.{LEASES.name}."
"""Lease renewals, once a second, do not count as effects."""
STEP_SECONDS: Final = 0.000_001
"""Between two deliveries over one connection: they stay in order."""


@dataclass(slots=True)
class Freeze:
    """A freeze begins in one of the next calls of a process after it has written a lease.

    Of several processes that wait for the same one, the first freezes alone.
    """

    lease: str
    """How its name begins."""
    calls: int
    """Which of the next calls it is."""
    seconds: float
    answered: bool = False
    """It begins once that call is answered, before its caller knows; the lease's own write is the
    first then."""
    over: bool = False


class StoredRecords:
    """Reads the buckets of one server."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    def pool(self, name: str) -> PoolRecord | None:
        """Return a pool's record."""
        return self._latest(POOLS, pool_key(name), _pools)

    def instance(self, key: str) -> InstanceRecord | None:
        """Return an instance's record."""
        return self._latest(INSTANCES, key, _instances)

    def node(self, key: str) -> NodeRecord | None:
        """Return a node's record."""
        return self._latest(NODES, key, _nodes)

    def node_revision(self, key: str) -> int:
        """The revision of a node's record; 0: there is none."""
        stream = self._server.state.streams.get(f"KV_{NODES.name}")
        stored = stream.last(f"$KV.{NODES.name}.{key}") if stream else None
        return stored.sequence if stored is not None else 0

    def has_log(self, saga: str) -> bool:
        """Return whether anything of a saga's log is stored."""
        stream = self._server.state.streams.get(SAGAS.name)
        return stream is not None and stream.last(subjects.saga_tree(saga)) is not None

    def instances(self) -> list[InstanceRecord]:
        """Return every instance's record."""
        return list(self._all(INSTANCES, _instances))

    def nodes(self) -> Iterator[NodeRecord]:
        """Yield every node's record, in the order of recording."""
        return self._all(NODES, _nodes)

    def live_nodes(self) -> Iterator[NodeRecord]:
        """Nodes whose records are not terminated."""
        return (each for each in self.nodes() if each.state != "terminated")

    def health_of(self, key: str) -> HealthRecord | None:
        """Return a node's health record."""
        return self._latest(HEALTH, key, _health)

    def health(self) -> Iterator[HealthRecord]:
        """Yield every node's health record."""
        return self._all(HEALTH, _health)

    def _latest(self, bucket: BucketSpec, key: str, of: LimitedDecoder[T]) -> T | None:
        stream = self._server.state.streams.get(f"KV_{bucket.name}")
        stored = stream.last(f"$KV.{bucket.name}.{key}") if stream else None
        return _decode(of, stored.data) if stored is not None and stored.data else None

    def _all(self, bucket: BucketSpec, of: LimitedDecoder[T]) -> Iterator[T]:
        stream = self._server.state.streams.get(f"KV_{bucket.name}")
        if stream is None:
            return
        for sequence in stream.sequences(f"$KV.{bucket.name}.>"):
            if data := stream.messages[sequence].data:
                yield _decode(of, data)


def written_pool(stream: str, stored: Stored) -> PoolRecord | None:
    """The pool's record that this write stores; None: it stores something else."""
    is_pool = stream == f"KV_{POOLS.name}" and f".{POOLS.name}.pool." in stored.subject
    found: PoolRecord | None = _decode(_pools, stored.data) if is_pool and stored.data else None
    return found


@lru_cache(maxsize=DECODED_MAX)
def _decode(of: LimitedDecoder[T], data: bytes) -> T:
    """Decode a record, which is immutable; checks read the same ones again and again."""
    return of.decode(data)


class SimulationContext:
    """Holds the context of one simulation."""

    def __init__(self, seed: str, history: RunHistory | None = None) -> None:
        self.seed = seed
        self.clock = VirtualClock()
        self.server = MemoryServer(self.clock)
        self.server.on_stored = self._on_stored
        self.history = history or RunHistory()
        self.network = NetworkFaults()
        self.fatal_messages = FatalMessages()
        self.watchers: list[Callable[[str, Stored], None]] = []
        """Called with stream and message after every write."""
        self.latency_seconds: float | None = None
        """How long every call takes, while deliveries take no time; None: both are drawn."""
        self.skew_seconds = 0.0
        """How wrong a clock can be, in seconds; the server's is right."""
        self.reconnected_at = 0.0
        """When a process last had its connection back, and began to read what it had missed."""
        self._clocks: dict[str, VirtualClock] = {}
        self.parts: dict[str, Any] = {}
        """Plugins look up `cloud` and `workload` here."""

    def chance(self, what: str) -> random.Random:
        """Return a random source for one use, independent of all others."""
        return random.Random(f"{self.seed}/{what}")  # noqa: S311 - repeatable is the point

    def clock_of(self, name: str) -> VirtualClock:
        """The clock of one host; its error stays the same over restarts."""
        if name not in self._clocks:
            skew = self.chance(f"clock/{name}").uniform(-self.skew_seconds, self.skew_seconds)
            self._clocks[name] = VirtualClock(skew)
        return self._clocks[name]

    def now(self) -> float:
        """Return the virtual seconds since the start."""
        return asyncio.get_running_loop().time()

    def note(self, what: str) -> None:
        """Add a line to the history."""
        self.history.note(self.now(), what)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        self.history.add_stored(self.now(), stream, stored)
        for each in self.watchers:
            each(stream, stored)


class SimulatedProcess(TaskOwner):
    """Follows one process from its start to its end.

    A crash ends every task of the process between two effects: what was stored before stays, and
    nothing follows. The remaining tasks of a dead process reach nothing.
    """

    def __init__(self, simulation: SimulationContext, name: str) -> None:
        super().__init__()
        self.simulation = simulation
        self.name = name
        self.dead = False
        self.effects = 0
        self.dies_after: int | None = None
        """The effect that is its last."""
        self.stalls_after: tuple[int, float] | None = None
        """The effect after which it stalls, and for how many seconds."""
        self.freezes_after: Freeze | None = None
        self._calls_left = 0
        """Until it freezes; 0: it does not."""
        self.stalled: Callable[[], None] | None = None
        """Called when it stalls or freezes."""
        self._stalled_until = 0.0
        self.died: Callable[[], None] | None = None
        """Called when it crashes."""
        self._number = simulation.server.number()
        self._arrival = 0.0
        self._was_up = self.up
        context = contextvars.copy_context()
        context.run(TASK_OWNER.set, self)
        context.run(CURRENT_SIMULATION.set, simulation)
        self.context = context
        self.bus: MemoryBus = context.run(MemoryBus, simulation.server, self)

    @cached_property
    def _chance(self) -> random.Random:
        """Random source of its connection; made only when needed."""
        return self.simulation.chance(f"link/{self.name}/{self._number}")

    def spawn(self, work: Awaitable[Any]) -> "asyncio.Task[Any]":
        """Do work as this process."""
        return asyncio.get_running_loop().create_task(_await(work), context=self.context)

    def crash(self) -> None:
        """End now, wherever its tasks are."""
        if self.dead:
            return
        self.dead = True
        self.bus.disconnected()
        self.simulation.server.silence(self.bus.context)
        for task in list(self.tasks):
            task.cancel()
        if self.died is not None:
            self.died()

    async def effect(self, what: str) -> None:
        """Count an effect outside of the process, and crash where it was to be the last."""
        self.effects += 1
        if self.dies_after is not None and self.effects >= self.dies_after and not self.dead:
            self.simulation.note(f"{self.name} dies after {what}")
            self.crash()
        if self.stalls_after is not None and self.effects >= self.stalls_after[0]:
            self.simulation.note(f"{self.name} stalls after {what}")
            self.stall(self.stalls_after[1])
        await self.alive()

    @property
    def stalled_now(self) -> bool:
        """Return whether the process stalls."""
        return self._stalled_until > self.simulation.now()

    def has_stalled_within(self, seconds: float) -> bool:
        """Return whether the process stalls, or has stalled so recently."""
        return self._stalled_until > self.simulation.now() - seconds > 0

    def stall(self, seconds: float) -> None:
        """Make no call, and get no answer and no delivery, for a while."""
        self.stalls_after = None
        self._stalled_until = self.simulation.now() + seconds
        if self.stalled is not None:
            self.stalled()

    def _freezes_now(self, *, answered: bool) -> bool:
        """Count a call, or an answer, and say whether the process freezes in it."""
        freeze = self.freezes_after
        if not self._calls_left or freeze is None or freeze.answered is not answered:
            return False
        if freeze.over:
            self.freezes_after, self._calls_left = None, 0
            return False
        self._calls_left -= 1
        return not self._calls_left

    def _freeze(self) -> None:
        """Stop between two awaits, and go on later."""
        assert self.freezes_after is not None
        self.freezes_after.over, seconds = True, self.freezes_after.seconds
        self.simulation.note(f"{self.name} freezes for {seconds:.1f} s")
        self.freezes_after, self._calls_left = None, 0
        self.stall(seconds)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.freeze(self, seconds)

    async def alive(self) -> None:
        """Cancel the current task if the process is dead."""
        self._alive()

    def _alive(self) -> None:
        if self.dead:
            raise asyncio.CancelledError

    def update_connection(self) -> None:
        """The connection was cut, or is back."""
        if self.up != self._was_up:
            self._was_up = self.up
            if self.up:
                self.simulation.reconnected_at = self.simulation.now()
                self.bus.reconnected()
            else:
                self.bus.disconnected()

    # --- the connection ---------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        """Return whether the server can be reached now."""
        return not self.dead and not self.simulation.network.is_cut(self.name)

    async def there(self, call: str, about: str) -> None:
        """Bring a request to the server; Unavailable where it never arrives."""
        del call
        self._alive()
        if self._freezes_now(answered=False):
            self._freeze()
        elif self.stalled_now:
            await self._running()
        network, chance = self.simulation.network, self._chance
        seconds = self.simulation.latency_seconds
        if seconds is None:
            seconds = chance.random() * LATENCY_SECONDS_MAX
        if slow := network.slow.get(self.name):
            seconds += chance.random() * slow
        await asyncio.sleep(seconds)
        self._alive()
        if (share := network.lost_requests.get(self.name)) and chance.random() < share:
            await self._lose(about)
        if not self.up:
            raise Unavailable(f"{about}: the connection was lost")

    async def back(self, call: str, about: str) -> None:
        """Bring the answer back; Unavailable where it is lost."""
        if call == "store" and not about.startswith(RENEWALS):
            await self.effect(about)
        elif call == "store" and self.freezes_after is not None and not self._calls_left:
            freeze, lease = self.freezes_after, about.removeprefix(RENEWALS)
            self._calls_left = freeze.calls if lease.startswith(freeze.lease) else 0
        self._alive()
        if self._freezes_now(answered=True):
            self._freeze()
            await asyncio.sleep(0)  # what the answer leads to is done before timers that came due
        if self.stalled_now:
            await self._running()
        network, chance = self.simulation.network, self._chance
        if not self.up:
            raise Unavailable(f"{about}: the connection was lost")
        if (share := network.lost_answers.get(self.name)) and chance.random() < share:
            await self._lose(about)

    async def _running(self) -> None:
        """Wait for the end of a stall."""
        while (left := self._stalled_until - self.simulation.now()) > 0:
            await asyncio.sleep(left)
            self._alive()

    async def _lose(self, about: str) -> None:
        await asyncio.sleep(TIMEOUT_SECONDS)
        await self.alive()
        raise Unavailable(f"{about}: no answer in {TIMEOUT_SECONDS:g} s")

    def settles(self, word: str, about: str) -> bool:
        """Return whether an acknowledgement, which no caller waits for, arrives."""
        del word, about
        share = self.simulation.network.lost_acks.get(self.name, 0.0)
        return not share or self._chance.random() >= share

    def arrives(self, about: str, hand_over: Callable[[], None]) -> None:
        """Hand a delivery over a little later, after those before it."""
        del about
        loop = asyncio.get_running_loop()
        at = loop.time()
        if self.simulation.latency_seconds is None:
            at += self._chance.random() * LATENCY_SECONDS_MAX
        self._arrival = max(at, self._arrival + STEP_SECONDS, self._stalled_until)
        loop.call_at(self._arrival, hand_over, context=self.context)


def current_process() -> SimulatedProcess:
    """The process that the current task belongs to."""
    process = TASK_OWNER.get()
    assert isinstance(process, SimulatedProcess)
    return process


async def _await(work: Awaitable[Any]) -> Any:
    return await work
