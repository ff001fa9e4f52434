"""Loads what every process uses without what comes along unused: imported before anything else.

nats-py takes aiohttp, for websockets, wherever it is installed; httpx and cel load command lines of
their own. That is half of the time in which a service starts, and a quarter of an agent's memory.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

COMMAND_LINES: Final = ("cel.cli", "httpx._main")
"""Loaded with their packages, and of no use to a process that is none of them."""


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


for _name in COMMAND_LINES:
    sys.modules.setdefault(_name, ModuleType(_name))
with _hidden("aiohttp"):
    import services.bus.nats.nats_bus  # noqa: F401
