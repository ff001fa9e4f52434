"""Loads what every process uses without what comes along unused: imported before anything else.

nats-py takes aiohttp, for websockets, wherever it is installed; others load command lines of their
own (`command_line_trim`). That is half of the time in which a service starts, and a quarter of an
agent's memory.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import services.runtime.command_line_trim


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Make a module that is not loaded yet look as if it was not installed."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


with _hidden("aiohttp"):
    import services.bus.nats.nats_bus  # noqa: F401
