"""Asks every replica of a service what fails in it now: each knows what it alone has seen."""

from typing import Final

from schemas import subjects
from services.bus.port import Bus

ANSWER_SECONDS_MAX: Final = 2.0
SILENCE_SECONDS: Final = 0.25
"""How long another replica may take, after the last that answered."""


async def failure_answers(bus: Bus, service: str) -> list[bytes]:
    """The answer of each replica, a list of `CurrentFailure` as JSON; none where none answers."""
    subject = subjects.failures_query(service)
    return await bus.request_all(subject, b"", SILENCE_SECONDS, ANSWER_SECONDS_MAX)
