"""The HTTP application: routes, authentication, errors."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, Final

from litestar import Litestar, MediaType, Request, Response, get
from litestar.di import Provide
from litestar.handlers import ASGIRouteHandler
from prometheus_client import CollectorRegistry

from schemas.dry_run import DryRun
from services.bus.port import Bus
from services.fleet_client.fleet_client import FleetClient
from services.gateway.access_tokens import Principal
from services.gateway.api_description import DESCRIBED_ROUTES, DESCRIPTION_ROUTES, provide
from services.gateway.authentication import PUBLIC, Access, authentication, require_role
from services.gateway.change_audit import DRY_RUN_HEADER, change_audit
from services.gateway.change_requests import ChangeRequests
from services.gateway.dashboard_files import dashboard_routes
from services.gateway.entity_tags import EntityTags
from services.gateway.event_streams import EventStreams
from services.gateway.problems import PROTECTION, REQUEST_HEADER, answer_problem
from services.gateway.request_meter import request_meter
from services.gateway.views import ChangeAnswer
from services.primitives.clock import Clock
from services.runtime.metric_exposition import exposition

BODY_BYTES_MAX: Final = 65_536
HISTORIES_MAX: Final = 4
"""Histories that are read at once: each may be a month of events. Further callers wait."""
KEY_BYTES: Final = 12
CHARSET: Final = "; charset=utf-8"
"""Which the library adds itself."""


def public_routes(bus: Bus, registry: CollectorRegistry) -> list[Any]:
    """What needs no token: health and metrics."""
    options: dict[str, Any] = {"opt": {PUBLIC: True}, "include_in_schema": False, "cache": False}

    @get(["/healthz", "/livez"], media_type=MediaType.TEXT, sync_to_thread=False, **options)
    def health() -> str:
        return "alive\n"

    @get("/readyz", media_type=MediaType.TEXT, sync_to_thread=False, **options)
    def readiness() -> Response[str]:
        if bus.connected:
            return Response("ready\n", media_type=MediaType.TEXT)
        return Response("the bus is not connected\n", media_type=MediaType.TEXT, status_code=503)

    @get("/metrics", **options)
    async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
        text, kind = await exposition(registry, request.headers.get("accept", ""))
        return Response(text, media_type=kind.replace(CHARSET, ""))

    return [health, readiness, metrics]


def http_app(
    bus: Bus,
    fleet: FleetClient,
    access: Access,
    streams: EventStreams,
    clock: Clock,
    registry: CollectorRegistry,
    more: Sequence[ASGIRouteHandler] = (),
) -> Litestar:
    """Build the application over one connection to the bus; `more`: further routes."""

    def new_key() -> str:
        return f"http-{secrets.token_hex(KEY_BYTES)}"

    def principal(request: Request[Principal, Any, Any]) -> Principal:
        return request.user

    return Litestar(
        [
            *public_routes(bus, registry),
            *dashboard_routes(),
            *(*DESCRIBED_ROUTES, *DESCRIPTION_ROUTES, *more),
        ],
        dependencies={
            "fleet": provide(fleet),
            "changes": provide(ChangeRequests(fleet, clock.now, new_key)),
            "histories": provide(asyncio.Semaphore(HISTORIES_MAX)),
            "streams": provide(streams),
            "now": Provide(clock.now, sync_to_thread=False),
            "principal": Provide(principal, sync_to_thread=False),
        },
        middleware=[
            request_meter(registry),
            change_audit(bus, clock.now, new_key),
            EntityTags,
            authentication(access),
        ],
        guards=[require_role],
        exception_handlers={Exception: answer_problem},
        request_max_body_size=BODY_BYTES_MAX,
        logging_config=None,
        openapi_config=None,
        after_request=_protect,
    )


def _protect(response: Response[Any]) -> Response[Any]:
    """Add the headers that every answer has."""
    if isinstance(response.content, DryRun):
        response.headers[DRY_RUN_HEADER] = "true"
    if isinstance(response.content, ChangeAnswer):
        response.headers[REQUEST_HEADER] = response.content.request
    for name, value in PROTECTION.items():
        response.headers.setdefault(name, value)
    return response
