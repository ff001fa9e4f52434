"""Publishes an event about every order that a service has answered, also about those refused."""

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from schemas import subjects
from schemas.fleet_events import OrderAnswered
from schemas.headers import SUBJECT
from schemas.permissions import SERVICES, in_name_of
from services.bus.port import Endpoint, Headers
from services.primitives.errors import BusError
from services.primitives.redaction import redacted

log = logging.getLogger(__name__)

CONTENT_CHARS_MAX: Final = 300
REASON_CHARS_MAX: Final = 300
DIGITS: Final = 24


def audited(
    endpoints: Mapping[str, Endpoint],
    service: str,
    now: Callable[[], datetime],
    publish: Callable[[OrderAnswered], Awaitable[None]],
) -> dict[str, Endpoint]:
    """The same endpoints; those that take orders publish what came of each."""

    def wrapped(endpoint: Endpoint) -> Endpoint:
        async def answer(data: bytes, headers: Headers) -> bytes:
            try:
                found = await endpoint(data, headers)
            except Exception as error:
                await record(data, headers, str(error))
                raise
            await record(data, headers, "")
            return found

        return answer

    async def record(data: bytes, headers: Headers, reason: str) -> None:
        event = order_event(headers.get(SUBJECT, ""), data, service, reason, now())
        if event is None:
            return
        try:
            await publish(event)
        except BusError as error:
            log.error("an order is not in the events: %s: %s", event, error)  # noqa: TRY400

    return {
        subject: wrapped(each) if subject.startswith(ORDER_PREFIX) else each
        for subject, each in endpoints.items()
    }


class _Order(msgspec.Struct):
    by: str = ""


def _named(data: bytes) -> str:
    """Whom an order names as the one who gave it."""
    try:
        return msgspec.json.decode(data, type=_Order).by
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


ORDER_PREFIX: Final = subjects.ORDERS.removesuffix("*.*")


def order_event(
    subject: str, data: bytes, service: str, reason: str, now: datetime
) -> OrderAnswered | None:
    """What is published about an order; None for one that a service gave by itself. Pure."""
    parsed = subjects.parse_order(subject)
    if parsed is None or parsed[1] in SERVICES:
        return None
    order, by = parsed[0], in_name_of(parsed[1], _named(data))
    digest = hashlib.sha256(f"{subject}\0{now.isoformat()}\0".encode() + data).hexdigest()
    return OrderAnswered(
        id=f"order-{digest[:DIGITS]}",
        time=now,
        by=by,
        order=order,
        service=service,
        content=redacted(data[:CONTENT_CHARS_MAX].decode("utf-8", "replace")),
        outcome="refused" if reason else "accepted",
        reason=reason[:REASON_CHARS_MAX],
    )
