"""An OpenTelemetry collector as far as metrics go: OTLP over HTTP, decoded by its own schema."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.serving import serving

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Received:
    """Holds one data point."""

    service: str
    instance: str
    name: str
    type: str
    labels: Labels
    point: Any


@dataclass(slots=True)
class OtlpReceiver:
    """Keeps what it was sent."""

    url: str = ""
    status: int = 200
    """Of its answers."""
    hangs: bool = False
    points: list[Received] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    """How many points each had."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: Request) -> Response:
        """Take one request."""
        body = await request.body()
        if self.hangs:
            await asyncio.Event().wait()
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        before = len(self.points)
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    kind = metric.WhichOneof("data")
                    self.points += [
                        Received(
                            about["service.name"],
                            about["service.instance.id"],
                            metric.name,
                            kind,
                            labels_of(point),
                            point,
                        )
                        for point in getattr(metric, kind).data_points
                    ]
        self.requests.append(len(self.points) - before)
        self.arrived.set()
        return Response(status_code=self.status, media_type="application/x-protobuf")


def labels_of(point: Any) -> Labels:
    """Return the labels of a data point."""
    return tuple(sorted((each.key, each.value.string_value) for each in point.attributes))


@asynccontextmanager
async def otlp_receiver() -> AsyncIterator[OtlpReceiver]:
    """Serve one on a free port; `url` is the endpoint of metrics."""
    found = OtlpReceiver()
    route = Route("/v1/metrics", found.answer, methods=["POST"])
    async with serving(Starlette(routes=[route])) as url:
        found.url = f"{url}/v1/metrics"
        yield found
