"""Keeps a process's newest log lines in memory, for `navarch logs`."""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final, NamedTuple

from services.primitives.redaction import redacted
from services.runtime.logs import LEVELS, TEXT_CHARS_MAX, extras

LOG_LINES_MAX: Final = 2_000
LOG_CHARS_MAX: Final = 524_288
"""Of a service's newest log lines, which it keeps for `navarch logs`."""
MESSAGE_CHARS_MAX: Final = 2_048
EXTRAS_CHARS_MAX: Final = 1_024
ERROR_CHARS_MAX: Final = 1_024
"""Of each of the three parts of a log line; of a traceback the end is kept."""
OVERHEAD_CHARS: Final = 64
"""What a line counts beside its text, so that empty lines have a limit, too."""


class KeptLine(NamedTuple):
    """One line; a tuple, because one is made of every line."""

    seconds: float
    """When, since 1970."""
    level: str
    text: str
    origin: str = ""


class LogMemory:
    """The newest lines of one origin. Any thread may add some."""

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
    root.addHandler(handler)
    try:
        yield memory
    finally:
        root.removeHandler(handler)
