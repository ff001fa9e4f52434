"""Answers requests for the log lines that a process keeps: bounded, redacted, escaped."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from schemas.log_excerpts import LINE_CHARS_MAX, LogExcerpt, LogLine, LogRequest
from schemas.messages import LimitedDecoder, encode
from services.bus.port import Bus, Endpoint, Headers
from services.operator_text.safe_text import escape_line
from services.primitives.clock import Clock
from services.primitives.redaction import redacted
from services.runtime.log_memory import KeptLine, LogMemory

ANSWERS_MAX: Final = 10
"""Of one process, within ANSWERS_SECONDS."""
ANSWERS_SECONDS: Final = 5.0
AGE_SECONDS_MAX: Final = 7 * 86_400.0
"""Older lines are not handed out."""
REASON_CHARS_MAX: Final = 200
CUT: Final = "… (cut)"

_request: Final = LimitedDecoder(LogRequest)


async def answer_logs(bus: Bus, subject: str, answer: Endpoint) -> None:
    """Answer requests for log lines, as often as a process does."""
    await bus.answer_some(subject, answer, most=ANSWERS_MAX, seconds=ANSWERS_SECONDS)


class LogAnswers:
    """Answers of one process."""

    def __init__(
        self,
        source: str,
        own: LogMemory,
        clock: Clock,
        bytes_max: int,
        kernel: LogMemory | None = None,
    ) -> None:
        """Answer as `source`, with lines of at most `bytes_max` together."""
        self._source = source
        self._own = own
        self._kernel = kernel
        self._clock = clock
        self._bytes_max = bytes_max

    async def answer(self, data: bytes, _: Headers) -> bytes:
        """Answer one request; an empty one asks for the newest lines."""
        try:
            request = _request.decode(data) if data.strip() else LogRequest()
        except msgspec.DecodeError as error:
            refused = f"the request cannot be read: {str(error)[:REASON_CHARS_MAX]}"
            return encode(LogExcerpt(source=self._source, lines=(), refused=refused))
        if not self._source.startswith(request.replica):
            return encode(LogExcerpt(source=self._source, lines=()))
        memories = [] if request.kernel else [self._own]
        memories += [] if self._kernel is None else [self._kernel]
        kept = [each.kept() for each in memories]
        lines = [line for found, _ in kept for line in found]
        since = max((since for _, since in kept), default=0.0)
        now = self._clock.now().timestamp()
        return encode(excerpt(self._source, request, lines, since, now, self._bytes_max))


def excerpt(
    source: str,
    request: LogRequest,
    kept: Iterable[KeptLine],
    kept_since: float,
    now: float,
    bytes_max: int,
) -> LogExcerpt:
    """The newest lines that a request asks for and that fit; `now`: in seconds since 1970. Pure."""
    first = max(request.since.timestamp() if request.since else 0.0, now - AGE_SECONDS_MAX)
    asked = sorted((each for each in kept if each.seconds >= first), key=lambda each: each.seconds)[
        -request.lines :
    ]
    found: list[LogLine] = []
    for each in reversed(asked):
        line = _line(each)
        bytes_max -= len(encode(line)) + 1
        if bytes_max < 0:
            break
        found.append(line)
    return LogExcerpt(
        source=source,
        lines=tuple(reversed(found)),
        left_out=len(asked) - len(found),
        kept_since=_time(max(kept_since, now - AGE_SECONDS_MAX)) if kept_since else None,
    )


def _line(kept: KeptLine) -> LogLine:
    # Once more: a secret may have been read after the line was written.
    text = escape_line(redacted(kept.text))
    if len(text) > LINE_CHARS_MAX:
        text = text[: LINE_CHARS_MAX - len(CUT)] + CUT
    return LogLine(time=_time(kept.seconds), level=kept.level, text=text, origin=kept.origin)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
