"""Keeps a process's newest log lines, and answers requests for them: bounded, escaped."""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from schemas.log_excerpts import LINE_CHARS_MAX, LogExcerpt, LogLine, LogRequest
from schemas.messages import LimitedDecoder, encode
from services.bus.port import Bus, Endpoint, Headers
from services.operator_text.safe_text import escape_line
from services.primitives.clock import Clock
from services.primitives.redaction import redacted
from services.runtime.logs import LEVELS, TEXT_CHARS_MAX, PluginLogLimit, extras

LOG_LINES_MAX: Final = 2_000
LOG_CHARS_MAX: Final = 524_288
"""Of a service's newest log lines, which it keeps for `navarch logs`."""
MESSAGE_CHARS_MAX: Final = 2_048
EXTRAS_CHARS_MAX: Final = 1_024
ERROR_CHARS_MAX: Final = 1_024
"""Of each of the three parts of a log line; of a traceback the end is kept."""
OVERHEAD_CHARS: Final = 64
"""What a line counts beside its text, so that empty lines have a limit, too."""
ANSWERS_MAX: Final = 10
"""Of one process, within ANSWERS_SECONDS."""
ANSWERS_SECONDS: Final = 5.0
AGE_SECONDS_MAX: Final = 7 * 86_400.0
"""Older lines are not handed out."""
REASON_CHARS_MAX: Final = 200
CUT: Final = "… (cut)"

_request: Final = LimitedDecoder(LogRequest)


class KeptLine(NamedTuple):
    """One line; a tuple, because one is made of every line."""

    seconds: float
    """When, since 1970."""
    level: str
    text: str
    origin: str = ""


class LogMemory:
    """Keeps the newest lines of one origin. Any thread may add some."""

    def __init__(self, lines_max: int, chars_max: int, since: float) -> None:
        """Keep so many lines and characters; `since`: the time, in seconds since 1970."""
        self._lines_max = lines_max
        self._chars_max = chars_max
        self._lines: deque[KeptLine] = deque()
        self._chars = 0
        self._since = since
        self._lock = threading.Lock()

    def add(self, line: KeptLine) -> None:
        """Keep a line; the oldest make room."""
        with self._lock:
            self._lines.append(line)
            self._chars += len(line.text) + OVERHEAD_CHARS
            while len(self._lines) > self._lines_max or self._chars > self._chars_max:
                oldest = self._lines.popleft()
                self._chars -= len(oldest.text) + OVERHEAD_CHARS
                self._since = max(self._since, oldest.seconds)

    def kept(self) -> tuple[list[KeptLine], float]:
        """Every line, oldest first, and since when none is missing."""
        with self._lock:
            return list(self._lines), self._since


class LogMemoryHandler(logging.Handler):
    """Has a memory keep every log line of the process."""

    def __init__(self, memory: LogMemory) -> None:
        super().__init__()
        self._memory = memory

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        try:
            level = LEVELS.get(record.levelname, record.levelname)
            self._memory.add(KeptLine(record.created, level, self._text(record)))
        except Exception:  # noqa: BLE001 - as every handler of the library: logging raises nothing
            self.handleError(record)

    def _text(self, record: logging.LogRecord) -> str:
        # Redacted before it is cut: the beginning of a secret is not recognised.
        parts = [redacted(record.getMessage()[:TEXT_CHARS_MAX])[:MESSAGE_CHARS_MAX]]
        if more := extras(record):
            text = json.dumps(more, default=str, ensure_ascii=False)
            parts.append(redacted(text)[:EXTRAS_CHARS_MAX])
        if record.exc_info:
            error = logging.Formatter().formatException(record.exc_info)
            parts.append(redacted(error[-TEXT_CHARS_MAX:])[-ERROR_CHARS_MAX:])
        return " ".join(parts)


@contextmanager
def remembered(lines_max: int, chars_max: int, now: Callable[[], datetime]) -> Iterator[LogMemory]:
    """Have a memory keep every log line of this process while the block runs."""
    memory = LogMemory(lines_max, chars_max, now().timestamp())
    handler = LogMemoryHandler(memory)
    root = logging.getLogger()
    handler.addFilter(PluginLogLimit())
    root.addHandler(handler)
    try:
        yield memory
    finally:
        root.removeHandler(handler)


async def answer_logs(bus: Bus, subject: str, answer: Endpoint) -> None:
    """Answer requests for log lines, as often as a process does."""
    await bus.answer_some(subject, answer, most=ANSWERS_MAX, seconds=ANSWERS_SECONDS)


class LogAnswers:
    """Answers queries of one process's log."""

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
