"""The outbox and its spool: in order and idempotent, whatever the disk and the bus do."""

import asyncio
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from agent.delivery import spool as spool_module
from agent.delivery.outbox import WAITING_MAX, AgentOutbox
from agent.delivery.spool import OutgoingEvent, Spool
from schemas import subjects
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from tests.agent.bed import Clock
from tests.support.settling import without_shares

SUBJECT = subjects.node_event("training", "n1", "fault")


def message(number: int, *, size: int = 10, sequence: int = -1) -> OutgoingEvent:
    """Make the message of a number."""
    return OutgoingEvent(SUBJECT, b"x" * size, f"m{number}", "", sequence)


async def stored_ids(bus: NatsBus, count: int) -> list[str]:
    """Wait for `count` stored messages; give their ids in order."""
    found: list[str] = []
    async with asyncio.timeout(60):
        async for stored in bus.follow("EVENTS", [SUBJECT], "all"):
            found.append(stored.headers["Nats-Msg-Id"])
            if len(found) == count:
                break
    return found


class Running:
    """An outbox that runs inside a `with` block."""

    def __init__(self, spool: Spool) -> None:
        self.outbox = AgentOutbox(spool, SystemClock())
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AgentOutbox:
        self._task = asyncio.create_task(self.outbox.run())
        return self.outbox

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


async def test_what_one_run_could_not_send_the_next_does(tmp_path: Path, bus: NatsBus):
    """Messages that were kept on disk go out first, then new ones, each once."""
    async with Running(Spool(tmp_path / "spool")) as outbox:
        for number in range(5):
            outbox.put(message(number))
        await outbox.flush(0.01)
    async with Running(Spool(tmp_path / "spool")) as outbox:
        outbox.bus = bus
        outbox.put(message(5))
        outbox.put(message(3))
        await outbox.flush(5)
    assert await stored_ids(bus, 6) == [f"m{n}" for n in range(6)]
    assert Spool(tmp_path / "spool").restore() == []


async def test_what_waits_goes_out_when_the_bus_is_found(tmp_path: Path, bus: NatsBus):
    """Messages do not wait for the next try: this clock's pauses never end by themselves."""
    clock = Clock()
    outbox = AgentOutbox(Spool(tmp_path / "spool"), clock)
    outbox.put(message(0))
    running = asyncio.create_task(outbox.run())
    async with asyncio.timeout(60):
        await clock.pausing.acquire()
        outbox.bus = bus
        assert await stored_ids(bus, 1) == ["m0"]
    running.cancel()
    await asyncio.wait({running})


async def test_an_outage_in_the_middle_keeps_the_order(
    tmp_path: Path, bus: NatsBus, server: EmbeddedServer
):
    """Messages put before, during and after an outage are stored in the order they were put."""
    await without_shares(bus)
    async with Running(Spool(tmp_path / "spool")) as outbox:
        outbox.bus = bus
        for number in range(100):
            outbox.put(message(number))
        await outbox.flush(5)
        await server.kill()
        for number in range(100, 300):
            outbox.put(message(number))
        await outbox.flush(0.05)
        await server.start()
        for number in range(300, 310):
            outbox.put(message(number))
        await outbox.flush(10)
    assert await stored_ids(bus, 310) == [f"m{n}" for n in range(310)]


async def test_the_position_waits_for_the_bus_not_for_the_spool(tmp_path: Path, bus: NatsBus):
    """The log is read again from the first fault that the bus has not stored."""
    outbox = AgentOutbox(Spool(tmp_path / "spool"), SystemClock())
    assert outbox.sent_up_to(9) == 9
    outbox.put(message(2, sequence=7))
    outbox.put(message(1, sequence=5))
    await outbox.flush(0.01)
    assert outbox.sent_up_to(9) == 4
    async with Running(Spool(tmp_path / "spool")) as restarted:
        await restarted.flush(0.05)
        restarted.put(message(1, sequence=5))
        assert restarted.sent_up_to(9) == 4
        restarted.bus = bus
        await restarted.flush(5)
        assert restarted.sent_up_to(9) == 9
    assert await stored_ids(bus, 2) == ["m2", "m1"]


async def test_no_more_than_the_bound_waits(tmp_path: Path):
    """New messages beyond the bound are dropped and counted; those that wait are kept."""
    outbox = AgentOutbox(Spool(tmp_path / "spool"), SystemClock())
    for number in range(WAITING_MAX + 3):
        outbox.put(message(number))
    assert (outbox.dropped, outbox.take_dropped()) == (3, 0)


@pytest.mark.parametrize("garbage", [b"not a database at all" * 500, b"\x00" * 5000])
async def test_a_corrupt_store_is_put_aside(tmp_path: Path, bus: NatsBus, garbage: bytes):
    """A file that is no store is kept for a person to see, and a new one begun."""
    path = tmp_path / "spool"
    path.write_bytes(garbage)
    async with Running(Spool(path)) as outbox:
        outbox.put(message(1))
        await outbox.flush(0.05)
        outbox.bus = bus
        await outbox.flush(5)
    assert await stored_ids(bus, 1) == ["m1"]
    assert path.with_suffix(".corrupt").read_bytes() == garbage


async def test_a_full_disk_is_survived(
    tmp_path: Path, bus: NatsBus, monkeypatch: pytest.MonkeyPatch
):
    """Where the store takes no more, messages wait in memory and go out all the same."""
    monkeypatch.setattr(spool_module, "FILE_BYTES_MAX", 32_768)
    with pytest.raises(sqlite3.OperationalError):
        Spool(tmp_path / "other").add([message(n, size=9_000) for n in range(10)])
    async with Running(Spool(tmp_path / "spool")) as outbox:
        for number in range(10):
            outbox.put(message(number, size=9_000))
        await outbox.flush(0.05)
        outbox.bus = bus
        await outbox.flush(5)
    assert await stored_ids(bus, 10) == [f"m{n}" for n in range(10)]


async def test_a_directory_that_cannot_be_written_is_survived(tmp_path: Path, bus: NatsBus):
    """Messages still go out without any store at all."""
    async with Running(Spool(tmp_path / "missing" / "spool")) as outbox:
        outbox.put(message(1))
        await outbox.flush(0.05)
        outbox.bus = bus
        await outbox.flush(5)
    assert await stored_ids(bus, 1) == ["m1"]


def test_the_spool_keeps_order_and_each_once(tmp_path: Path):
    """Order is that of arrival; a repeat stays where it is; what is removed is gone."""
    spool = Spool(tmp_path / "spool")
    spool.add([message(2), message(1)])
    spool.add([message(2), message(3)])
    spool.remove(["m1"])
    spool.close()
    assert [each.msg_id for each in Spool(tmp_path / "spool").restore()] == ["m2", "m3"]
