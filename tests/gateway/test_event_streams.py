"""Streams of events: in order, each once, resumed from any position, within limits."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import httpx
import pytest
from prometheus_client import CollectorRegistry

from schemas.messages import encode
from schemas.node_events import Cordoned
from schemas.topology import EVENTS
from services.bus.memory.memory_bus import MemoryBus
from services.gateway.access_tokens import ANYONE
from services.gateway.event_streams import (
    BATCH_MAX,
    EventFilter,
    EventRelay,
    EventStreams,
    RelayedEvent,
    StreamReset,
)
from services.primitives.clock import SystemClock
from tests.gateway.conftest import HOSTILE, NOW, Gateway, MakeGateway
from tests.support.serving import serving

Event = dict[str, str]


async def publish(bus: MemoryBus, count: int, pool: str = "training", reason: str = "") -> None:
    """Publish so many events of a pool's node."""
    for _ in range(count):
        event = Cordoned(id="e", time=NOW, pool=pool, node=f"{pool}-1", reason=reason)
        await bus.publish(f"navarch.v1.node.{pool}.{pool}-1.event.cordoned", encode(event))


async def events_of(answer: httpx.Response) -> AsyncGenerator[Event, None]:
    """Parse server-sent events as a browser does."""
    event: Event = {}
    async for line in answer.aiter_lines():
        if line:
            key, _, value = line.partition(":")
            event[key or "comment"] = value.strip()
        else:
            yield event
            event = {}


@asynccontextmanager
async def streaming(
    url: str, query: str = "", token: str = "viewer-token", **headers: str
) -> AsyncIterator[AsyncGenerator[Event, None]]:
    """Open a stream of events from a gateway."""
    own = {"Authorization": f"Bearer {token}"} | headers
    async with (
        asyncio.timeout(20),
        httpx.AsyncClient(base_url=url, headers=own) as client,
        client.stream("GET", f"/api/v1/events/stream{query}") as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        async with aclosing(events_of(answer)) as events:
            assert (await anext(events))["comment"] == "connected"
            yield events


async def take(events: AsyncGenerator[Event, None], count: int) -> list[Any]:
    """Return the IDs of the next events."""
    found: list[int] = []
    async for event in events:
        if "data" in event:
            found.append(int(event["id"]))
        if len(found) == count:
            break
    return found


async def test_a_stream_goes_on_where_its_caller_left(gateway: Gateway, bus: MemoryBus) -> None:
    """Nothing lost, nothing twice: from now, from a header, from a parameter."""
    async with serving(gateway.app) as url:  # type: ignore[arg-type]
        async with streaming(url) as events:
            await publish(bus, 3)
            assert await take(events, 2) == [1, 2]
        await publish(bus, 2)
        async with streaming(url, **{"Last-Event-ID": "2"}) as events:
            assert await take(events, 3) == [3, 4, 5]
            await publish(bus, 1)
            assert await take(events, 1) == [6]
        async with streaming(url, "?after=4") as events:
            assert await take(events, 2) == [5, 6]


async def test_a_stream_is_filtered_and_its_hostile_text_stays_one_event(
    gateway: Gateway, bus: MemoryBus
) -> None:
    """A pool's token sees its own; a signal of life says how far the stream has come."""
    async with (
        serving(gateway.app) as url,  # type: ignore[arg-type]
        streaming(url, "?type=cordoned", "scoped-token") as events,
    ):
        await publish(bus, 2, pool="serving")
        await publish(bus, 1, reason=HOSTILE)
        await publish(bus, 1, pool="serving")
        first = await anext(each async for each in events if "data" in each)
        alive = await anext(each async for each in events if "comment" in each)

    assert ("cordoned", "3") == (first["event"], first["id"])
    assert json.loads(first["data"])["event"]["reason"] == HOSTILE
    assert {"comment": "alive", "id": "4"} == alive


async def test_events_are_selected_by_the_labels_of_their_pool(
    gateway: Gateway, bus: MemoryBus
) -> None:
    """The events of a page and of a stream are selected by labels.

    Events of the fleet's own services have no pool, and no label.
    """
    await publish(bus, 1, pool="serving")
    await publish(bus, 1)
    client = gateway.client("viewer-token")
    labelled = (await client.get("/api/v1/events?label=team=ml&since=9999h")).json()["items"]
    other = (await client.get("/api/v1/events?label=team=none&since=9999h")).json()["items"]
    wrong = await client.get("/api/v1/events/stream?label=team")

    assert ["training/training-1"] == [each["about"] for each in labelled]
    assert other == []
    assert wrong.status_code == 400
    async with (
        serving(gateway.app) as url,  # type: ignore[arg-type]
        streaming(url, "?label=team=ml&after=0") as events,
    ):
        assert await take(events, 1) == [2]


async def test_streams_are_limited_and_a_closed_one_makes_room(
    make_gateway: MakeGateway,
) -> None:
    """One token has a quarter of them; the gauge counts those that are open."""
    gateway = make_gateway(streams_max=4)
    async with serving(gateway.app) as url:  # type: ignore[arg-type]
        own = {"Authorization": "Bearer viewer-token"}
        async with httpx.AsyncClient(base_url=url, headers=own) as client:
            async with streaming(url):
                refused = await client.get("/api/v1/events/stream")
                metrics = (await client.get("/metrics")).text
            async with asyncio.timeout(20):
                while "event_streams 0.0" not in (await client.get("/metrics")).text:
                    await asyncio.sleep(0.01)
            async with streaming(url) as events:
                await publish(gateway.bus, 1)
                assert await take(events, 1) == [1]

    assert refused.status_code == 429
    assert "gateway.streams_max" in refused.json()["remedy"]
    assert "navarch_http_event_streams 1.0" in metrics


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "99999999999999999999999"])
async def test_a_position_that_is_none_is_refused(gateway: Gateway, value: str) -> None:
    """An invalid position is refused as a problem."""
    for token, headers, query in (
        ("viewer-token", {"Last-Event-ID": value}, ""),
        ("viewer-token", {}, f"?after={value}"),
    ):
        client = gateway.client(token)
        answer = await client.get(f"/api/v1/events/stream{query}", headers=headers)
        assert answer.status_code == 400, answer.text


async def test_a_stream_needs_a_token(gateway: Gateway) -> None:
    """A stream needs a token like every other path."""
    assert (await gateway.client("").get("/api/v1/events/stream")).status_code == 401


PAUSE_SECONDS: Final = 60.0


async def relayed(
    batches: AsyncGenerator[Sequence[RelayedEvent] | StreamReset, None], count: int
) -> list[int]:
    """Return the sequences of the next events, with 0 for a reset."""
    found: list[int] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            batch = await anext(batches)
            found += [0] if isinstance(batch, StreamReset) else [e.stored.sequence for e in batch]
    return found


@pytest.mark.parametrize("kept", [1, 2, 3, 100])
@pytest.mark.parametrize("after", [0, 1, 4, 6])
async def test_what_memory_no_longer_has_is_read_from_the_bus(
    bus: MemoryBus, kept: int, after: int
) -> None:
    """A caller as slow as can be gets every event once, whatever memory holds."""
    await publish(bus, 2)
    relay = EventRelay(bus, SystemClock(), kept_max=kept)
    running = asyncio.create_task(relay.run())
    events = relay.stream(after, PAUSE_SECONDS)
    await publish(bus, 4)
    first = await relayed(events, 6 - after)
    await publish(bus, 4)
    rest = await relayed(events, 4)
    await events.aclose()
    running.cancel()

    assert list(range(after + 1, 11)) == first + rest


async def test_a_stream_that_catches_up_writes_little_at_a_time(bus: MemoryBus) -> None:
    """A slow caller holds one batch in memory; an empty batch says that none was stored."""
    relay = EventRelay(bus, SystemClock())
    running = asyncio.create_task(relay.run())
    position = await relay.newest()
    await publish(bus, BATCH_MAX + 1)
    probe = relay.stream(position, PAUSE_SECONDS)
    await relayed(probe, BATCH_MAX + 1)
    events = relay.stream(position, 0.01)
    batches = [len(await anext(events)) for _ in range(3)]  # type: ignore[arg-type]
    await probe.aclose()
    await events.aclose()
    running.cancel()

    assert [BATCH_MAX, 1, 0] == batches


async def test_a_stream_of_rare_events_shows_signs_of_life_among_many_others(
    bus: MemoryBus,
) -> None:
    """A proxy would end a connection that is silent because nothing of it matches."""
    times = iter(range(1_000))
    relay = EventRelay(bus, SystemClock())
    running = asyncio.create_task(relay.run())
    streams = EventStreams(
        relay,
        4,
        lambda: NOW + timedelta(seconds=10 * next(times)),
        CollectorRegistry(),
        heartbeat_seconds=15.0,
    )
    wanted = EventFilter(principal=ANYONE, kinds=frozenset({"verdict"}))
    async with asyncio.timeout(10), aclosing(streams.open(wanted, None)) as stream:
        begun = await anext(stream)
        await publish(bus, 1)
        waiting = asyncio.ensure_future(anext(stream))
        while not waiting.done():
            await publish(bus, 1)
            await asyncio.sleep(0)
    running.cancel()

    assert b"connected" in begun
    assert b"alive" in waiting.result()


async def test_a_caller_ahead_of_the_store_learns_that_it_was_set_back(bus: MemoryBus) -> None:
    """A caller that is ahead reads the fleet again; events that follow reach it."""
    await publish(bus, 3)
    relay = EventRelay(bus, SystemClock())
    running = asyncio.create_task(relay.run())
    events = relay.stream(70, PAUSE_SECONDS)
    first = await relayed(events, 1)
    await publish(bus, 1)
    rest = await relayed(events, 1)
    await events.aclose()
    running.cancel()

    assert [0, 4] == first + rest
    assert await bus.last_sequence(EVENTS.name) == 4


async def test_a_gateway_that_stops_ends_its_streams(gateway: Gateway) -> None:
    """A gateway that stops ends its streams, so that callers go to another at once."""
    async with (
        serving(gateway.app) as url,  # type: ignore[arg-type]
        streaming(url) as events,
    ):
        gateway.relay.close()
        assert [each async for each in events if "data" in each] == []
