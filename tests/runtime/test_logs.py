"""Log lines: JSON, of bounded length."""

import json
import logging
import sys

import pytest

from services.runtime.logs import LINES_MAX, TEXT_CHARS_MAX, JsonFormatter, PluginLogLimit, extras


def test_long_texts_are_cut() -> None:
    """The head of a message and of a field is kept, and the end of a traceback."""
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


def test_a_plugin_that_floods_the_log_is_cut_off() -> None:
    """A second of its thread has so many lines; the next line says how many were dropped."""

    def line(thread: str, second: int) -> logging.LogRecord:
        record = logging.LogRecord("acme", logging.INFO, "acme.py", 1, "text", (), None)
        record.threadName, record.created = thread, float(second)
        return record

    limit = PluginLogLimit()
    flood = [limit.filter(line("plugin autoscaler acme", 1)) for _ in range(LINES_MAX + 5)]
    assert flood == [True] * LINES_MAX + [False] * 5
    assert limit.filter(line("plugin autoscaler other", 1))
    assert all(limit.filter(line("MainThread", 1)) for _ in range(LINES_MAX + 5))
    after = line("plugin autoscaler acme", 2)
    assert limit.filter(after)
    assert extras(after)["dropped_before"] == 5
