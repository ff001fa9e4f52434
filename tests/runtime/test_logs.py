"""Log lines: JSON, of bounded length."""

import json
import logging
import sys

import pytest

from services.runtime.logs import TEXT_CHARS_MAX, JsonFormatter


def test_long_texts_are_cut() -> None:
    """The head of a message and of a field, the end of a traceback."""
    try:
        json.loads("v" * 1_000_000 + "end")
    except ValueError as error:
        error.args = ("v" * 1_000_000 + "end",)
        found = sys.exc_info()
    record = logging.LogRecord("n", logging.ERROR, "", 1, "m" * 1_000_000, (), found)
    record.reason = "r" * 1_000_000
    line = JsonFormatter("test").format(record)
    assert len(line) < 4 * TEXT_CHARS_MAX
    assert json.loads(line)["error"].endswith("end")


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        (logging.DEBUG, "DEBUG"),
        (logging.INFO, "INFO"),
        (logging.WARNING, "WARN"),
        (logging.ERROR, "ERROR"),
        (logging.CRITICAL, "ERROR"),
    ],
)
def test_levels_are_those_of_log_collectors(level: int, shown: str) -> None:
    """`WARN`, as Navarch has always written it."""
    record = logging.LogRecord("n", level, "", 1, "m", (), None)
    assert json.loads(JsonFormatter("test").format(record))["level"] == shown
