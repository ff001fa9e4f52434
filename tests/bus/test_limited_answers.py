"""Answers at a limited rate: the server keeps back what is beyond."""

import asyncio
from contextlib import suppress

import pytest

from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Headers
from services.primitives.errors import NoResponders
from tests.support.inprocess import eventually

SUBJECT = "some"
MOST = 5
HOUR_SECONDS = 3_600.0


class Responder:
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def answer(self, data: bytes, _: Headers) -> bytes:
        """Answer with what was asked."""
        self.asked += 1
        return data


async def test_what_is_beyond_the_limit_finds_no_responder(bus: NatsBus) -> None:
    """The responder receives no more, however many ask at once."""
    responder = Responder()
    await bus.answer_some(SUBJECT, responder.answer, most=MOST, seconds=HOUR_SECONDS)
    found = await asyncio.gather(
        *(bus.request(SUBJECT, b"x", timeout_seconds=60) for _ in range(500)),
        return_exceptions=True,
    )
    assert sum(isinstance(each, NoResponders) for each in found) == 500 - MOST
    assert responder.asked == MOST


async def test_it_answers_again_after_the_time(bus: NatsBus) -> None:
    """The responder answers again as often as its limit is used up."""
    responder = Responder()
    await bus.answer_some(SUBJECT, responder.answer, most=MOST, seconds=0)

    async def answered() -> bytes:
        with suppress(NoResponders):
            return (await bus.request(SUBJECT, b"x", timeout_seconds=60)).data
        return b""

    for _ in range(4 * MOST):
        assert await eventually(answered, within_seconds=60) == b"x"
    assert responder.asked == 4 * MOST


async def test_the_limit_holds_over_a_lost_connection(server: EmbeddedServer, bus: NatsBus) -> None:
    """The part of the limit that was left is still left."""
    responder = Responder()
    await bus.answer_some(SUBJECT, responder.answer, most=MOST, seconds=HOUR_SECONDS)
    await bus.request(SUBJECT, b"x", timeout_seconds=60)
    before = bus.connections
    await server.restart()

    async def again() -> bool:
        return bus.connections > before

    await eventually(again, within_seconds=60)
    for _ in range(MOST - 1):
        await bus.request(SUBJECT, b"x", timeout_seconds=60)
    with pytest.raises(NoResponders):
        await bus.request(SUBJECT, b"x", timeout_seconds=60)
