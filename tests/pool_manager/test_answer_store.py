"""The pool-manager's last answer is stored, and shown while no pool-manager answers."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import msgspec
import pytest

from schemas.duration import Duration
from schemas.messages import decoder, encode
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import PoolRecord, pool_key
from schemas.present_answers import ANSWER_BYTES_MAX, PresentAnswer
from schemas.settings import BudgetSpec, PoolSpec
from schemas.stops import Stop
from schemas.topology import ANSWERS, NODES, POOLS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.fleet_client.explanation import why
from services.fleet_client.fleet_client import FleetClient, NoReplyError
from services.fleet_client.fleet_status import fleet_state
from services.pool_manager.answer_store import STORE_SECONDS, AnswerStore
from services.pool_manager.planner.explanation.pool_explanation import present_answer
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.pool_store import Store
from services.runtime.stop_watch import StopWatch
from services.simulator.engine import virtual_time
from services.simulator.engine.virtual_time import VirtualClock
from tests.pool_manager.fleet import settings

SPEC = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=9)
UNHEALTHY = NodeRecord(
    pool="training", node="n1", state="active", health="unhealthy", health_reason="XID 79"
)
_answers = decoder(PresentAnswer)


class Stored:
    """A store with one pool and one node, and what writes its answers."""

    def __init__(self, clock: VirtualClock, bus: MemoryBus) -> None:
        self.clock = clock
        self.bus = bus
        self.store = Store(bus, settings().budget)
        self.stops = StopWatch(bus)
        self.answers = AnswerStore(*(bus, clock, self.store, "pool-manager-1"), self.stops)

    async def save(self, record: PoolRecord) -> None:
        """Write the pool's record, and say that it was looked at."""
        found = await self.store.pool(record.name)
        if found is None:
            await self.bus.create(POOLS, pool_key(record.name), encode(record))
        else:
            await self.store.save_pool(record, found[1])
        await self.store.pool(record.name)
        self.answers.note(record.name)

    async def kept(self) -> tuple[PresentAnswer, int] | None:
        """Return the stored answer and its revision, once what is due is written."""
        await self.clock.sleep(2 * STORE_SECONDS)
        entry = await self.bus.get(ANSWERS, pool_key("training"))
        return (_answers.decode(entry.value), entry.revision) if entry is not None else None


def on_virtual_time(play: Callable[[Stored], Awaitable[None]]) -> None:
    """Run a play with the store's loops, on a clock that does not wait."""

    async def run() -> None:
        clock = VirtualClock()
        server = MemoryServer(clock)
        bus = MemoryBus(server, PerfectLink())
        await set_up(bus, clock, replicas=1)
        stored = Stored(clock, bus)
        await bus.put(NODES, node_key("training", "n1"), encode(UNHEALTHY))
        loops = [
            asyncio.ensure_future(each()) for each in (stored.store.nodes.run, stored.answers.run)
        ]
        await stored.store.nodes.caught_up()
        await stored.stops.read()
        await play(stored)
        for each in loops:
            each.cancel()
        await asyncio.wait(loops)
        server.close()

    virtual_time.run(run)


POOL = PoolRecord(name="training", spec=SPEC, desired=1)
FAILING = msgspec.structs.replace(POOL, failures=3, retry_at=datetime(2030, 2, 1, tzinfo=UTC))


def test_an_answer_is_written_when_it_changed_and_not_before() -> None:
    """A second look that finds the same writes nothing; what waits at another gate is written."""

    async def play(stored: Stored) -> None:
        await stored.save(POOL)
        first = await stored.kept()
        assert first is not None
        assert [each.gate for each in first[0].of("n1").blocked] == ["turn"]
        await stored.save(POOL)
        assert await stored.kept() == first
        await stored.save(FAILING)
        after = await stored.kept()
        assert after is not None
        assert [each.gate for each in after[0].of("n1").blocked] == ["retry"]
        assert after[1] > first[1]

    on_virtual_time(play)


def test_a_stop_is_the_first_gate_of_a_pool_and_of_what_waits_in_it() -> None:
    """The answer names the stop, who gave it, and the command that ends it."""

    async def play(stored: Stored) -> None:
        stop = Stop(by="ada", reason="a wrong image", since=stored.clock.now())
        await stored.stops.change(lambda _: {stop.scope: stop})
        await stored.save(FAILING)
        kept = await stored.kept()
        assert kept is not None
        [of_node] = kept[0].of("n1").blocked
        assert (of_node.gate, of_node.remedy) == ("stop", "navarch resume")
        assert "by ada" in of_node.text
        assert [each.gate for each in kept[0].blocked] == ["stop", "retry"]

    on_virtual_time(play)


def test_an_older_answer_replaces_no_newer_one() -> None:
    """A replica that read the pool before another wrote its answer is refused, and reads again."""

    async def play(stored: Stored) -> None:
        await stored.save(POOL)
        assert await stored.kept() is not None
        newer = PresentAnswer(pool="training", at=stored.clock.now())
        await stored.bus.put(ANSWERS, pool_key("training"), encode(newer))
        await stored.save(FAILING)
        kept = await stored.kept()
        assert kept is not None
        assert kept[0] == newer
        stored.answers.note("training")
        kept = await stored.kept()
        assert kept is not None
        assert [each.gate for each in kept[0].blocked] == ["retry"]

    on_virtual_time(play)


def test_an_answer_of_before_the_pools_were_set_back_is_replaced() -> None:
    """A restored store begins with lower revisions."""

    async def play(stored: Stored) -> None:
        later = PresentAnswer(pool="training", at=stored.clock.now(), revision=1_000_000)
        await stored.bus.put(ANSWERS, pool_key("training"), encode(later))
        await stored.save(FAILING)
        kept = await stored.kept()
        assert kept is not None
        assert [each.gate for each in kept[0].blocked] == ["retry"]

    on_virtual_time(play)


def test_a_pool_that_cannot_be_read_stops_no_other_answer() -> None:
    """The record of one pool is garbled; the answers about the others are written."""

    async def play(stored: Stored) -> None:
        await stored.bus.put(POOLS, pool_key("garbled"), b"[no record")
        stored.answers.note("garbled")
        await stored.save(POOL)
        assert await stored.kept() is not None

    on_virtual_time(play)


def test_a_replica_that_decides_nothing_answers_what_the_others_decided() -> None:
    """The question may come to any replica, and a standby has read the pool long ago."""

    async def play(stored: Stored) -> None:
        await stored.save(POOL)
        before = await stored.answers.answer("training")
        found = await stored.bus.get(POOLS, pool_key("training"))
        assert before is not None
        assert found is not None
        await stored.bus.update(POOLS, pool_key("training"), encode(FAILING), found.revision)
        after = await stored.answers.answer("training")
        of_node = await stored.answers.of_node("training", "n1")
        assert after is not None
        assert of_node is not None
        assert ([], ["retry"]) == (
            [e.gate for e in before.blocked],
            [e.gate for e in after.blocked],
        )
        assert [each.gate for each in of_node.of("n1").blocked] == ["retry"]

    on_virtual_time(play)


def test_the_answer_goes_with_its_pool() -> None:
    """An answer about a pool that was removed is removed, also one of an earlier process."""

    async def play(stored: Stored) -> None:
        await stored.save(POOL)
        assert await stored.kept() is not None
        found = await stored.store.pool("training")
        assert found is not None
        await stored.store.forget_pool(*found)
        stored.answers.note("training")
        assert await stored.kept() is None

    on_virtual_time(play)


@pytest.mark.parametrize("name", ["n1", "training"])
def test_why_shows_the_stored_answer_where_no_pool_manager_answers(name: str) -> None:
    """The explanation names who is away, how old the answer is, and the gate that it had."""

    async def play(stored: Stored) -> None:
        await stored.save(FAILING)
        kept = await stored.kept()
        assert kept is not None
        await stored.clock.sleep(3 * 3600)
        answer = await why(FleetClient(stored.bus), name, stored.clock.now())
        assert answer.now[0].startswith("The pool-manager does not answer")
        assert "as stored 3 h 0 min ago" in answer.now[0]
        assert "retry" in {each.gate for each in answer.blocked}

    on_virtual_time(play)


def test_without_a_stored_answer_why_says_that_it_does_not_know() -> None:
    """An explanation never claims that nothing waits where that is not known."""

    async def play(stored: Stored) -> None:
        await stored.bus.create(POOLS, pool_key("training"), encode(POOL))
        await stored.bus.put(ANSWERS, pool_key("training"), b"[not an answer")
        answer = await why(FleetClient(stored.bus), "n1", stored.clock.now())
        assert answer.now[0].endswith("has stored no answer about pool training.")
        assert len(answer.now) == 1

    on_virtual_time(play)


@pytest.mark.parametrize("faults", [1, 10_000])
def test_an_answer_about_ten_thousand_unhealthy_nodes_fits(faults: int) -> None:
    """Nodes that wait for the same share one text; what does not fit is counted."""
    budget = BudgetSpec(window=Duration(3600))
    pool = msgspec.structs.replace(POOL, spec=msgspec.structs.replace(SPEC, budget=budget))
    nodes = [
        msgspec.structs.replace(UNHEALTHY, node=f"node-{i:05}", health_reason=f"XID {i % faults}")
        for i in range(10_000)
    ]
    answer = present_answer(pool, Nodes(nodes), datetime(2026, 1, 1, tzinfo=UTC))
    assert len(encode(answer)) <= ANSWER_BYTES_MAX
    assert sum(len(each.nodes) for each in answer.groups) + answer.more == 10_000
    assert answer.groups


def test_status_shows_what_pools_waited_for_where_no_pool_manager_answers() -> None:
    """The error says who is down; each pool that the caller may see follows, with its age."""

    async def play(stored: Stored) -> None:
        await stored.save(FAILING)
        assert await stored.kept() is not None
        fleet = FleetClient(stored.bus)
        with pytest.raises(NoReplyError, match=r"pool-manager running.*\n.*3 tries in a row") as no:
            await fleet_state(fleet, lambda _: True)
        assert "training, as stored " in str(no.value)
        assert "Nodes that waited: 1 (navarch why training)" in str(no.value)
        with pytest.raises(NoReplyError) as hidden:
            await fleet_state(fleet, lambda pool: pool != "training")
        assert "tries in a row" not in str(hidden.value)

    on_virtual_time(play)
