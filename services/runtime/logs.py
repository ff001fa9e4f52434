"""Structured logs: one JSON object a line, for `jq` and log collectors."""

import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from schemas.time_text import utc_text
from services.operator_text.safe_text import escape, escape_line
from services.primitives.plugin_thread import THREAD_PREFIX
from services.primitives.redaction import redacted

LEVELS: Final = {"WARNING": "WARN", "CRITICAL": "ERROR"}
"""Levels that log collectors know by another name."""
TEXT_CHARS_MAX: Final = 16_384
"""Of each text in a line; of a traceback the end is kept."""
NOISY: Final = ("asyncssh", "azure", "httpcore", "httpx", "nats", "uvicorn.access", "uvicorn.error")
"""Libraries that log each of their calls."""
LINES_MAX: Final = 20
"""Log lines of one plugin in a second."""
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """`{"time", "level", "service", "msg", …}`; what is passed as `extra` is added."""

    def __init__(self, service: str) -> None:
        """Name the service in every line."""
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Write one line."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": utc_text(moment),
            "level": LEVELS.get(record.levelname, record.levelname),
            "service": self._service,
            "msg": record.getMessage()[:TEXT_CHARS_MAX],
        }
        line |= extras(record)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)[-TEXT_CHARS_MAX:]
        return escape_line(redacted(json.dumps(line, default=str, ensure_ascii=False)))


def extras(record: logging.LogRecord) -> dict[str, object]:
    """Return what was passed as `extra`."""
    return {
        name: value[:TEXT_CHARS_MAX] if isinstance(value, str) else value
        for name, value in record.__dict__.items()
        if name not in _STANDARD
    }


class EscapingFormatter(logging.Formatter):
    """Plain text for a terminal, which obeys nothing in it."""

    def format(self, record: logging.LogRecord) -> str:
        """Write the record."""
        return escape(super().format(record))


def set_up_logs(service: str, level: str = "INFO") -> None:
    """Send every log line of this process to stderr, as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    handler.addFilter(PluginLogLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)


class PluginLogLimit(logging.Filter):
    """Drops log lines of a plugin's thread beyond LINES_MAX a second, and says how many.

    A plugin that floods would fill the disk, and take the lines of its service from the memory that
    `navarch logs` reads.
    """

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._lines: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written."""
        thread = record.threadName or ""
        if not thread.startswith(THREAD_PREFIX):
            return True
        if int(record.created) != self._second:
            self._second = int(record.created)
            self._lines.clear()
        self._lines[thread] += 1
        if self._lines[thread] > LINES_MAX:
            self._dropped[thread] += 1
            return False
        if dropped := self._dropped.pop(thread, 0):
            record.dropped_before = dropped
        return True


@contextmanager
def silenced() -> Iterator[None]:
    """Drop every log line while the block runs."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
