"""Loads the bus's client without aiohttp: imported before anything else loads that client.

The client takes aiohttp, for websockets, wherever it is installed: a quarter of the agent's memory
for what it never speaks. A host with plain `navarch` has none; one with the services has.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
    import services.runtime.nats_bus  # noqa: F401
