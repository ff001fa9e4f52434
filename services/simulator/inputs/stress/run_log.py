"""The log file of a stress run: its history and the services' log lines, in virtual time."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from services.runtime.logs import silenced


class _ServiceLog(logging.Handler):
    def __init__(self, write: Callable[[float, str], None]) -> None:
        super().__init__(logging.INFO)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        try:
            at = asyncio.get_running_loop().time()
        except RuntimeError:
            at = 0.0
        level = record.levelname.lower()
        self._write(at, f"{level} {record.name}: {record.getMessage()}")


@contextmanager
def run_log(path: str) -> Iterator[Callable[[float, str], None] | None]:
    """Yield what writes a line of the history; without a path no log is kept, and None."""
    if not path:
        with silenced():
            yield None
        return
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    with Path(path).open("w", encoding="utf-8") as file:

        def write(at: float, what: str) -> None:
            file.write(f"{at:10.3f}  {what}\n")

        # The services' lines go to the file and not to the screen.
        root.handlers[:] = [_ServiceLog(write)]
        root.setLevel(logging.INFO)
        try:
            yield write
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
