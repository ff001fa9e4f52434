"""Makes room in INTAKE, where the server refuses what an agent sends beyond its share.

The server takes a few facts of each kind of a node and refuses more, at a fraction of what storing
costs; so no node's flood delays what others store. What is in EVENTS needs no room in INTAKE any
more. Taking it out at intervals, and not at once, is what limits a node's rate: by the share of one
interval. Without this service agents keep what is beyond one share.
"""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Final

from schemas.headers import STREAM_SOURCE
from schemas.messages import Invalid, Message, UnknownType
from schemas.stored_messages import decode_stored
from schemas.topology import INTAKE
from services.bus.port import Bus, Stored
from services.primitives.clock import Clock
from services.primitives.errors import BusError

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 0.5
"""Between two times that room is made."""
RETRY_SECONDS: Final = 1.0
NEVER: Final = datetime.min.replace(tzinfo=UTC)


class FactIntake:
    """Notes which facts have arrived in EVENTS, and removes them from INTAKE."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        """Remove them with calls to `bus`."""
        self._bus = bus
        self._clock = clock
        self._last = 0
        """The last fact's sequence in INTAKE; what was before it in INTAKE is in EVENTS as well."""
        self._at = NEVER
        """When EVENTS stored it."""
        self._arrived = asyncio.Event()

    def decode(self, stored: Stored) -> Message | UnknownType | Invalid:
        """Decode a message of EVENTS, and note where it came from."""
        stream, _, rest = stored.headers.get(STREAM_SOURCE, "").partition(" ")
        if stream == INTAKE.name:
            self._last, self._at = int(rest.partition(" ")[0]), stored.time
            self._arrived.set()
        return decode_stored(stored)

    async def run(self) -> None:
        """Make room for ever."""
        while True:
            await self._arrived.wait()
            await self._clock.sleep(INTERVAL_SECONDS)
            self._arrived.clear()
            try:
                await self._make_room(self._last, self._at)
            except BusError as error:
                log.info("no room is made in %s: %s", INTAKE.name, error)
                await self._clock.sleep(RETRY_SECONDS)
                self._arrived.set()

    async def _make_room(self, last: int, at: datetime) -> None:
        """Remove the facts up to `last`, unless that was of an earlier stream of the name."""
        info = await self._bus.admin(f"STREAM.INFO.{INTAKE.name}", {})
        if info["state"]["messages"] and at >= datetime.fromisoformat(info["created"]):
            await self._bus.admin(f"STREAM.PURGE.{INTAKE.name}", {"seq": last + 1})
