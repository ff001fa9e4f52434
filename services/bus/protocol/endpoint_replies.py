"""Endpoints as the bus calls them, and their replies: what one raises is raised at the caller."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec

from schemas import subjects
from schemas.fleet_queries import QueryError
from schemas.headers import SERVICE_ERROR, SUBJECT
from schemas.messages import encode
from schemas.permissions import in_name_of
from schemas.stream_specs import MESSAGE_BYTES_MAX
from services.bus.port import Endpoint, Headers, Reply
from services.primitives.errors import AnswerError, BusError

CODES: Final = {"unavailable": "503", "invalid-request": "400"}

REPLIES: Final = ("_INBOX.", "_R_.")
"""Where those who ask listen, and where the server has answers to other accounts sent."""

_error: Final = msgspec.json.Decoder(QueryError)


class ServiceRequest(Protocol):
    """A request to a service, as the client gives it."""

    @property
    def subject(self) -> str:
        """Return the subject on which the service is asked."""

    @property
    def data(self) -> bytes:
        """Return the request's bytes."""

    @property
    def headers(self) -> dict[str, str] | None:
        """Return the request's headers."""

    async def respond(self, response: bytes) -> None:
        """Answer the request with these bytes."""

    async def respond_error(self, code: str, description: str, data: bytes) -> None:
        """Answer it with an error."""


def may_answer(reply: str) -> bool:
    """Return whether a reply is one; else the answer would be stored as a record of ours."""
    return reply.startswith(REPLIES)


async def answer(endpoint: Endpoint, data: bytes, headers: Headers) -> tuple[bytes, str, str]:
    """Ask an endpoint; returns the answer, and the error's kind and text where it is one."""
    try:
        found = await endpoint(data, headers)
        if len(found) <= MESSAGE_BYTES_MAX:
            return found, "", ""
        kind = "invalid-request"
        text = f"the answer has {len(found)} bytes, {MESSAGE_BYTES_MAX} may be; ask for less"
    except BusError as error:
        kind, text = "unavailable", str(error)
    except Exception as error:  # noqa: BLE001 - whatever an endpoint raises is its answer
        kind, text = "invalid-request", str(error)
    return encode(QueryError(error=kind, reason=text)), kind, text


def service_handler(endpoint: Endpoint) -> Callable[[ServiceRequest], Awaitable[None]]:
    """Return what the services API calls for an endpoint."""

    async def handle(request: ServiceRequest) -> None:
        headers = {**(request.headers or {}), SUBJECT: request.subject}
        data, kind, text = await answer(endpoint, request.data, headers)
        if kind:
            await request.respond_error(CODES[kind], text, data)
        else:
            await request.respond(data)

    return handle


def requester(headers: Headers, by: str = "") -> str:
    """Return who gave an order: the user in its subject, which the server checks.

    `by`: whom the order names; it counts where the gateway sends it.
    """
    parsed = subjects.parse_order(headers.get(SUBJECT, ""))
    user = parsed[1] if parsed is not None else ""
    return in_name_of(user, by)


def plain_handler(endpoint: Endpoint) -> Callable[[Any], Awaitable[None]]:
    """Return what the client calls for an endpoint that is no part of a service."""

    async def handle(message: Any) -> None:
        if may_answer(message.reply):
            data, _, _ = await answer(endpoint, message.data, dict(message.headers or {}))
            await message.respond(data)

    return handle


def reply_data(reply: Reply) -> bytes:
    """The data of a reply; AnswerError with the endpoint's reason if it is an error."""
    text = reply.headers.get(SERVICE_ERROR)
    if not text:
        return reply.data
    try:
        raise AnswerError(_error.decode(reply.data).reason)
    except msgspec.DecodeError:
        raise AnswerError(text) from None
