"""Serves a workload system and a trace collector for a fleet under test, over HTTP.

Both are real HTTP servers on one free port, and record every request.
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
    """Records one POST of the notifier."""

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
class FakeWorkloadSystem:
    """Both servers, with the requests that they received."""

    url: str = ""
    orders: list[Order] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Node of every status question."""
    busy: set[str] = field(default_factory=set)
    """Nodes with work on them: not drained while they are in this set."""
    all_busy: bool = False
    spans: list[Span] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Wait until a condition on the requests holds."""
        async with asyncio.timeout(seconds), self.changed:
            await self.changed.wait_for(condition)

    def orders_about(self, node: str) -> list[Order]:
        """The orders that the workload system received about one node."""
        return [each for each in self.orders if each.body.get("node_id") == node]

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def order(self, request: Request) -> Response:
        """Record an order."""
        self.orders.append(
            Order(
                path=request.url.path,
                body=await request.json(),
                headers=dict(request.headers),
                at=datetime.now(UTC),
            )
        )
        await self._notify()
        return Response(status_code=202)

    async def status(self, request: Request) -> Response:
        """Reply whether a node is drained."""
        node = request.query_params["node_id"]
        self.asked.append(node)
        await self._notify()
        return JSONResponse({"drained": node not in self.busy and not self.all_busy})

    async def traces(self, request: Request) -> Response:
        """Record spans (OTLP over HTTP, protobuf)."""
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
        await self._notify()
        return Response(media_type="application/x-protobuf")


@asynccontextmanager
async def serve_workload_system() -> AsyncIterator[FakeWorkloadSystem]:
    """Serve both on a free port."""
    system = FakeWorkloadSystem()
    routes = [
        Route("/v1/traces", system.traces, methods=["POST"]),
        Route("/drained", system.status),
        Route("/{event}", system.order, methods=["POST"]),
    ]
    async with serving(Starlette(routes=routes)) as system.url:
        yield system
