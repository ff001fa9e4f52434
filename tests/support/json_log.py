"""The log of services that run in this process, line by line as JSON."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from services.runtime.logs import JsonFormatter


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, Any]] = []
        self.setFormatter(JsonFormatter("test"))

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(json.loads(self.format(record)))


@contextmanager
def json_log() -> Iterator[list[dict[str, Any]]]:
    """Every line while the block runs, as it would be written to stderr."""
    handler, root = _Lines(), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield handler.found
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
