"""The log of a run: its history and the services' log lines, in virtual time."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from services.operator_text.safe_text import escape_line
from services.runtime.logs import extras, silenced

LogSink = Callable[[int, str], None]
"""Takes a line and its level: DEBUG for what is stored, INFO for the rest of the history."""


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
    """A line of a log."""
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
