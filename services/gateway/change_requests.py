"""Sends a caller's request to a pool, once for each `Idempotency-Key`, and publishes who did."""

import hashlib
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from schemas.duration import decode_hook
from schemas.fleet_events import HttpChange
from schemas.messages import encode
from schemas.operator_requests import Request, batch_of
from schemas.pool_events import RequestAccepted, RequestRefused, ScaleRefused
from schemas.topology import EVENTS
from schemas.value_limits import NAME_CHARS_MAX
from services.bus.port import Bus
from services.fleet_client.fleet_client import FleetClient, RequestAnswer
from services.gateway.access_tokens import Principal
from services.gateway.problems import REASON, REQUEST_HEADER, ProblemError
from services.gateway.views import ChangeAnswer
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
R = TypeVar("R")

REPEATED_WITHIN: Final = timedelta(hours=24)
"""A repeated key gets the answer of before; the bus drops a repetition within ten minutes even
where there is no answer yet."""
DIGITS: Final = 24


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
    """Return whether an answer says what a change would do: nothing was changed. Pure."""
    return (DRY_RUN_HEADER.lower().encode(), b"true") in start["headers"]


def http_change(request: Any, start: Any, id_: str, now: datetime) -> HttpChange | None:
    """Return what is to be published about a request that is answered so; None: nothing. Pure."""
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


def make_request(kind: type[R], /, **fields: Any) -> R:
    """Make a request as the pool-manager reads it; a problem where a field is not valid."""
    try:
        return msgspec.convert(fields, kind, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from error


def request_id(principal: Principal, key: str) -> str:
    """Return how the IDs of all requests with a caller's key begin."""
    text = f"{principal.name}\0{key}".encode()
    # Of an order about many nodes the beginning stays, by which `navarch audit` shows it as one.
    begins = f"{batch}-" if (batch := batch_of(key)) else "http-"
    return f"{begins}{hashlib.sha256(text).hexdigest()[:DIGITS]}"


def content_digest(pool: str, verb: str, request: Request) -> str:
    """Distinguishes two requests with one key."""
    return hashlib.sha256(f"{pool}\0{verb}\0".encode() + encode(request)).hexdigest()[:DIGITS]


class ChangeRequests:
    """Sends requests over the bus in the names of callers."""

    def __init__(
        self, fleet: FleetClient, now: Callable[[], datetime], new_key: Callable[[], str]
    ) -> None:
        """`new_key`: for a request that came without one."""
        self._fleet = fleet
        self._now = now
        self._new_key = new_key

    async def send(
        self, principal: Principal, pool: str, verb: str, request: Request, key: str = ""
    ) -> ChangeAnswer:
        """Send it and wait; ProblemError if it is refused, UnansweredError without an answer."""
        begins = request_id(principal, key or self._new_key())
        own = f"{begins}-{content_digest(pool, verb, request)}"
        # Before the search, so that no answer falls between it and what is followed.
        after = await self._fleet.bus.last_sequence(EVENTS.name)
        since = self._now() - REPEATED_WITHIN
        answer = await self._fleet.earlier_answer(pool, begins, since) if key else None
        if answer is None:
            named = msgspec.structs.replace(request, by=principal.name, request=own)
            answer = await self._fleet.send(pool, verb, named, after=after, msg_id=begins)
        if answer.request != own:
            raise ProblemError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"the Idempotency-Key {key!r} belongs to another request",
            )
        return accepted_answer(answer, pool, verb)


def accepted_answer(answer: RequestAnswer, pool: str, verb: str) -> ChangeAnswer:
    """The answer for the caller; ProblemError if it is a refusal."""
    if isinstance(answer, RequestRefused | ScaleRefused):
        error = ProblemError(
            HTTPStatus.CONFLICT,
            answer.reason,
            refusal=answer.refusal,
        )
        error.headers[REQUEST_HEADER] = answer.request
        raise error
    event = msgspec.json.decode(encode(answer))
    found = ChangeAnswer(request=answer.request, pool=pool, verb=verb, event=event)
    if isinstance(answer, RequestAccepted):
        return msgspec.structs.replace(found, node=answer.node, saga=answer.saga, note=answer.note)
    return found
