"""Event streams cost the gateway a bounded part of its memory, and no caller has all of them."""

import asyncio
import socket
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from schemas import subjects
from schemas.messages import encode
from schemas.node_events import Fault
from schemas.permissions import AGENT_BYTES_MAX
from services.bus.memory.memory_bus import MemoryBus
from services.gateway.event_streams import (
    BATCH_BYTES_MAX,
    BATCH_MAX,
    KEPT_BYTES_MAX,
    EventRelay,
    StreamReset,
)
from services.primitives.clock import SystemClock
from tests.gateway.conftest import MakeGateway
from tests.support.serving import serving
from tests.support.settling import arriving

NOW: Final = datetime(2026, 11, 30, tzinfo=UTC)
PAUSE_SECONDS: Final = 60.0


async def flood(bus: MemoryBus, count: int) -> None:
    """Store facts that are as long as an agent's may be."""
    text = "x" * (AGENT_BYTES_MAX - 600)
    for number in range(count):
        about = {"pool": "training", "node": f"training-{number}"}
        data = encode(Fault(id="f", time=NOW, kind="xid", code=79, message=text, **about))
        assert AGENT_BYTES_MAX - 600 < len(data) <= AGENT_BYTES_MAX
        await bus.publish(subjects.node_event("training", f"training-{number}", "fault"), data)
    await arriving(bus)


async def test_long_facts_of_an_agent_do_not_fill_the_gateway(bus: MemoryBus) -> None:
    """4,096 of them were 256 MB, and as much again where one caller read them; none is lost."""
    count = 3 * KEPT_BYTES_MAX // AGENT_BYTES_MAX
    relay = EventRelay(bus, SystemClock())
    running = asyncio.create_task(relay.run())
    position = await relay.newest()
    await flood(bus, count)
    slow = relay.stream(position, PAUSE_SECONDS)
    found: list[int] = []
    most = 0
    async with asyncio.timeout(60):
        while len(found) < count:
            batch = await anext(slow)
            assert not isinstance(batch, StreamReset)
            found += [each.stored.sequence for each in batch]
            most = max(most, sum(len(each.stored.data) for each in batch))
    await slow.aclose()
    running.cancel()

    assert list(range(1, count + 1)) == found
    assert relay.kept_bytes <= KEPT_BYTES_MAX
    assert most <= BATCH_BYTES_MAX


async def test_callers_that_read_nothing_hold_a_batch_each(
    make_gateway: MakeGateway, bus: MemoryBus
) -> None:
    """Thirty of them held 64 events each, of which each was as long as an agent's may be."""
    readers = 30
    gateway = make_gateway(streams_max=4 * readers, kept_max=4_096)
    async with serving(gateway.app) as url, AsyncExitStack() as opened:  # type: ignore[arg-type]
        port = urlsplit(url).port
        held: list[Any] = []
        for _ in range(readers):
            silent = socket.socket()
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            silent.setblocking(False)
            opened.callback(silent.close)
            await asyncio.get_running_loop().sock_connect(silent, ("127.0.0.1", port))
            head = b"GET /api/v1/events/stream HTTP/1.1\r\nHost: x\r\n"
            head += b"Authorization: Bearer viewer-token\r\n\r\n"
            await asyncio.get_running_loop().sock_sendall(silent, head)
            held.append(silent)
        async with httpx.AsyncClient(base_url=url) as client, asyncio.timeout(60):
            while f"event_streams {readers}.0" not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.01)
            await flood(bus, 4 * BATCH_MAX)
            answer = await client.get("/livez")
            buffered = [
                each.get_write_buffer_size()
                for each in transports()
                if each.get_write_buffer_size() > 0
            ]

    assert answer.status_code == 200
    assert buffered
    assert max(buffered) <= 2 * BATCH_BYTES_MAX + 2 * AGENT_BYTES_MAX


def transports() -> list[Any]:
    """Return the open connections of this loop, as the selector has them."""
    selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    found = []
    for key in selector.get_map().values():
        for handle in key.data or ():
            owner = getattr(getattr(handle, "_callback", None), "__self__", None)
            if hasattr(owner, "get_write_buffer_size"):
                found.append(owner)
    return list(dict.fromkeys(found))


async def test_streams_that_are_opened_at_once_are_limited_too(make_gateway: MakeGateway) -> None:
    """Each was let in before the first had counted."""
    gateway = make_gateway(streams_max=8)
    async with serving(gateway.app) as url, AsyncExitStack() as opened:  # type: ignore[arg-type]
        own = {"Authorization": "Bearer viewer-token"}
        client = await opened.enter_async_context(
            httpx.AsyncClient(base_url=url, headers=own, limits=httpx.Limits(max_connections=None))
        )

        async def ask() -> int:
            answer = await opened.enter_async_context(client.stream("GET", "/api/v1/events/stream"))
            return answer.status_code

        async with asyncio.timeout(60):
            found = await asyncio.gather(*(ask() for _ in range(40)))

    assert (found.count(200), found.count(429)) == (2, 38)
