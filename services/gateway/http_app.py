"""The HTTP application: routes, authentication, errors, OpenAPI."""

import asyncio
import secrets
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

from litestar import Litestar, MediaType, Request, Response, get
from litestar.di import Provide
from litestar.handlers import ASGIRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import (
    Components,
    OpenAPIResponse,
    Reference,
    Schema,
    SecurityScheme,
)
from prometheus_client import CollectorRegistry

from schemas.dry_run import DryRun
from services.bus.port import Bus
from services.fleet_client.fleet_client import FleetClient
from services.gateway.access_tokens import Principal
from services.gateway.authentication import PUBLIC, Access, authentication, require_role
from services.gateway.change_audit import DRY_RUN_HEADER, change_audit
from services.gateway.change_bodies import BODIES
from services.gateway.change_requests import ChangeRequests
from services.gateway.change_routes import CHANGE_ROUTES
from services.gateway.dashboard_files import dashboard_routes
from services.gateway.entity_tags import EntityTags
from services.gateway.event_routes import EVENT_ROUTES
from services.gateway.event_streams import EventStreams
from services.gateway.fleet_routes import FLEET_ROUTES
from services.gateway.history_routes import HISTORY_ROUTES
from services.gateway.order_routes import ORDER_ROUTES
from services.gateway.problems import PROTECTION, REQUEST_HEADER, answer_problem
from services.gateway.request_meter import request_meter
from services.gateway.stream_routes import STREAM_ROUTES
from services.gateway.views import ChangeAnswer
from services.primitives.clock import Clock
from services.runtime.metric_exposition import exposition

BODY_BYTES_MAX: Final = 65_536
HISTORIES_MAX: Final = 4
"""Histories that are read at once: each may be a month of events. Further callers wait."""
KEY_BYTES: Final = 12
DESCRIBED_ROUTES: Final = (
    *(*FLEET_ROUTES, *HISTORY_ROUTES, *EVENT_ROUTES),
    *(*STREAM_ROUTES, *CHANGE_ROUTES, *ORDER_ROUTES),
)
CHARSET: Final = "; charset=utf-8"
"""Which the library adds itself."""
DESCRIPTION: Final = "Reads a Navarch fleet and changes it: docs/http-api.md."


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

    app = Litestar(
        [
            *public_routes(bus, registry),
            *dashboard_routes(),
            *(*DESCRIBED_ROUTES, *more),
        ],
        dependencies={
            "fleet": _provide(fleet),
            "changes": _provide(ChangeRequests(fleet, clock.now, new_key)),
            "histories": _provide(asyncio.Semaphore(HISTORIES_MAX)),
            "streams": _provide(streams),
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
        openapi_config=_openapi(),
        after_request=_protect,
    )
    _complete(app)
    return app


def _provide(value: Any) -> Provide:
    return Provide(lambda: value, sync_to_thread=False)


def api_description() -> dict[str, Any]:
    """The OpenAPI description of the API, for the documentation: without a bus or a fleet."""
    given = ("fleet", "changes", "histories", "streams", "now", "principal")
    app = Litestar(
        DESCRIBED_ROUTES,
        dependencies={name: _provide(None) for name in given},
        logging_config=None,
        openapi_config=_openapi(),
    )
    _complete(app)
    return app.openapi_schema.to_schema()


def _complete(app: Litestar) -> None:
    """Describe what the library leaves out.

    A body may have no other fields; patterns are read by other languages than Python; and a caller
    that has the answer already gets 304.
    """
    schemas, paths = app.openapi_schema.components.schemas, app.openapi_schema.paths
    assert schemas is not None
    assert paths is not None
    for each in BODIES:
        schemas[each.__name__].additional_properties = False
    for schema in schemas.values():
        _translate_patterns(schema)
    for path in paths.values():
        if path.get is not None and path.get.responses is not None:
            path.get.responses["304"] = OpenAPIResponse(description="Not Modified")


def _translate_patterns(schema: Schema | Reference) -> None:
    if isinstance(schema, Reference):
        return
    if schema.pattern is not None:
        schema.pattern = schema.pattern.replace(r"\Z", "$")
    inside = [*(schema.properties or {}).values(), *(schema.one_of or ())]
    if isinstance(schema.items, Schema):
        inside.append(schema.items)
    for each in inside:
        _translate_patterns(each)


def _protect(response: Response[Any]) -> Response[Any]:
    """Add the headers that every answer has."""
    if isinstance(response.content, DryRun):
        response.headers[DRY_RUN_HEADER] = "true"
    if isinstance(response.content, ChangeAnswer):
        response.headers[REQUEST_HEADER] = response.content.request
    for name, value in PROTECTION.items():
        response.headers.setdefault(name, value)
    return response


def _openapi() -> OpenAPIConfig:
    scheme = SecurityScheme(type="http", scheme="bearer")
    return OpenAPIConfig(
        title="Navarch",
        version=version("navarch"),
        description=DESCRIPTION,
        path="/api/v1",
        render_plugins=[JsonRenderPlugin()],
        components=Components(security_schemes={"token": scheme}),
        security=[{"token": []}],
        operation_id_creator=_operation_id,
        use_handler_docstrings=True,
    )


def _operation_id(handler: Any, *_: Any) -> str:
    return str(handler.handler_name)
