"""Facts of decisions about a pool are told once each, whoever interrupts whom, and whoever dies.

Replicas of the reconciler on the bus in memory; between any two things that one of them stores
another replica decides, somebody else writes, or it dies.
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
from schemas.settings import FleetBudgetSpec, PoolSpec
from schemas.topology import EVENTS, NODES, POOLS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.pool_manager.planner import event_outbox
from services.pool_manager.planner.remediator import REPLACE
from services.pool_manager.pool_store import Store
from services.pool_manager.reconciler import Reconciler
from services.pool_manager.sagas import DEFINITIONS
from services.primitives.clock import SystemClock
from services.primitives.errors import BusError, Unavailable
from services.saga.coordinator import Coordinator

SIZE, SICK = 8, 6
SPEC = PoolSpec(provider="test", instance_type="t", min_nodes=SIZE, max_nodes=SIZE)
CLOCK = SystemClock()
STORED = 12
"""More than one look stores here."""

Blow = Callable[[], Coroutine[Any, Any, None]]


class Struck(PerfectLink):
    """A connection on which something happens right before, or after, the n-th thing stored."""

    def __init__(self) -> None:
        """Nothing happens yet."""
        self.at = 0
        self.before: Blow | None = None
        self.after: Blow | None = None

    async def there(self, call: str, about: str) -> None:
        """Strike before it is stored."""
        await super().there(call, about)
        self.at -= call == "store"
        if call == "store" and self.at == 0 and self.before is not None:
            await self.before()

    async def back(self, call: str, about: str) -> None:
        """Strike after it is stored, before anybody knows."""
        del about
        if call == "store" and self.at == 0 and self.after is not None:
            await self.after()


class Replica:
    """One replica's reconciler."""

    def __init__(self, server: MemoryServer, link: PerfectLink, budget: FleetBudgetSpec) -> None:
        """Not looking yet."""
        self.bus = MemoryBus(server, link)
        self.store = Store(self.bus, budget)
        coordinator = Coordinator(self.bus, CLOCK, DEFINITIONS, _nobody, _nothing, "pool-manager")
        self.reconciler = Reconciler(
            self.bus, CLOCK, self.store, lambda: coordinator, lambda _: REPLACE
        )


async def _nobody(_: Any) -> None:
    """No saga waits for a node here."""


async def _nothing(*_: Any) -> None:
    """No saga is under way here."""


@asynccontextmanager
async def replica(
    server: MemoryServer, link: PerfectLink, budget: FleetBudgetSpec | None = None
) -> AsyncIterator[Replica]:
    """A replica that sees the nodes."""
    made = Replica(server, link, budget or FleetBudgetSpec())
    view = asyncio.create_task(made.store.nodes.run())
    yield made
    view.cancel()
    await asyncio.gather(view, return_exceptions=True)


class Fleet:
    """A pool of which most fall ill of one thing, get well, and fall ill of it again."""

    def __init__(self, server: MemoryServer) -> None:
        """On a server of its own."""
        self.server = server
        self.bus = MemoryBus(server, PerfectLink())

    async def made(self) -> None:
        """Record the pool, with all nodes well."""
        await set_up(self.bus, CLOCK, replicas=1)
        record = PoolRecord(name="training", spec=SPEC, desired=SIZE, serial=SIZE)
        await self.bus.create(POOLS, pool_key("training"), encode(record))
        await self.judged(sick=0)

    async def judged(self, *, sick: int) -> None:
        """Judge every node."""
        now = datetime.now(UTC)
        for number in range(SIZE):
            ill = number < sick
            node = NodeRecord(
                pool="training",
                node=f"n{number}",
                state="active",
                health="unhealthy" if ill else "healthy",
                health_at=now,
                health_kind="xid" if ill else "",
                health_code=79 if ill else 0,
                health_action="replace" if ill else "none",
                admitted_at=now,
            )
            await self.bus.put(NODES, node_key("training", node.node), encode(node))

    async def touched(self) -> None:
        """Another replica writes the pool's record, as at the end of a saga."""
        entry = await self.bus.get(POOLS, pool_key("training"))
        assert entry is not None
        record = msgspec.json.decode(entry.value)
        record["serial"] += 1
        value = msgspec.json.encode(record)
        await self.bus.update(POOLS, pool_key("training"), value, entry.revision)

    async def looked_at(self) -> None:
        """Another replica decides."""
        async with replica(self.server, PerfectLink()) as other:
            await other.reconciler.reconcile("training")

    async def facts(self) -> list[PoolEvent]:
        """What was told, in order."""
        found = await self.bus.read(EVENTS.name, subjects.pool_events_of("training"))
        events = [pool_codec.decode(each.data) for each in found]
        return [each for each in events if isinstance(each, PoolEvent)]


async def dies() -> None:
    """The process ends here."""
    raise Unavailable("killed")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["dies", "touched", "looked_at", "well_again"])
async def test_each_thing_is_told_once_whatever_comes_between(when: str, what: str) -> None:
    """Opened and closed, twice over, each under an id of its own; wherever it strikes."""
    for at in range(1, STORED):
        fleet = Fleet(MemoryServer(CLOCK))
        await fleet.made()
        blows: dict[str, Blow] = {
            "dies": dies,
            "touched": fleet.touched,
            "looked_at": fleet.looked_at,
            "well_again": lambda fleet=fleet: _well_again(fleet),
        }
        link = Struck()
        setattr(link, when, blows[what])
        async with replica(fleet.server, link) as struck:
            for sick in (SICK, 0, SICK, 0):
                await fleet.judged(sick=sick)
                link.at = at
                try:
                    await struck.reconciler.reconcile("training")
                except BusError:
                    assert what == "dies"
                await fleet.looked_at()
        told = await fleet.facts()
        assert len(told) == len({each.id for each in told})
        assert _alternates(told), (at, told)
        if what != "well_again":
            assert {
                ("BreakerOpened", ""): 2,
                ("Incident", "opened"): 2,
                ("Incident", "closed"): 2,
                ("BreakerClosed", ""): 2,
            } == Counter((type(each).__name__, getattr(each, "status", "")) for each in told)


async def _well_again(fleet: Fleet) -> None:
    """What was to be told is not so any more: another replica sees that first."""
    await fleet.judged(sick=0)
    await fleet.looked_at()
    await fleet.touched()


def _alternates(told: list[PoolEvent]) -> bool:
    """Whether whatever is opened is closed before it is opened again."""
    breaker = [isinstance(each, BreakerClosed) for each in told if "breaker" in each.id]
    incident = [getattr(each, "status", "") == "closed" for each in told if "incident" in each.id]
    return all(line == [n % 2 == 1 for n in range(len(line))] for line in (breaker, incident))


async def test_what_is_told_is_taken_off_the_record_by_itself() -> None:
    """At once where nobody is about to write it, and then it is not told again."""
    fleet = Fleet(MemoryServer(CLOCK))
    await fleet.made()
    async with replica(fleet.server, PerfectLink()) as told:
        await fleet.judged(sick=SICK)
        await told.reconciler.reconcile("training")
        found = await told.store.pool("training")

    assert found is not None
    assert () == found[0].pending_events
    assert {"BreakerOpened", "Incident"} == {type(each).__name__ for each in await fleet.facts()}


async def test_what_is_told_goes_with_the_next_write_where_one_follows() -> None:
    """No write is spent on it while others wait to decide."""
    fleet = Fleet(MemoryServer(CLOCK))
    await fleet.made()
    link = Struck()
    async with replica(fleet.server, link) as told:
        waiting: list[asyncio.Task[None]] = []

        async def others_ask() -> None:
            waiting.append(asyncio.create_task(told.reconciler.reconcile("training")))

        link.before, link.at = others_ask, 1
        await fleet.judged(sick=SICK)
        before = await fleet.bus.last_sequence("KV_POOLS")
        await told.reconciler.reconcile("training")
        await asyncio.gather(*waiting)
        found = await told.store.pool("training")

    assert found is not None
    assert () == found[0].pending_events
    # The claim on the fleet's budget, the decision, and the one after it.
    assert before + 3 == found[1]
    assert len({each.id for each in await fleet.facts()}) == len(await fleet.facts())


async def test_what_others_leave_in_the_record_is_told() -> None:
    """As of a change of size by an autoscaler, whose replica dies right after it."""
    fleet = Fleet(MemoryServer(CLOCK))
    await fleet.made()
    event = Scaled(id="s", time=datetime.now(UTC), pool="training", previous=7, nodes=8)
    record = PoolRecord(name="training", spec=SPEC, desired=SIZE, serial=SIZE)
    await fleet.bus.put(
        POOLS, pool_key("training"), encode(event_outbox.pending_events(record, [event]))
    )

    await fleet.looked_at()
    await fleet.looked_at()

    assert [event] == await fleet.facts()
    entry = await fleet.bus.get(POOLS, pool_key("training"))
    assert entry is not None
    assert record == decoder(PoolRecord).decode(entry.value)
