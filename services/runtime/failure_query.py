"""Asks every replica of a service what it alone knows: what fails in it, and of its plugins."""

from typing import Final

from schemas import subjects
from services.bus.port import Bus

ANSWER_SECONDS_MAX: Final = 2.0
SILENCE_SECONDS: Final = 0.25
"""How long another replica may take, after the last that answered."""


async def failure_answers(bus: Bus, service: str) -> list[bytes]:
    """Return the answer of each replica, a list of `CurrentFailure` as JSON."""
    return await replica_answers(bus, subjects.failures_query(service))


async def plugin_answers(bus: Bus, service: str) -> list[bytes]:
    """Return the answer of each replica, a list of `PluginHealth` as JSON."""
    return await replica_answers(bus, subjects.plugins_query(service))


async def replica_answers(bus: Bus, subject: str) -> list[bytes]:
    """Return the answer of each replica to an empty query; none where none answers."""
    return await bus.request_all(subject, b"", SILENCE_SECONDS, ANSWER_SECONDS_MAX)
