"""A mirrored bucket is as fresh as it says."""

import asyncio

import pytest

from schemas.messages import encode
from schemas.node_records import NodeRecord, node_key
from schemas.topology import NODES
from services.bus.bucket_mirror import BucketView
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock


def record(node: str, *, cordoned: bool = False) -> bytes:
    return encode(NodeRecord(pool="training", node=node, cordoned=cordoned))


async def test_a_view_that_caught_up_holds_what_was_written_before(any_bus):
    """The view has all that was stored before the call: written, changed and removed."""
    view = BucketView(any_bus, NODES, NodeRecord)
    running = asyncio.create_task(view.run())
    async with asyncio.timeout(60):
        await view.caught_up()
        assert view.records == {}
        for number in range(50):
            await any_bus.put(NODES, node_key("training", f"n-{number}"), record(f"n-{number}"))
        await any_bus.put(NODES, "training.n-1", record("n-1", cordoned=True))
        await any_bus.delete(NODES, "training.n-2")
        await view.caught_up()
    assert len(view.records) == 49
    assert view.records["training.n-1"].cordoned is True
    running.cancel()


async def test_a_view_catches_up_where_the_newest_entry_is_gone(any_bus):
    """The view does not wait for an entry that vanished without a marker."""
    await any_bus.put(NODES, "training.n-1", record("n-1"))
    await any_bus.put(NODES, "training.n-2", record("n-2"))
    await any_bus.purge(f"KV_{NODES.name}", f"$KV.{NODES.name}.training.n-2")
    view = BucketView(any_bus, NODES, NodeRecord)
    running = asyncio.create_task(view.run())
    async with asyncio.timeout(60):
        await view.caught_up()
    assert list(view.records) == ["training.n-1"]
    running.cancel()


async def test_an_unreadable_record_is_left_out_and_harms_nothing(any_bus):
    """A record written by hand stops neither the view nor its freshness."""
    changes: list[str] = []
    await any_bus.put(NODES, "training.n-1", b"{")
    await any_bus.put(NODES, "training.n-2", record("n-2"))
    view = BucketView(any_bus, NODES, NodeRecord, changes.append)
    running = asyncio.create_task(view.run())
    async with asyncio.timeout(60):
        await view.caught_up()
    assert (list(view.records), changes) == (["training.n-2"], ["training.n-2"])
    running.cancel()


async def test_what_a_process_wrote_itself_is_not_waited_for(any_bus):
    """The view waits for nothing as long as no other process wrote in between.

    The watch has to bring what another process wrote.
    """
    view = BucketView(any_bus, NODES, NodeRecord)
    for number in (1, 2):
        name = f"n-{number}"
        revision = await any_bus.put(NODES, node_key("training", name), record(name))
        view.wrote(f"training.{name}", NodeRecord(pool="training", node=name), revision)
    async with asyncio.timeout(60):
        await view.caught_up()
    assert list(view.records) == ["training.n-1", "training.n-2"]

    await any_bus.put(NODES, "training.n-3", record("n-3"))
    revision = await any_bus.put(NODES, "training.n-4", record("n-4"))
    view.wrote("training.n-4", NodeRecord(pool="training", node="n-4"), revision)
    waiting = asyncio.create_task(view.caught_up())
    await asyncio.sleep(0)
    assert not waiting.done()
    running = asyncio.create_task(view.run())
    async with asyncio.timeout(60):
        await waiting
    assert sorted(view.records) == [f"training.n-{number}" for number in (1, 2, 3, 4)]
    running.cancel()


async def test_a_view_follows_a_bucket_that_was_rolled_back(any_bus):
    """The view holds what the server holds without a restart: lost entries go, new ones come."""
    stream = f"KV_{NODES.name}"
    for number in range(4):
        await any_bus.put(NODES, f"training.n-{number}", record(f"n-{number}"))
    view = BucketView(any_bus, NODES, NodeRecord)
    running = asyncio.create_task(view.run())
    async with asyncio.timeout(60):
        await view.caught_up()
        assert len(view.records) == 4
        await any_bus.admin(f"STREAM.DELETE.{stream}", {})
        await any_bus.admin(f"STREAM.CREATE.{stream}", NODES.stream().config(1))
        await any_bus.put(NODES, "training.n-0", record("n-0", cordoned=True))
        await view.caught_up()
        assert list(view.records) == ["training.n-0"]
        assert view.records["training.n-0"].cordoned
        await any_bus.purge(stream, ">")
        await view.caught_up()
        assert view.records == {}
        await any_bus.put(NODES, "training.n-9", record("n-9"))
        await view.caught_up()
    assert list(view.records) == ["training.n-9"]
    running.cancel()


async def emptied(bus, refill):
    """Delete the bucket, create it again, and write so many entries under one key."""
    stream = f"KV_{NODES.name}"
    await bus.admin(f"STREAM.DELETE.{stream}", {})
    await bus.admin(f"STREAM.CREATE.{stream}", NODES.stream().config(1))
    for _ in range(refill):
        await bus.put(NODES, "training.n-1", record("n-1"))


@pytest.mark.parametrize("refill", [0, 1, 9])
async def test_a_view_forgets_what_a_bucket_that_was_created_again_has_not(any_bus, refill):
    """Unreadable keys too, also where revisions are beyond the old ones when it is noticed."""
    for key, value in (("n-1", record("n-1")), ("n-2", record("n-2")), ("n-9", b"{")):
        await any_bus.put(NODES, f"training.{key}", value)
    view = BucketView(any_bus, NODES, NodeRecord)
    running = asyncio.create_task(view.run())
    async with asyncio.timeout(60):
        await view.look()
        assert (sorted(view.records), list(view.unreadable)) == (
            ["training.n-1", "training.n-2"],
            ["training.n-9"],
        )
        await emptied(any_bus, refill)
        await view.look()
        assert list(view.records) == (["training.n-1"] if refill else [])
        assert view.unreadable == {}
    running.cancel()


async def test_a_view_drops_what_was_purged_without_a_marker(any_bus):
    """Readable or not, and although it was not the newest entry."""
    stream, subject = f"KV_{NODES.name}", f"$KV.{NODES.name}"
    changes: list[str] = []
    for key, value in (("n-1", b"{"), ("n-2", record("n-2")), ("n-3", record("n-3"))):
        await any_bus.put(NODES, f"training.{key}", value)
    view = BucketView(any_bus, NODES, NodeRecord, changes.append)
    running = asyncio.create_task(view.run())
    async with asyncio.timeout(60):
        await view.caught_up()
        assert list(view.unreadable) == ["training.n-1"]
        await any_bus.purge(stream, f"{subject}.training.n-1")
        await view.look()
        assert (view.unreadable, view.losses) == ({}, 0)
        assert changes[-1] == "training.n-1"
        await any_bus.purge(stream, f"{subject}.training.n-2")
        for _ in range(2):
            await view.look()
        assert list(view.records) == ["training.n-3"]
        assert view.losses == 1
    running.cancel()


class CountingBus(MemoryBus):
    """Counts how often it is asked for the newest entry."""

    asked = 0

    async def last_sequence(self, stream: str, filter_: str = "") -> int:
        """Ask, and count."""
        self.asked += 1
        return await super().last_sequence(stream, filter_)


async def test_many_that_want_to_be_fresh_at_once_ask_once():
    """One question, and one more for those that came while it was under way."""
    bus = CountingBus(MemoryServer(SystemClock()), PerfectLink())
    await set_up(bus, SystemClock(), replicas=1)
    view = BucketView(bus, NODES, NodeRecord)
    running = asyncio.create_task(view.run())
    async with asyncio.timeout(60):
        await asyncio.gather(*(view.caught_up() for _ in range(100)))
        assert bus.asked <= 2
        await bus.put(NODES, "training.n-1", record("n-1"))
        await view.caught_up()
    assert list(view.records) == ["training.n-1"]
    running.cancel()
