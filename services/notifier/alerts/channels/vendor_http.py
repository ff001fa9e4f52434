"""Calls alert channels over HTTP: one try, a time limit, the vendor's own words in errors."""

from typing import Any, Final

import httpx
import msgspec

from services.notifier.alerts.alert_channel import ChannelRefusalError
from services.operator_text.safe_text import escape_line
from services.primitives.clock import Clock
from services.primitives.redaction import redacted
from services.runtime.bounded_http import status_text
from services.runtime.http_caller import HttpCaller, RefusedHttpError, place

ANSWER_BYTES_MAX: Final = 65_536
ANSWER_CHARS_MAX: Final = 300


class VendorHttp:
    """Posts JSON to a vendor; `AlertSender` tries again."""

    def __init__(
        self, clock: Clock, timeout_seconds: float, headers: dict[str, str] | None = None
    ) -> None:
        """Make the client; it connects at the first call."""
        self._http = HttpCaller(
            clock,
            timeout_seconds=timeout_seconds,
            headers=headers,
            answer_bytes_max=ANSWER_BYTES_MAX,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def post(
        self, setting: str, url: str, body: Any, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """Post once; ChannelRefusalError with the vendor's answer where it refuses."""
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        request = self._http.request(
            "POST",
            url,
            content=content,
            headers={"Content-Type": "application/json", **(headers or {})},
        )
        try:
            return await self._http.send(request, setting)
        except RefusedHttpError as error:
            status = status_text(error.answer.status_code)
            text = f"{place(setting, request)}: {status}: {answer_text(error.answer)}"
            raise ChannelRefusalError(text) from error


class VendorChannel:
    """Implements what channels over HTTP have in common; their receivers do not forget an alert."""

    repeat_seconds = 0.0
    _http: VendorHttp

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()


def answer_text(answer: httpx.Response) -> str:
    """The beginning of an answer, on one line, without what is secret."""
    text = " ".join(answer.text.split())[:ANSWER_CHARS_MAX]
    return escape_line(redacted(text)) or "no answer text"


def shorten(text: str, chars_max: int) -> str:
    """Return a text within a vendor's limit."""
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"
