"""Makes room in INTAKE, where the server refuses what an agent sends beyond its share.

The server takes a few facts of each kind of a node and refuses more, at a fraction of what storing
costs; so no node's flood delays what others store. What is in EVENTS needs no room in INTAKE any
more. Taking it out at intervals, and not at once, is what limits a node's rate: by the share of one
interval. Without this service agents keep what is beyond one share.

A server that asks for the copy while INTAKE has no leader waits 30 s for the answer, and then 10 s
and more before it asks again (nats-server 2.15, its `stream.go`). A new leader of EVENTS asks at
once, so where copies stop its leader has to step down.
"""

import asyncio
import logging
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from schemas.messages import Invalid, Message, UnknownType
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, INTAKE
from services.bus.fact_copies import NOTHING, newest_copied, place_in_intake
from services.bus.leases import Lease
from services.bus.port import Bus, Stored
from services.primitives.clock import Clock
from services.primitives.errors import BusError
from services.primitives.race import race

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 0.5
"""Between two times that room is made."""
LOOK_SECONDS: Final = 10.0
"""Without a fact for so long, what a process that ended or another replica left is looked for."""
STALL_LOOK_SECONDS: Final = 0.5
"""The same on several servers, where copies may stop: no event says that a fact is not copied."""
STALLED: Final = timedelta(seconds=1)
"""Without a copy for so long while a fact waits, the copy begins again; one takes milliseconds."""
STALLED_MAX: Final = timedelta(minutes=1)
"""Each time that it was without effect the next wait is three times as long, up to this."""


class MissingFact(NamedTuple):
    """Records the first fact that EVENTS lacks, and how long it is waited for. Pure."""

    sequence: int
    """In INTAKE."""
    since: datetime
    """When it was seen to be missing, or the copy was begun again."""
    patience: timedelta = STALLED

    def is_stalled(self, now: datetime) -> bool:
        """Return whether it has been waited for long enough."""
        return now - self.since >= self.patience

    def begun_again(self, now: datetime) -> "MissingFact":
        """Return what is waited for once the copy has begun again."""
        return MissingFact(self.sequence, now, min(3 * self.patience, STALLED_MAX))


class FactIntake:
    """Notes which facts have arrived in EVENTS, and removes them from INTAKE."""

    def __init__(self, bus: Bus, clock: Clock, lease: Lease | None = None) -> None:
        """Remove them with calls to `bus`; only who holds the lease has the copy begin again."""
        self._bus = bus
        self._clock = clock
        self._lease = lease
        self._copied = NOTHING
        self._arrived = asyncio.Event()
        self._replicated = False
        self._missing: MissingFact | None = None

    def decode(self, stored: Stored) -> Message | UnknownType | Invalid:
        """Decode a message of EVENTS, and note where it came from."""
        if (place := place_in_intake(stored)) is not None:
            self._copied = place
            self._arrived.set()
        return decode_stored(stored)

    async def run(self) -> None:
        """Make room for ever, first of all for what an earlier process left."""
        failed = False
        while True:
            try:
                await self.make_room()
                failed = False
            except BusError as error:
                if not failed:
                    log.info("no room is made in %s: %s", INTAKE.name, error)
                failed = True
                self._arrived.set()
            look = STALL_LOOK_SECONDS if self._replicated else LOOK_SECONDS
            await race(self._arrived.wait(), self._clock.sleep(look))
            await self._clock.sleep(INTERVAL_SECONDS)

    async def make_room(self) -> None:
        """Remove what EVENTS has, as seen here or, where nothing was seen, as it is stored there.

        What was copied from an earlier stream of the name says nothing about this one.
        """
        info = await self._bus.admin(f"STREAM.INFO.{INTAKE.name}", {})
        self._replicated = info["config"].get("num_replicas", 1) > 1
        if not info["state"]["messages"]:
            self._arrived.clear()
            return
        seen = self._arrived.is_set()
        self._arrived.clear()
        copied = self._copied if seen else await newest_copied(self._bus)
        first = int(info["state"]["first_seq"])
        if copied.is_of(info):
            first = copied.sequence + 1
            await self._bus.admin(f"STREAM.PURGE.{INTAKE.name}", {"seq": first})
        if self._replicated and first <= int(info["state"]["last_seq"]):
            await self._begin_again(first)

    async def _begin_again(self, first: int) -> None:
        """Have another server begin the copy, where the same fact was missing a while ago."""
        now = self._clock.now()
        if self._missing is None or self._missing.sequence != first:
            self._missing = MissingFact(first, now)
        acts = self._lease is not None and self._lease.held
        if not acts or not self._missing.is_stalled(now):
            return
        successor = successor_of(await self._bus.admin(f"STREAM.INFO.{EVENTS.name}", {}))
        if not successor:
            return  # an election now would leave the stream without a leader for long
        log.warning(
            "%s does not copy %s, whose fact %s waits: its leader steps down for %s",
            *(EVENTS.name, INTAKE.name, first, successor),
        )
        self._missing = self._missing.begun_again(now)
        await self._bus.admin(
            f"STREAM.LEADER.STEPDOWN.{EVENTS.name}", {"placement": {"preferred": successor}}
        )


def successor_of(info: dict[str, Any]) -> str:
    """Return the server that has all of a stream and was heard last; empty: none has."""
    replicas = (info.get("cluster") or {}).get("replicas") or ()
    whole = [
        each
        for each in replicas
        if each.get("current") and not each.get("offline") and not each.get("lag")
    ]
    return min(whole, key=lambda each: each["active"])["name"] if whole else ""
