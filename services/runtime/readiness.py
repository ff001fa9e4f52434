"""Decides whether a process is ready: it is connected, and the bus stores messages."""

import asyncio
from typing import Final

from schemas.topology import EVENTS
from services.bus.port import Bus
from services.primitives.errors import BusError, Refused

ANSWER_SECONDS_MAX: Final = 1.5
"""Less than the probes of compose/ and of the chart wait for."""
KEPT_SECONDS: Final = 2.0
"""An answer counts for so long: who asks often does not load the bus."""


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
                # Every role may ask this, the gateway too. Of a stream without a leader a server
                # that has a copy answers, after some seconds.
                found = await self._bus.admin(f"STREAM.INFO.{EVENTS.name}", {})
        except Refused:
            return ""  # the stream is gone, which others report
        except (BusError, TimeoutError) as error:
            return stored_nothing(str(error) or f"no answer in {ANSWER_SECONDS_MAX:g} s")
        cluster = found.get("cluster")
        if cluster and not cluster.get("leader"):
            return stored_nothing(f"stream {EVENTS.name} has no leader")
        return ""


def stored_nothing(reason: str) -> str:
    """Return what is answered while no message can be stored. Pure."""
    return (
        f"the bus stores nothing now ({reason}): fewer than a majority of its servers run, or they "
        "are electing a leader"
    )
