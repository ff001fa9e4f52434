"""Deciding by a pool's record that is known: as by one that was read, and with two reads less."""

from collections import Counter

import pytest

from schemas.records import PoolRecord
from schemas.settings import FleetBudgetSpec
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.port import Bus
from services.pool_manager.pool_store import Since
from tests.pool_manager.test_telling import CLOCK, SICK, Fleet, Replica, replica

LIFTED = FleetBudgetSpec(max_unavailable="100%", max_replacements="unlimited")


class Counted(PerfectLink):
    """A connection that counts the calls about pools."""

    def __init__(self) -> None:
        """None yet."""
        self.calls: Counter[str] = Counter()

    async def there(self, call: str, about: str) -> None:
        """Count it."""
        await super().there(call, about)
        if "POOLS.pool" in about:
            self.calls[call] += 1


async def known(made: Replica, bus: Bus) -> Since:
    """What a replica knows that has just written a node's record."""
    await made.store.world("training")
    standing = made.store.standing("training")
    assert standing is not None
    last = await bus.last_sequence("KV_NODES")
    return Since(standing, last)


async def opened(fleet: Fleet) -> set[str]:
    """Nodes that a saga is open about, as the bucket has it."""
    async with replica(fleet.server, PerfectLink()) as other:
        found = await other.store.pool("training")
    assert found is not None
    return {each.node for each in found[0].open.values()}


async def made_with(sick: int) -> Fleet:
    """A fleet of which so many are ill."""
    fleet = Fleet(MemoryServer(CLOCK))
    await fleet.made()
    await fleet.judged(sick=sick)
    return fleet


async def test_what_is_known_is_not_read_again() -> None:
    """The write alone proves that it stands."""
    fleet, link = await made_with(sick=1), Counted()
    async with replica(fleet.server, link, LIFTED) as made:
        since = await known(made, fleet.bus)
        link.calls.clear()
        await made.reconciler.reconcile("training", since)

    assert {"n0"} == await opened(fleet)
    assert 0 == link.calls["read"]


async def test_what_others_have_written_since_is_decided_on() -> None:
    """A replica that knows an old record neither overwrites the new one nor begins a saga twice."""
    fleet = await made_with(sick=0)
    async with replica(fleet.server, PerfectLink(), LIFTED) as made:
        since = await known(made, fleet.bus)
        await fleet.judged(sick=1)
        await fleet.looked_at()
        await fleet.judged(sick=2)
        last = await fleet.bus.last_sequence("KV_NODES")
        await made.reconciler.reconcile("training", Since(since.standing, last))

    assert {"n0", "n1"} == await opened(fleet)


async def test_what_calls_for_nothing_by_an_old_record_may_by_the_new_one() -> None:
    """Where nothing is written, the record is looked at after all."""
    fleet = await made_with(sick=0)
    async with replica(fleet.server, PerfectLink(), LIFTED) as made:
        since = await known(made, fleet.bus)
        await fleet.grown()
        await made.reconciler.reconcile("training", since)

    assert {""} == await opened(fleet)


@pytest.mark.parametrize("why", ["budget", "pending_events", "read anew"])
async def test_where_it_would_not_do_it_is_read(why: str) -> None:
    """What the fleet's budget is claimed by was read, and so was what tells facts."""
    fleet, link = await made_with(sick=SICK), Counted()
    budget = FleetBudgetSpec() if why == "budget" else LIFTED
    async with replica(fleet.server, link, budget) as made:
        since = await known(made, fleet.bus)
        if why == "pending_events":
            record = PoolRecord(**{**_fields(since.standing.record), "pending_events": (b"{}",)})
            await made.store.save_pool(record, since.standing.revision)
            standing = made.store.standing("training")
            assert standing is not None
            since = Since(standing, since.node_revision)
        if why == "read anew":
            await fleet.touched()
            await made.store.world("training")

        assert await made.store.assumed("training", since) is None


def _fields(record: PoolRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__struct_fields__}
