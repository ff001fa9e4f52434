"""What stands around a fleet in the scenarios: a workload system and a trace collector, over HTTP.

Both are real HTTP servers on one free port, and note all that they are sent.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.serving import serving

WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One POST of the notifier."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span, as a service exported it."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    subject: str


@dataclass(slots=True)
class Around:
    """Both, with what they were sent."""

    url: str = ""
    orders: list[Order] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Node of every status question."""
    busy: set[str] = field(default_factory=set)
    """Nodes with work on them: not drained until taken out of here."""
    all_busy: bool = False
    spans: list[Span] = field(default_factory=list)
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Wait until something about the requests is true."""
        async with asyncio.timeout(seconds), self.moved:
            await self.moved.wait_for(condition)

    def orders_about(self, node: str) -> list[Order]:
        """What the workload system was told about one node."""
        return [each for each in self.orders if each.body.get("node_id") == node]

    async def _note(self) -> None:
        async with self.moved:
            self.moved.notify_all()

    async def order(self, request: Request) -> Response:
        """Take an order."""
        self.orders.append(
            Order(
                path=request.url.path,
                body=await request.json(),
                headers=dict(request.headers),
                at=datetime.now(UTC),
            )
        )
        await self._note()
        return Response(status_code=202)

    async def status(self, request: Request) -> Response:
        """Say whether a node is drained."""
        node = request.query_params["node_id"]
        self.asked.append(node)
        await self._note()
        return JSONResponse({"drained": node not in self.busy and not self.all_busy})

    async def traces(self, request: Request) -> Response:
        """Take spans (OTLP over HTTP, protobuf)."""
        sent = ExportTraceServiceRequest.FromString(await request.body())
        for resource in sent.resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.spans += [
                Span(
                    service=names["service.name"],
                    name=span.name,
                    trace=span.trace_id.hex(),
                    span=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    subject=next(
                        (a.value.string_value for a in span.attributes if a.key == "subject"), ""
                    ),
                )
                for scope in resource.scope_spans
                for span in scope.spans
            ]
        await self._note()
        return Response(media_type="application/x-protobuf")


@asynccontextmanager
async def surroundings() -> AsyncIterator[Around]:
    """Serve both on a free port."""
    around = Around()
    routes = [
        Route("/v1/traces", around.traces, methods=["POST"]),
        Route("/drained", around.status),
        Route("/{event}", around.order, methods=["POST"]),
    ]
    async with serving(Starlette(routes=routes)) as around.url:
        yield around
