"""The outbox publishes each event of a pool decision once, whatever interrupts a replica.

Reconciler replicas on the in-memory bus; between any two writes of one replica another replica
decides or writes, or the replica dies.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.messages import decoder, encode
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import BreakerClosed, PoolEvent, Scaled, pool_codec
from schemas.pool_records import PoolRecord, pool_key
from schemas.settings import BudgetSpec, FleetBudgetSpec, PoolSpec
from schemas.topology import EVENTS, NODES, POOLS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.pool_manager.planner import event_outbox
from services.pool_manager.planner.remediator import REPLACE
from services.pool_manager.pool_store import Store
from services.pool_manager.reconciler import Reconciler
from services.primitives.clock import SystemClock
from services.primitives.errors import BusError, Unavailable
from services.runtime.stop_watch import StopWatch
from services.saga.coordinator import Coordinator
from services.saga.definitions import DEFINITIONS

SIZE, UNHEALTHY = 8, 6
SPEC = PoolSpec(
    provider="test",
    instance_type="t",
    min_nodes=SIZE,
    max_nodes=SIZE,
    budget=BudgetSpec(max_quarantined=0),
)
CLOCK = SystemClock()
STORED = 12
"""More writes than one pass of the reconciler makes."""

Interruption = Callable[[], Coroutine[Any, Any, None]]


class InterruptedLink(PerfectLink):
    """A connection that calls a function right before or after the n-th write."""

    def __init__(self) -> None:
        """Interrupt nothing yet."""
        self.at = 0
        self.before: Interruption | None = None
        self.after: Interruption | None = None

    async def there(self, call: str, about: str) -> None:
        """Interrupt before the write."""
        await super().there(call, about)
        self.at -= call == "store"
        if call == "store" and self.at == 0 and self.before is not None:
            await self.before()

    async def back(self, call: str, about: str) -> None:
        """Interrupt after the write, before its reply."""
        del about
        if call == "store" and self.at == 0 and self.after is not None:
            await self.after()


class Replica:
    """A replica has one reconciler and store of its own."""

    def __init__(self, server: MemoryServer, link: PerfectLink, budget: FleetBudgetSpec) -> None:
        """Create its store and reconciler."""
        self.bus = MemoryBus(server, link)
        self.store = Store(self.bus, budget)
        self.store.trust(0)
        coordinator = Coordinator(
            self.bus, CLOCK, DEFINITIONS, _no_waiter, _no_effect, "pool-manager"
        )
        self.reconciler = Reconciler(
            *(self.bus, CLOCK, self.store, lambda: coordinator, lambda _: REPLACE, 9.0),
            *(lambda _: {}, lambda _: None, StopWatch(self.bus)),
        )


async def _no_waiter(*_: Any) -> None:
    """Stand-in: no saga waits for a node."""


async def _no_effect(*_: Any) -> None:
    """Stand-in: no saga has effects."""


@asynccontextmanager
async def replica(
    server: MemoryServer, link: PerfectLink, budget: FleetBudgetSpec | None = None
) -> AsyncIterator[Replica]:
    """A replica that mirrors the nodes."""
    created = Replica(server, link, budget or FleetBudgetSpec())
    view = asyncio.create_task(created.store.nodes.run())
    yield created
    view.cancel()
    await asyncio.gather(view, return_exceptions=True)


class Fleet:
    """A pool most of whose nodes get the same fault, recover, and get it again."""

    def __init__(self, server: MemoryServer) -> None:
        """Connect to the server."""
        self.server = server
        self.bus = MemoryBus(server, PerfectLink())

    async def create(self) -> None:
        """Record the pool, with all nodes healthy."""
        await set_up(self.bus, CLOCK, replicas=1)
        record = PoolRecord(name="training", spec=SPEC, desired=SIZE, serial=SIZE)
        await self.bus.create(POOLS, pool_key("training"), encode(record))
        await self.judge(unhealthy=0)

    async def judge(self, *, unhealthy: int) -> None:
        """Write each node's health."""
        now = datetime.now(UTC)
        for number in range(SIZE):
            is_unhealthy = number < unhealthy
            node = NodeRecord(
                pool="training",
                node=f"n{number}",
                state="active",
                health="unhealthy" if is_unhealthy else "healthy",
                health_at=now,
                health_kind="xid" if is_unhealthy else "",
                health_code=79 if is_unhealthy else 0,
                health_action="replace" if is_unhealthy else "none",
                admitted_at=now,
            )
            await self.bus.put(NODES, node_key("training", node.node), encode(node))

    async def change_record(self) -> None:
        """Another replica writes the pool's record, as at the end of a saga."""
        entry = await self.bus.get(POOLS, pool_key("training"))
        assert entry is not None
        record = msgspec.json.decode(entry.value)
        record["serial"] += 1
        value = msgspec.json.encode(record)
        await self.bus.update(POOLS, pool_key("training"), value, entry.revision)

    async def reconcile_elsewhere(self) -> None:
        """Another replica reconciles."""
        async with replica(self.server, PerfectLink()) as other:
            await other.reconciler.reconcile("training")

    async def facts(self) -> list[PoolEvent]:
        """Return the stored pool events, in order."""
        found = await self.bus.read(EVENTS.name, subjects.pool_events_of("training"))
        events = [pool_codec.decode(each.data) for each in found]
        return [each for each in events if isinstance(each, PoolEvent)]


async def die() -> None:
    """The process ends here."""
    raise Unavailable("killed")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["die", "change_record", "reconcile_elsewhere", "recover_nodes"])
async def test_each_event_is_published_once_despite_interruptions(when: str, what: str) -> None:
    """Opened and closed, twice, each with its own ID, wherever the interruption is."""
    for at in range(1, STORED):
        fleet = Fleet(MemoryServer(CLOCK))
        await fleet.create()
        interruptions: dict[str, Interruption] = {
            "die": die,
            "change_record": fleet.change_record,
            "reconcile_elsewhere": fleet.reconcile_elsewhere,
            "recover_nodes": lambda fleet=fleet: recover_nodes(fleet),
        }
        link = InterruptedLink()
        setattr(link, when, interruptions[what])
        async with replica(fleet.server, link) as interrupted:
            for count in (UNHEALTHY, 0, UNHEALTHY, 0):
                await fleet.judge(unhealthy=count)
                link.at = at
                try:
                    await interrupted.reconciler.reconcile("training")
                except BusError:
                    assert what == "die"
                await fleet.reconcile_elsewhere()
        published = await fleet.facts()
        assert len(published) == len({each.id for each in published})
        assert _alternates(published), (at, published)
        if what != "recover_nodes":
            assert {
                ("BreakerOpened", ""): 2,
                ("Incident", "opened"): 2,
                ("Incident", "closed"): 2,
                ("BreakerClosed", ""): 2,
            } == Counter((type(each).__name__, getattr(each, "status", "")) for each in published)


async def recover_nodes(fleet: Fleet) -> None:
    """The pending event is outdated: another replica sees the recovered nodes first."""
    await fleet.judge(unhealthy=0)
    await fleet.reconcile_elsewhere()
    await fleet.change_record()


def _alternates(published: list[PoolEvent]) -> bool:
    """Whether everything opened is closed before it is opened again."""
    breaker = [isinstance(each, BreakerClosed) for each in published if "breaker" in each.id]
    incident = [
        getattr(each, "status", "") == "closed" for each in published if "incident" in each.id
    ]
    return all(line == [n % 2 == 1 for n in range(len(line))] for line in (breaker, incident))


async def test_published_events_are_removed_from_the_record() -> None:
    """An event leaves in a write of its own when no other follows, and is not published again."""
    fleet = Fleet(MemoryServer(CLOCK))
    await fleet.create()
    async with replica(fleet.server, PerfectLink()) as deciding:
        await fleet.judge(unhealthy=UNHEALTHY)
        await deciding.reconciler.reconcile("training")
        found = await deciding.store.pool("training")

    assert found is not None
    assert () == found[0].pending_events
    assert {"BreakerOpened", "Incident"} == {type(each).__name__ for each in await fleet.facts()}


async def test_published_events_are_removed_with_the_next_write() -> None:
    """No write is spent on the removal while another decision is waiting."""
    fleet = Fleet(MemoryServer(CLOCK))
    await fleet.create()
    link = InterruptedLink()
    async with replica(fleet.server, link) as deciding:
        waiting: list[asyncio.Task[None]] = []

        async def others_ask() -> None:
            waiting.append(asyncio.create_task(deciding.reconciler.reconcile("training")))

        link.before, link.at = others_ask, 1
        await fleet.judge(unhealthy=UNHEALTHY)
        before = await fleet.bus.last_sequence("KV_POOLS")
        await deciding.reconciler.reconcile("training")
        await asyncio.gather(*waiting)
        found = await deciding.store.pool("training")

    assert found is not None
    assert () == found[0].pending_events
    # The claim on the fleet's budget, the decision, and the one after it.
    assert before + 3 == found[1]
    assert len({each.id for each in await fleet.facts()}) == len(await fleet.facts())


async def test_events_left_in_the_record_are_published() -> None:
    """A size change of the autoscaler is published though its replica dies after the write."""
    fleet = Fleet(MemoryServer(CLOCK))
    await fleet.create()
    event = Scaled(id="s", time=datetime.now(UTC), pool="training", previous=7, nodes=8)
    record = PoolRecord(name="training", spec=SPEC, desired=SIZE, serial=SIZE)
    await fleet.bus.put(
        POOLS, pool_key("training"), encode(event_outbox.pending_events(record, [event]))
    )

    await fleet.reconcile_elsewhere()
    await fleet.reconcile_elsewhere()

    assert [event] == await fleet.facts()
    entry = await fleet.bus.get(POOLS, pool_key("training"))
    assert entry is not None
    assert record == decoder(PoolRecord).decode(entry.value)
