"""Publishes an event about every change that was requested by HTTP, also about those refused."""

import logging
from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

from litestar.types import ASGIApp, Message, Receive, Scope, Send

from schemas.fleet_events import HttpChange
from schemas.value_limits import NAME_CHARS_MAX
from services.bus.port import Bus
from services.gateway.access_tokens import Principal
from services.gateway.problems import REASON, REQUEST_HEADER
from services.primitives.errors import BusError
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

OUTCOMES: Final = {
    HTTPStatus.OK: "accepted",
    HTTPStatus.ACCEPTED: "unanswered",
    HTTPStatus.CONFLICT: "refused",
    HTTPStatus.FORBIDDEN: "forbidden",
}
UNRECORDED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS)
"""Nothing was tried, and anyone can send any number: they are counted in `/metrics`."""
ASSISTANTS: Final = "/mcp"
"""Path of the assistants' tools, most of which read; each change records itself."""
DRY_RUN_HEADER: Final = "Navarch-Dry-Run"
"""Of answers that say what a change would do."""
REQUEST_KEY: Final = REQUEST_HEADER.lower().encode()
REASON_CHARS_MAX: Final = 500


def change_audit(
    bus: Bus, now: Callable[[], datetime], new_id: Callable[[], str]
) -> Callable[[ASGIApp], ASGIApp]:
    """The middleware that publishes before the caller has its answer."""

    def wrap(app: ASGIApp) -> ASGIApp:
        async def audited(scope: Scope, receive: Receive, send: Send) -> None:
            request: Any = scope

            async def record(message: Message) -> None:
                if message["type"] == "http.response.start" and not is_dry_run(message):
                    event = http_change(request, message, new_id(), now())
                    if event is not None:
                        try:
                            await publish_event(bus, event)
                        except BusError as error:
                            log.error("a change is not in the events: %s: %s", event, error)  # noqa: TRY400
                await send(message)

            await app(scope, receive, record if request["method"] == "POST" else send)

        return audited

    return wrap


def is_dry_run(start: Any) -> bool:
    """Whether an answer says what a change would do: nothing was changed. Pure."""
    return (DRY_RUN_HEADER.lower().encode(), b"true") in start["headers"]


def http_change(request: Any, start: Any, id_: str, now: datetime) -> HttpChange | None:
    """What is to be published about a request that is answered so; None: nothing. Pure."""
    principal, status = request.get("user"), start["status"]
    named = {key: value for key, value in start["headers"] if key == REQUEST_KEY}
    if not isinstance(principal, Principal) or status in UNRECORDED:
        return None
    if request["path"].rstrip("/") == ASSISTANTS:
        return None
    state = request.get("state", {})
    server_error = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    client = request.get("client") or ("", 0)
    asked = request.get("query_string", b"").decode("latin-1")
    path = f"{request['path']}?{asked}" if asked else request["path"]
    outcome = OUTCOMES.get(HTTPStatus(status), "failed" if server_error else "invalid")
    return HttpChange(
        id=id_,
        time=now,
        by=principal.name,
        role=principal.role,
        address=str(client[0]),
        change=f"POST {path}"[:NAME_CHARS_MAX],
        outcome=outcome,  # type: ignore[arg-type]
        reason=str(state.get(REASON, ""))[:REASON_CHARS_MAX],
        request=named.get(REQUEST_KEY, b"").decode("latin-1")[:NAME_CHARS_MAX],
    )
