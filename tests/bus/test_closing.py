"""A connection that does not end delays its owner for a limited time."""

import asyncio

import pytest

from services.bus.nats import connection_options
from services.bus.nats.connection_options import end_client


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
