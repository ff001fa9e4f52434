"""Copies of the record of stops: writers at once, halves, losses, and what a process has read."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from schemas.messages import decoder, encode
from schemas.stops import FLEET, PLACES, Stop, StopsRecord
from services.bus.nats.nats_bus import NatsBus
from services.primitives.errors import BusError
from services.runtime.stop_watch import StopWatch
from tests.support.inprocess import eventually

NOW = datetime(2026, 5, 5, 12, 0, tzinfo=UTC)
_record = decoder(StopsRecord)


def stop(scope: str = FLEET) -> Stop:
    """Return a stop of this scope."""
    pool = scope.removeprefix("pool.") if scope != FLEET else ""
    return Stop(pool=pool, reason="a wrong image", since=NOW)


def adding(scope: str) -> Callable[[Mapping[str, Stop]], Mapping[str, Stop]]:
    """Return the change that stops a scope."""
    return lambda stops: {**stops, scope: stop(scope)}


def nothing(_: Mapping[str, Stop]) -> Mapping[str, Stop]:
    """Return what is left after a resume: no stop."""
    return {}


async def put(bus: NatsBus, place: Any, number: int, *scopes: str) -> None:
    """Store a copy as it is."""
    record = StopsRecord(number=number, stops={each: stop(each) for each in scopes})
    await bus.put(*place, encode(record))


async def copies(bus: NatsBus) -> list[StopsRecord | None]:
    """Return both copies."""
    entries = [await bus.get(*place) for place in PLACES]
    return [None if each is None else _record.decode(each.value) for each in entries]


async def read(bus: NatsBus) -> StopWatch:
    """Return a process that has just started."""
    watch = StopWatch(bus)
    await watch.read()
    return watch


async def test_of_many_writers_at_once_none_is_lost(bus: NatsBus) -> None:
    """Each replica takes an order at the same moment; both copies have all of them."""
    scopes = [f"pool.p{number}" for number in range(8)]
    watches = [await read(bus) for _ in scopes]
    await asyncio.gather(
        *(watch.change(adding(scope)) for watch, scope in zip(watches, scopes, strict=True))
    )
    await watches[0].restore()
    one, other = await copies(bus)
    assert one == other
    assert set(scopes) == set((await read(bus)).state().stops)


@pytest.mark.parametrize(
    ("pools", "leases", "expected"),
    [
        ((1, FLEET), None, {FLEET}),
        (None, (1, FLEET), {FLEET}),
        # A stop, and a resume, of which one half was written.
        ((2, FLEET), (1,), {FLEET}),
        ((2,), (1, FLEET), set()),
        # Two writers that each reached one copy.
        ((3, FLEET), (3, "pool.web"), {FLEET, "pool.web"}),
        # One copy that was set back.
        ((2,), (7, FLEET), {FLEET}),
    ],
)
async def test_a_started_process_reads_what_holds(
    bus: NatsBus, pools: Any, leases: Any, expected: set[str]
) -> None:
    """The copies agree after the next look, and another process reads the same."""
    for place, given in zip(PLACES, (pools, leases), strict=True):
        if given is not None:
            await put(bus, place, *given)
    watch = await read(bus)
    assert expected == set(watch.state().stops)
    await watch.restore()
    one, other = await copies(bus)
    assert one == other
    assert expected == set((await read(bus)).state().stops)


async def test_what_was_read_outlasts_both_copies(bus: NatsBus) -> None:
    """Both are set back to before the stop; the process that knows of it writes it again."""
    watch = await read(bus)
    await watch.change(adding(FLEET))
    for place in PLACES:
        await put(bus, place, 0)
    await watch.read()
    assert {FLEET} == set(watch.state().stops)
    await watch.restore()
    assert {FLEET} == set((await read(bus)).state().stops)


@pytest.mark.parametrize("lost", PLACES, ids=[each[0].name for each in PLACES])
async def test_one_bucket_is_enough_to_stop_and_to_resume(bus: NatsBus, lost: Any) -> None:
    """The other does not exist."""
    watch = await read(bus)
    await bus.admin(f"STREAM.DELETE.KV_{lost[0].name}", {})
    await watch.change(adding(FLEET))
    assert {FLEET} == set((await read(bus)).state().stops)
    await watch.change(nothing)
    assert {} == (await read(bus)).state().stops


async def test_a_change_that_no_bucket_takes_is_refused(bus: NatsBus) -> None:
    """The caller is not left to believe that the fleet is stopped."""
    watch = await read(bus)
    for place in PLACES:
        await bus.admin(f"STREAM.DELETE.KV_{place[0].name}", {})
    with pytest.raises(BusError):
        await watch.change(adding(FLEET))
    assert {} == watch.state().stops


async def test_a_garbled_copy_is_written_again(bus: NatsBus) -> None:
    """The other says what holds; where none does, nothing is known until an order."""
    watch = await read(bus)
    await watch.change(adding(FLEET))
    await bus.put(*PLACES[0], b"garbage")
    await watch.restore()
    assert [{FLEET}, {FLEET}] == [set(each.stops) for each in await copies(bus) if each]
    for place in PLACES:
        await bus.put(*place, b"garbage")
    fresh = await read(bus)
    assert not fresh.state().known
    await fresh.change(nothing)
    assert fresh.state().known


async def test_a_watch_brings_what_others_order(bus: NatsBus) -> None:
    """A process that only follows knows within moments."""
    ordering, following = await read(bus), await read(bus)
    running = asyncio.create_task(following.run())
    await ordering.change(adding(FLEET))

    async def known() -> bool:
        return bool(following.state().stops)

    await eventually(known)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
