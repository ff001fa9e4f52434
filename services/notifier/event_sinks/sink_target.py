"""The two ways to send events: POST to a URL, or a subject of the bus."""

from collections.abc import Sequence
from typing import Any, Final, NoReturn

from schemas import subjects
from schemas.event_sink_settings import EventSinkSpec
from services.bus.port import Bus
from services.notifier.cloud_events import (
    BATCH,
    STRUCTURED,
    CloudEvent,
    batch,
    binary_headers,
    structured,
)
from services.notifier.signature import signature_headers
from services.primitives.clock import Clock
from services.primitives.errors import TooLarge
from services.runtime.http_caller import HttpCaller, RefusedHttpError

ANSWER_BYTES_MAX: Final = 65_536
SINK_CODES: Final = frozenset({401, 402, 403, 404, 405, 407, 410, 421})
"""These are about the URL or the credentials, and so about every event: they are tried again."""
CLIENT_ERRORS: Final = range(400, 500)


class EventRefusalError(Exception):
    """The receiver refuses the content of an event for good."""


class HttpTarget:
    """A URL."""

    def __init__(self, spec: EventSinkSpec, clock: Clock) -> None:
        """Post to the sink's URL."""
        self._spec = spec
        self._http = HttpCaller(
            clock,
            timeout_seconds=spec.timeout,
            headers=spec.headers,
            answer_bytes_max=ANSWER_BYTES_MAX,
            sign=lambda request: signature_headers(spec.secret, clock.now(), request.content),
        )

    @property
    def events_max(self) -> int:
        """One, but for batches."""
        return self._spec.batch.events if self._spec.mode == "batch" else 1

    @property
    def bytes_max(self) -> int:
        """As configured."""
        return self._spec.batch.bytes

    async def send(self, events: Sequence[CloudEvent]) -> None:
        """Post once."""
        match self._spec.mode:
            case "batch":
                parts: dict[str, Any] = {"content": batch(events), "headers": _typed(BATCH)}
            case "binary":
                (event,) = events
                parts = {"content": bytes(event.data), "headers": binary_headers(event)}
            case _:
                (event,) = events
                parts = {"content": structured(event), "headers": _typed(STRUCTURED)}
        request = self._http.request("POST", self._spec.url, **parts)
        try:
            await self._http.send(request, "url")
        except RefusedHttpError as error:
            _raise_refused(error)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()


class SubjectTarget:
    """A subject of the bus, stored in SINKS."""

    events_max = 1
    bytes_max = 0

    def __init__(self, name: str, bus: Bus) -> None:
        """Publish on the subject of the sink `name`."""
        self._subject = subjects.sink(name)
        self._bus = bus

    async def send(self, events: Sequence[CloudEvent]) -> None:
        """Store them; what was stored in the last ten minutes is not stored again."""
        for each in events:
            msg_id = f"{self._subject} {each.sequence} {each.id}"
            try:
                await self._bus.publish(
                    self._subject, structured(each), msg_id=msg_id, headers=_typed(STRUCTURED)
                )
            except TooLarge as error:
                raise EventRefusalError(str(error)) from error

    async def close(self) -> None:
        """Nothing is open."""


SinkTarget = HttpTarget | SubjectTarget
"""`send` raises EventRefusalError for what cannot be delivered, ever; all else is sent again."""


def _typed(content_type: str) -> dict[str, str]:
    return {"Content-Type": content_type}


def _raise_refused(error: RefusedHttpError) -> NoReturn:
    code = error.answer.status_code
    if code in CLIENT_ERRORS and code not in SINK_CODES:
        raise EventRefusalError(str(error)) from error
    raise error
