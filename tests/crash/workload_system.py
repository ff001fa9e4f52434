"""A workload system for the notifier: it answers slowly and records its orders."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tests.support.serving import serving as serving_app

ANSWER_SECONDS: Final = 0.015
"""Between accepting an order and answering: a caller killed meanwhile cannot know the outcome."""

EVENTS: Final = ("cordon", "uncordon", "cordon_gpus", "drain")

Taken = Callable[[str, str], None]
"""Called with event and node when an order is accepted."""


@dataclass(slots=True)
class Workload:
    """Accepts each order once by its key, and drains nodes."""

    taken: Taken
    drain_seconds: float
    """How long a node's work takes to leave."""
    url: str = ""
    holding: bool = False
    """While set, no node finishes draining."""
    refusing: str = ""
    """The event that is refused for good, each time it is ordered."""
    cordoned_gpus: dict[str, list[int]] = field(default_factory=dict)
    """Node -> those that get no new work, as it was last ordered."""
    orders: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """(event, node) -> the saga steps by whose idempotency keys it was ordered."""
    _cordoned: set[str] = field(default_factory=set)
    _drained_at: dict[str, float] = field(default_factory=dict)

    async def order(self, request: Request) -> Response:
        """Accept an order, and answer a little later."""
        order = await request.json()
        event, node = str(order["event"]), str(order["node_id"])
        if event == self.refusing:
            return PlainTextResponse("not now", status_code=403)
        keys = self.orders.setdefault((event, node), set())
        keys.add(request.headers.get("idempotency-key", "").removesuffix(f":{event}"))
        if event == "drain":
            drained_at = asyncio.get_running_loop().time() + self.drain_seconds
            self._drained_at.setdefault(node, drained_at)
        if event == "cordon_gpus":
            self.cordoned_gpus[node] = [each["index"] for each in order["gpus"]]
        if event == "cordon":
            self._cordoned.add(node)
        if event == "uncordon":
            self._cordoned.discard(node)
            self._drained_at.pop(node, None)
        self.taken(event, node)
        await asyncio.sleep(ANSWER_SECONDS)
        return PlainTextResponse("taken")

    def is_idle(self, node: str) -> bool:
        """Return whether a node has no work and gets none: it was cordoned, and its work left."""
        at = self._drained_at.get(node)
        return node in self._cordoned and at is not None and asyncio.get_running_loop().time() >= at

    async def status(self, request: Request) -> Response:
        """Say whether a node is drained."""
        at = self._drained_at.get(request.query_params["node_id"])
        gone = at is not None and asyncio.get_running_loop().time() >= at
        return JSONResponse({"drained": gone and not self.holding})

    def settings(self, *, gpus: bool = False) -> dict[str, str]:
        """Return the configuration's settings of this workload system."""
        return {
            "type": "webhook",
            **{
                f"{event}_url": f"{self.url}/{event}"
                for event in EVENTS
                # An earlier release does not know the key.
                if gpus or event != "cordon_gpus"
            },
            "drain_status_url": f"{self.url}/status",
        }


@asynccontextmanager
async def serving(workload: Workload, host: str = "127.0.0.1") -> AsyncIterator[Workload]:
    """Answer on a free port."""
    routes = [
        Route("/status", workload.status),
        Route("/{event}", workload.order, methods=["POST"]),
    ]
    async with serving_app(Starlette(routes=routes), host=host) as workload.url:
        yield workload
