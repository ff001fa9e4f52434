"""The log of a stress run: what happened and what the services said, in virtual time, on file."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from services.runtime.logs import silenced


class Logbook(logging.Handler):
    """Writes lines to an open file."""

    def __init__(self, file: TextIO) -> None:
        """Write to `file`."""
        super().__init__(logging.INFO)
        self._file = file

    def write(self, at: float, what: str) -> None:
        """Write a line of the story."""
        self._file.write(f"{at:10.3f}  {what}\n")

    def emit(self, record: logging.LogRecord) -> None:
        """Write what a service said."""
        try:
            at = asyncio.get_running_loop().time()
        except RuntimeError:
            at = 0.0
        level = record.levelname.lower()
        self.write(at, f"{level} {record.name}: {record.getMessage()}")


@contextmanager
def logbook(path: str) -> Iterator[Logbook | None]:
    """Keep a log while the block runs; without a path the services' words go nowhere."""
    if not path:
        with silenced():
            yield None
        return
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    with Path(path).open("w", encoding="utf-8") as file:
        book = Logbook(file)
        # Nothing of it belongs on the screen.
        root.handlers[:] = [book]
        root.setLevel(logging.INFO)
        try:
            yield book
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
