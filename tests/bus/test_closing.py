"""A connection that does not end delays its owner for a limited time."""

import asyncio
from contextlib import suppress

import pytest

from services.bus.nats import connection_options
from services.bus.nats.connection_options import end_client, ends_within
from services.bus.nats.quick_client import QuickClient


async def test_a_client_that_never_closes_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that swallows its cancellation, as the client does while it reconnects."""
    monkeypatch.setattr(connection_options, "CLOSE_SECONDS_MAX", 0.01)
    released = asyncio.Event()

    async def close() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async with asyncio.timeout(10):
        await end_client(close())
    released.set()


async def test_an_attempt_that_swallows_cancellations_is_given_up() -> None:
    """The client swallows cancellations between two attempts that a server refuses."""
    swallowed = 0

    async def connect() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 3:
                    raise

    assert not await ends_within(connect(), 0.01)
    assert swallowed == 3


async def test_a_swallowed_cancellation_ends_the_next_attempt() -> None:
    """An error in the same moment takes its place, and the client would try on for ever."""
    client, failing = QuickClient(), asyncio.Event()

    async def failed(_: Exception) -> None:
        failing.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    nowhere = client.connect(["nats://127.0.0.1:1"], error_cb=failed, max_reconnect_attempts=-1)
    connecting = asyncio.create_task(nowhere)
    await failing.wait()
    connecting.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait([connecting])
    assert connecting.cancelled()


async def test_what_connects_in_time_says_how() -> None:
    """The attempt's error is raised, and without a limit it has all the time it needs."""

    async def connect(error: Exception | None) -> None:
        await asyncio.sleep(0)
        if error is not None:
            raise error

    assert await ends_within(connect(None), None)
    with pytest.raises(OSError, match="unreachable"):
        await ends_within(connect(OSError("unreachable")), 60)
