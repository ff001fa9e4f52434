"""The HTTP application: routes, the dashboard, authentication, errors, entity tags, counts."""

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Sequence
from http import HTTPMethod, HTTPStatus
from pathlib import Path
from typing import Any, Final

from litestar import Litestar, MediaType, Request, Response, get
from litestar.di import Provide
from litestar.handlers import ASGIRouteHandler, HTTPRouteHandler
from litestar.params import FromPath
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from prometheus_client import CollectorRegistry, Counter

from schemas.dry_run import DryRun
from schemas.metric_catalogue import HTTP_REQUESTS, OTHER
from services.bus.port import Bus
from services.fleet_client.fleet_client import FleetClient
from services.gateway.access_tokens import Principal
from services.gateway.api_description import DESCRIBED_ROUTES, DESCRIPTION_ROUTES, provide
from services.gateway.authentication import PUBLIC, Access, authentication, require_role
from services.gateway.change_requests import DRY_RUN_HEADER, ChangeRequests, change_audit
from services.gateway.event_streams import EventStreams
from services.gateway.problems import PROTECTION, REQUEST_HEADER, ProblemError, answer_problem
from services.gateway.views import ChangeAnswer
from services.primitives.clock import Clock
from services.runtime.metric_exposition import SharedExposition
from services.runtime.readiness import Readiness

FOLDER: Final = Path(__file__).parent / "dashboard"
PAGE: Final = "index.html"
MEDIA_TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
TAGGED: Final = frozenset(
    {b"application/json", b"text/html", b"text/javascript", b"text/css", b"image/svg+xml"}
)
OK: Final = 200
NOT_MODIFIED: Final = 304
METHODS: Final = frozenset(HTTPMethod)
"""A caller may send any word; every other counts as `other`."""
BODY_BYTES_MAX: Final = 65_536
HISTORIES_MAX: Final = 4
"""Histories that are read at once: each may be a month of events. Further callers wait."""
KEY_BYTES: Final = 12
CHARSET: Final = "; charset=utf-8"
"""Which the library adds itself."""


def dashboard_routes() -> list[HTTPRouteHandler]:
    """Read the files once, and serve them from memory."""
    files = {
        path.name: (path.read_bytes(), MEDIA_TYPES[path.suffix])
        for path in sorted(FOLDER.iterdir())
        if path.suffix in MEDIA_TYPES
    }
    options: dict[str, Any] = {
        "opt": {PUBLIC: True},
        "include_in_schema": False,
        "cache": False,
        "sync_to_thread": False,
    }

    def answer(name: str) -> Response[bytes]:
        if name not in files:
            raise ProblemError(HTTPStatus.NOT_FOUND, f"the dashboard has no file {name!r}", "GET /")
        content, media_type = files[name]
        return Response(content, media_type=media_type, headers=HEADERS)

    @get("/", **options)
    def dashboard_page() -> Response[bytes]:
        return answer(PAGE)

    @get("/dashboard/{name:str}", **options)
    def dashboard_file(name: FromPath[str]) -> Response[bytes]:
        return answer(name)

    return [dashboard_page, dashboard_file]


class EntityTags:
    """Middleware; answers of other types, as event streams, pass as they come."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request: Any = scope
        answer: Any = send
        if request["method"] != "GET":
            await self._app(scope, receive, send)
            return
        known = dict(request["headers"]).get(b"if-none-match", b"").decode("latin-1")
        start: Any = None
        body = b""

        async def tag(message: Any) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                kind = dict(message["headers"]).get(b"content-type", b"")
                if message["status"] == OK and kind.partition(b";")[0] in TAGGED:
                    start = message
                    return
            if start is None:
                await send(message)
                return
            body += message["body"]
            if message["more_body"]:
                return
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            headers = [*start["headers"], (b"etag", etag.encode())]
            if matches(known, etag):
                headers = [each for each in headers if each[0] != b"content-length"]
                start, body = {**start, "status": NOT_MODIFIED}, b""
            await answer({**start, "headers": headers})
            await answer({**message, "body": body})

        await self._app(scope, receive, tag)


def matches(if_none_match: str, etag: str) -> bool:
    """Return whether the caller has this answer. Pure."""
    named = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
    return "*" in named or etag in named


def request_meter(registry: CollectorRegistry) -> Callable[[ASGIApp], ASGIApp]:
    """The middleware that counts into a registry what leaves."""
    answered = Counter(
        *HTTP_REQUESTS.declared,
        registry=registry,
    )

    def wrap(app: ASGIApp) -> ASGIApp:
        async def metered(scope: Scope, receive: Receive, send: Send) -> None:
            request: Any = scope

            def count(status: int) -> None:
                method = request["method"] if request["method"] in METHODS else OTHER
                answered.labels(method, request.get("path_template", ""), int(status)).inc()

            async def counted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    count(message["status"])
                await send(message)

            try:
                await app(scope, receive, counted)
            except ProblemError as error:
                # Of the authentication; the application answers it outside of this.
                count(error.status)
                raise

        return metered

    return wrap


def public_routes(bus: Bus, registry: CollectorRegistry) -> list[Any]:
    """Return what needs no token: health and metrics."""
    options: dict[str, Any] = {"opt": {PUBLIC: True}, "include_in_schema": False, "cache": False}

    @get(["/healthz", "/livez"], media_type=MediaType.TEXT, sync_to_thread=False, **options)
    def health() -> str:
        return "alive\n"

    ready = Readiness(bus)

    @get("/readyz", media_type=MediaType.TEXT, **options)
    async def readiness() -> Response[str]:
        problem = await ready.problem()
        status_code = 503 if problem else 200
        text = f"{problem or 'ready'}\n"
        return Response(text, media_type=MediaType.TEXT, status_code=status_code)

    exposition = SharedExposition(registry)

    @get("/metrics", **options)
    async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
        text, kind = await exposition.text(request.headers.get("accept", ""))
        return Response(text, media_type=kind.replace(CHARSET, ""))

    return [health, readiness, metrics]


def http_app(
    bus: Bus,
    fleet: FleetClient,
    access: Access,
    streams: EventStreams,
    clock: Clock,
    registry: CollectorRegistry,
    more: Sequence[ASGIRouteHandler | HTTPRouteHandler] = (),
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
