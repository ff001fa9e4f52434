"""The history of a run, line by line, its hash (equal hashes mean equal runs), and its log.

Every stored byte goes into the hash. The readable lines leave out heartbeats, leases and telemetry;
only the newest lines are kept.
"""

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from schemas.topology import HEARTBEATS, LEASES, TELEMETRY
from services.bus.port import Stored
from services.operator_text.safe_text import escape_line
from services.runtime.logs import extras, silenced

LogSink = Callable[[int, str], None]
"""Takes a line and its level: DEBUG for what is stored, INFO for the rest of the history."""
LINES_MAX: Final = 200_000
QUIET: Final = frozenset({f"KV_{LEASES.name}", f"KV_{HEARTBEATS.name}", TELEMETRY.name})


class _ServiceLog(logging.Handler):
    def __init__(self, sink: LogSink) -> None:
        super().__init__(logging.INFO)
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        try:
            at = asyncio.get_running_loop().time()
        except RuntimeError:
            at = 0.0
        level, more = record.levelname.lower(), extras(record)
        text = f"{level} {record.name.removeprefix('services.')}: {record.getMessage()}"
        text += "".join(f" {name}={value}" for name, value in more.items())
        self._sink(record.levelno, line_of(at, text))


def line_of(at: float, text: str) -> str:
    """Return a line of a log."""
    return escape_line(f"{at:10.3f}  {text}")


@contextmanager
def run_log(sink: LogSink | None) -> Iterator[Callable[[float, str], None] | None]:
    """Yield what takes a line of the history; without a sink no log is kept, and None."""
    if sink is None:
        with silenced():
            yield None
        return

    def write(at: float, what: str) -> None:
        sink(logging.DEBUG if what.startswith("stored ") else logging.INFO, line_of(at, what))

    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    # The services' lines go to the sink and not to the screen.
    root.handlers[:] = [_ServiceLog(sink)]
    root.setLevel(logging.INFO)
    try:
        yield write
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


class RunHistory:
    """Records the history of one run."""

    def __init__(
        self, lines_max: int = LINES_MAX, on_line: Callable[[float, str], None] | None = None
    ) -> None:
        """Keep the newest lines, and pass each to `on_line` as it is written."""
        self._hash = hashlib.sha256()
        self._lines: deque[tuple[float, str]] = deque(maxlen=lines_max)
        self._on_line = on_line
        self.events = 0

    def note(self, at: float, what: str) -> None:
        """Add a line."""
        self._line(at, what)
        self._add(at, what.encode())

    def add_stored(self, at: float, stream: str, stored: Stored) -> None:
        """Add a stored message."""
        headers = ",".join(f"{name}={value}" for name, value in sorted(stored.headers.items()))
        text = f"{stream} {stored.sequence} {stored.subject} {headers} "
        self._add(at, text.encode() + stored.data)
        if stream not in QUIET:
            self._line(at, f"stored {stored.subject} #{stored.sequence}")

    def _line(self, at: float, what: str) -> None:
        self._lines.append((at, what))
        if self._on_line is not None:
            self._on_line(at, what)

    def _add(self, at: float, what: bytes) -> None:
        self.events += 1
        self._hash.update(b"%.6f %d %b" % (at, len(what), what))

    @property
    def digest(self) -> str:
        """Return the hash of the history so far."""
        return self._hash.hexdigest()

    def tail(self, count: int, about: Iterable[str] = ()) -> list[str]:
        """The last lines; if `about` has names, only stored messages that contain one."""
        named = tuple(each for each in about if each)
        found: list[str] = []
        for at, what in reversed(self._lines):
            always = not what.startswith("stored ")
            if not named or always or any(each in what for each in named):
                found.append(f"{at:10.3f}  {what}")
            if len(found) == count:
                break
        return found[::-1]
