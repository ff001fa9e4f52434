"""Keeps calls to a provider apart, for those that count requests: in one process, or over all.

Within a process one caller at a time has a turn taken for it, in the order in which they came; so a
replica that dies, or a caller that is cancelled, loses at most that one turn.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Final, Protocol

from schemas.lease_records import RateLimitRecord
from schemas.names import TOKEN
from schemas.topology import LEASES
from services.bus.port import Bus, Entry
from services.bus.record_bucket import RecordBucket
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Conflict, NavarchError
from services.provisioner.provider_client import request_slots
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.provider_client.request_slots import NextSlot, RequestRate

TRIES_MAX: Final = 100
"""To write one turn, and to use one: others are quicker, or this process stands still."""
KEPT_SECONDS: Final = 3600
"""Of a record that nobody writes any more; every interval is far shorter."""
INTERVAL_SECONDS_MAX: Final = 60.0


class RateLimiter(Protocol):
    """Lets one caller at a time go on."""

    async def wait_for_slot(self, kind: str = "") -> None:
        """Return when it is the caller's turn, and of its kind's; who is cancelled delays none."""
        ...


MakeRateLimiter = Callable[[str, RequestRate], RateLimiter]
"""Makes a pacer for what is counted: an account's requests, and some kinds of them apart."""


class LocalRateLimiter:
    """Turns in this process alone."""

    def __init__(self, pace: RequestRate) -> None:
        """Let the first go at once."""
        self._pace = pace
        self._free_at: defaultdict[str, float] = defaultdict(float)
        self._lines: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def wait_for_slot(self, kind: str = "") -> None:
        """Return when it is the caller's turn; a turn that is cancelled is lost to nobody else."""
        now = asyncio.get_running_loop().time
        if kind:
            await self._lines[kind].acquire()
        try:
            await asyncio.sleep(max(self._free_at[kind] - now(), 0.0) if kind else 0.0)
            at = max(now(), self._free_at[""])
            self._free_at[""] = at + self._pace.interval_seconds
            if kind:
                self._free_at[kind] = at + self._pace.slower_seconds.get(kind, 0.0)
        finally:
            if kind:
                self._lines[kind].release()
        await asyncio.sleep(at - now())


def local_rate_limiter(name: str, pace: RequestRate) -> RateLimiter:
    """For whoever shares the count with nobody."""
    del name
    return LocalRateLimiter(pace)


class SharedRateLimiter:
    """Turns over all processes that use the same name on the same bus."""

    def __init__(self, bus: Bus, clock: Clock, name: str, pace: RequestRate) -> None:
        """Keep the record under `pace-<name>` in LEASES; an interval of 0 paces nothing."""
        if not TOKEN.match(f"pace-{name}"):
            raise NavarchError(f"{name!r} cannot name what is paced")
        slowest = max((pace.interval_seconds, *pace.slower_seconds.values()))
        if slowest > INTERVAL_SECONDS_MAX:
            raise NavarchError(f"{slowest:g} s between two calls are too long a pace")
        self._bus = bus
        self._clock = clock
        self._records = RecordBucket(bus, LEASES, RateLimitRecord, lambda _: KEPT_SECONDS)
        self._key = f"pace-{name}"
        self._pace = pace
        self._line = asyncio.Lock()
        self._lines: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def wait_for_slot(self, kind: str = "") -> None:
        """Return when it is the caller's turn; TRANSIENT where none could be had."""
        slower = self._pace.slower_seconds.get(kind, 0.0)
        if not (self._pace.interval_seconds or slower):
            return
        try:
            if not slower:
                await self._had("")
                return
            # Those who wait for a launch leave the line to others until it is due.
            async with self._lines[kind]:
                await self._had(kind)
        except BusError as error:
            raise ProviderError(
                "TRANSIENT", f"no turn could be taken ({self._key}): {error}"
            ) from error

    async def _had(self, kind: str) -> None:
        for _ in range(TRIES_MAX):
            if kind:
                await self._due(kind)
            async with self._line:
                if await self._taken(kind):
                    return
        raise ProviderError("TRANSIENT", f"every turn was over before it was used ({self._key})")

    async def _due(self, kind: str) -> None:
        """Wait about until the next of a kind may be: a turn taken for later would hold up all.

        Our own clock serves for that; where it is wrong others wait longer, and no turn is early.
        """
        longest = self._pace.slower_seconds[kind] * 2
        entry = await self._bus.get(LEASES, self._key)
        while entry is not None:
            due = self._after(entry).slower.get(kind)
            wait = (due - self._clock.now()).total_seconds() if due else 0.0
            if wait <= 0:
                return
            await self._clock.sleep(min(wait, longest))
            entry = await self._bus.get(LEASES, self._key)
            if entry is not None and self._after(entry).slower.get(kind) == due:
                return

    async def _taken(self, kind: str) -> bool:
        """Take a turn and wait for it; False where it could not be used, and is lost."""
        before = await self._bus.get(LEASES, self._key)
        taking = request_slots.slot_record(self._after(before) if before else NextSlot(), kind)
        sent = self._clock.monotonic()
        try:
            revision = await self._records.write(
                self._key, taking, before.revision if before else 0
            )
        except Conflict:
            return False
        stored = await self._bus.get(LEASES, self._key)
        known = self._clock.monotonic()
        if stored is None or stored.revision != revision:
            # Somebody wrote the next one already, and when ours was stored is not known any more.
            return False
        turn = request_slots.slot_start(self._records.decode(stored), stored.time)
        wait = request_slots.wait_seconds(turn, stored.time)
        await self._clock.sleep(max(known + wait - self._clock.monotonic(), 0.0))
        since_sent = self._clock.monotonic() - sent
        return request_slots.is_in_time(since_sent, wait, self._pace.interval_seconds)

    def _after(self, entry: Entry) -> NextSlot:
        return request_slots.next_slot(self._records.decode(entry), entry.time, self._pace)
