"""Makes room in INTAKE, where the server refuses what an agent sends beyond its share.

The server takes a few facts of each kind of a node and refuses more, at a fraction of what storing
costs; so no node's flood delays what others store. What is in EVENTS needs no room in INTAKE any
more. Taking it out at intervals, and not at once, is what limits a node's rate: by the share of one
interval. Without this service agents keep what is beyond one share.
"""

import asyncio
import logging
from typing import Final

from schemas.messages import Invalid, Message, UnknownType
from schemas.stored_messages import decode_stored
from schemas.topology import INTAKE
from services.bus.fact_copies import NOTHING, newest_copied, place_in_intake
from services.bus.port import Bus, Stored
from services.primitives.clock import Clock
from services.primitives.errors import BusError
from services.primitives.race import race

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 0.5
"""Between two times that room is made."""
LOOK_SECONDS: Final = 10.0
"""Without a fact for so long, what a process that ended or another replica left is looked for."""


class FactIntake:
    """Notes which facts have arrived in EVENTS, and removes them from INTAKE."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        """Remove them with calls to `bus`."""
        self._bus = bus
        self._clock = clock
        self._copied = NOTHING
        self._arrived = asyncio.Event()

    def decode(self, stored: Stored) -> Message | UnknownType | Invalid:
        """Decode a message of EVENTS, and note where it came from."""
        if (place := place_in_intake(stored)) is not None:
            self._copied = place
            self._arrived.set()
        return decode_stored(stored)

    async def run(self) -> None:
        """Make room for ever, first of all for what an earlier process left."""
        while True:
            try:
                await self.make_room()
            except BusError as error:
                log.info("no room is made in %s: %s", INTAKE.name, error)
                self._arrived.set()
            await race(self._arrived.wait(), self._clock.sleep(LOOK_SECONDS))
            await self._clock.sleep(INTERVAL_SECONDS)

    async def make_room(self) -> None:
        """Remove what EVENTS has, as seen here or, where nothing was seen, as it is stored there.

        What was copied from an earlier stream of the name says nothing about this one.
        """
        info = await self._bus.admin(f"STREAM.INFO.{INTAKE.name}", {})
        if not info["state"]["messages"]:
            self._arrived.clear()
            return
        seen = self._arrived.is_set()
        self._arrived.clear()
        copied = self._copied if seen else await newest_copied(self._bus)
        if copied.is_of(info):
            await self._bus.admin(f"STREAM.PURGE.{INTAKE.name}", {"seq": copied.sequence + 1})
