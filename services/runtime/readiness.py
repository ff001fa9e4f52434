"""Decides whether a process is ready: it is connected, and the bus stores messages."""

import asyncio
from typing import Final

from schemas import subjects
from schemas.topology import EVENTS
from services.bus.port import Bus
from services.primitives.errors import BusError, Refused

ANSWER_SECONDS_MAX: Final = 1.5
"""Less than the probes of compose/ and of the chart wait for."""
KEPT_SECONDS: Final = 2.0
"""An answer counts for so long: who asks often does not load the bus."""
NOTHING: Final = f"{subjects.ROOT}.nothing"
"""A subject of no message."""


class Readiness:
    """Asks the bus when the process is asked, and at no other time."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._asking = asyncio.Lock()
        self._asked_at = -KEPT_SECONDS
        self._problem = ""

    async def problem(self) -> str:
        """Return why the process is not ready; empty where it is."""
        if not self._bus.connected:
            return "the bus is not connected"
        clock = asyncio.get_running_loop().time
        async with self._asking:
            if clock() >= self._asked_at + KEPT_SECONDS:
                self._problem = await self._ask()
                self._asked_at = clock()
        return self._problem

    async def _ask(self) -> str:
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                # Only a stream's leader answers this; what a stream holds any server says.
                await self._bus.admin(f"STREAM.MSG.GET.{EVENTS.name}", {"last_by_subj": NOTHING})
        except Refused:
            return ""  # there is no such message, or not even the stream, which others report
        except (BusError, TimeoutError) as error:
            reason = str(error) or f"no answer in {ANSWER_SECONDS_MAX:g} s"
            return (
                f"the bus stores nothing now ({reason}): fewer than a majority of its servers run, "
                "or they are electing a leader"
            )
        return ""
