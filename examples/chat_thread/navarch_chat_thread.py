"""The alert channel chat-thread of Navarch: each alert is a thread of a chat.

    alerts:
      - {type: chat-thread, name: chat, url: "https://chat.example/hooks/4711", room: gpu-fleet}

The chat's webhook takes a room, a text and a thread, and answers with the thread's ID. That is the
receipt, so that any replica writes the end of an alert below its beginning.
"""

from typing import Annotated, Final

import httpx
import msgspec
from navarch.schemas.alert_records import Alert
from navarch.schemas.secret_text import SecretText
from navarch.schemas.settings import Setting
from navarch.services.notifier.alerts.alert_channel import (
    RECEIPT_CHARS_MAX,
    AlertDelivery,
    ChannelRefusalError,
)
from navarch.services.primitives.clock import Clock

TEXT_CHARS_MAX: Final = 4_000
ANSWER_CHARS_MAX: Final = 200
REFUSALS: Final = frozenset({400, 403, 413, 422})
"""Statuses after which no repetition of the same message helps."""
NOT_FOUND: Final = 404


class Posted(msgspec.Struct, kw_only=True):
    """Holds the chat's answer to a message."""

    thread: Annotated[str, msgspec.Meta(min_length=1, max_length=RECEIPT_CHARS_MAX)]


class ChatThread:
    """Writes alerts into a room, and their news and ends below them."""

    class Options(Setting, frozen=True, kw_only=True):
        """Holds what a configuration sets."""

        url: SecretText
        """The webhook: all who know it can write, so no error repeats it."""
        room: str
        repeat_hours: Annotated[float, msgspec.Meta(ge=0, le=168)] = 4.0
        """How often an open alert is written again into its thread; 0: never."""
        timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=20)] = 10.0

    name = "chat-thread"

    def __init__(self, *, options: Options, clock: Clock) -> None:
        """Open nothing: a connection is made by the first call."""
        del clock
        self.repeat_seconds = options.repeat_hours * 3_600
        self._options = options
        self._http = httpx.AsyncClient(timeout=options.timeout_seconds)

    async def send(self, alert: Alert, receipt: str) -> AlertDelivery:
        """Send an alert, or its end; after any exception it is sent again."""
        answer = await self._post(alert, receipt)
        if answer.status_code == NOT_FOUND and receipt:
            answer = await self._post(alert, "")  # an operator has deleted the thread
        said = f"the chat answers {answer.status_code}: {answer.text[:ANSWER_CHARS_MAX]}"
        if answer.status_code in REFUSALS:
            raise ChannelRefusalError(said)
        if not answer.is_success:
            raise ConnectionError(said)
        try:
            posted = msgspec.json.decode(answer.content, type=Posted)
        except msgspec.MsgspecError as error:
            raise ConnectionError(f"{said}, and names no thread") from error
        return AlertDelivery(receipt=posted.thread, answer=f"thread {posted.thread}")

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _post(self, alert: Alert, thread: str) -> httpx.Response:
        message = {"room": self._options.room, "text": _text(alert), "thread": thread or None}
        try:
            return await self._http.post(self._options.url, json=message)
        except httpx.HTTPError as error:
            raise ConnectionError(f"the chat cannot be reached: {type(error).__name__}") from error


def _text(alert: Alert) -> str:
    """Return the message, of a length that the chat takes."""
    heading = "Over" if alert.resolved else alert.severity.upper()
    text = f"{heading}: {alert.title}\n{alert.text}"
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[: TEXT_CHARS_MAX - 1]}…"
