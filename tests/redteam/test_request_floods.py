"""Many complete requests of strangers at once delay neither probes nor callers, nor each other."""

import asyncio
from collections import Counter as Count
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from services.runtime.http_protocol import KNOW_CALLER
from services.runtime.metric_exposition import SharedExposition, content_type
from services.runtime.stranger_turns import STRANGER, StrangerTurns
from tests.support.serving import serving

MANY = 1_000


class Order:
    """Notes the order in which requests begin."""

    def __init__(self) -> None:
        """Begin with none."""
        self.begun: list[str] = []
        self.app = StrangerTurns(self._begin)

    async def _begin(self, scope: Any, _receive: Any, _send: Any) -> None:
        self.begun.append(scope["path"])
        await asyncio.Event().wait()  # as one that waits for the bus

    def request(self, path: str, address: str, is_stranger: Callable[[], bool]) -> Any:
        """Ask for something, and never be answered."""
        state = {STRANGER: is_stranger}
        scope = {"type": "http", "path": path, "client": (address, 1), "state": state}
        return asyncio.create_task(self.app(scope, None, None))


async def begin(order: Order, tasks: list[asyncio.Task[None]], until: Callable[[], bool]) -> int:
    """Let the loop turn until something holds; return how often it turned."""
    turns = 0
    while not until():
        await asyncio.sleep(0)
        turns += 1
        assert turns < 10 * MANY, order.begun
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return turns


async def test_a_request_waits_for_one_of_each_other_address() -> None:
    """A thousand wait of each of two addresses; the probe of a third is the third to begin."""
    order = Order()
    tasks = [
        order.request(f"/flood{address}", address, lambda: True)
        for _ in range(MANY)
        for address in ("192.0.2.1", "192.0.2.2")
    ]
    tasks.append(order.request("/livez", "192.0.2.3", lambda: True))
    await begin(order, tasks, lambda: "/livez" in order.begun)
    assert order.begun.index("/livez") <= 3


async def test_a_callers_request_waits_for_none() -> None:
    """The connection of an authenticated caller has its requests begun as they come."""
    order = Order()
    tasks = [order.request("/flood", "192.0.2.1", lambda: True) for _ in range(MANY)]
    tasks.append(order.request("/caller", "192.0.2.1", lambda: False))
    await begin(order, tasks, lambda: "/caller" in order.begun)
    assert order.begun.index("/caller") <= 2


async def test_one_turn_of_the_loop_begins_one_request() -> None:
    """The process does all else between them: a fault is not delayed by their sum."""
    order = Order()
    tasks = [order.request("/flood", f"192.0.2.{each % 9}", lambda: True) for each in range(MANY)]
    turns = await begin(order, tasks, lambda: len(order.begun) == MANY)
    assert turns >= MANY


async def test_requests_of_ended_connections_are_dropped() -> None:
    """A client that opens and closes connections leaves nothing to be done for them."""
    order = Order()
    is_open = True
    tasks = [order.request("/gone", "192.0.2.1", lambda: is_open) for _ in range(MANY)]
    tasks.append(order.request("/livez", "192.0.2.1", lambda: True))
    await asyncio.sleep(0)
    is_open = False
    turns = await begin(order, tasks, lambda: "/livez" in order.begun)
    assert turns < 10
    assert Count(order.begun)["/gone"] <= 5


class Counted(Collector):
    """Counts how often the values are read."""

    reads = 0

    def collect(self) -> list[Any]:
        """Return no metric, and count that."""
        self.reads += 1
        return []


async def test_metrics_are_written_once_for_all_who_ask_at_once() -> None:
    """4,300 requests for `/metrics` had a gateway write them 4,300 times, and `/livez` wait."""
    registry, counted = CollectorRegistry(), Counted()
    registry.register(counted)
    counted.reads = 0
    shared = SharedExposition(registry)
    odd = [f"application/openmetrics-text; version={each}.0.{each}" for each in range(1, MANY)]
    await asyncio.gather(*(shared.text(each) for each in odd))
    assert counted.reads <= 2
    assert len(set(map(content_type, odd))) == 1


@pytest.mark.parametrize("is_known", [True, False])
async def test_the_server_has_strangers_wait_alone(*, is_known: bool) -> None:
    """The connection says so, from the first request that its caller was authenticated in."""
    seen: list[bool] = []

    async def answer(request: Request) -> PlainTextResponse:
        state = request.scope["state"]
        seen.append(state[STRANGER]())
        if is_known:
            assert state[KNOW_CALLER]("ada")
        return PlainTextResponse("done")

    async with (
        serving(Starlette(routes=[Route("/", answer)])) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        for _ in range(2):
            assert (await client.get("/")).status_code == HTTPStatus.OK
    assert seen == [True, not is_known]
