"""Spaces the requests to a provider that counts them, in one process or across all replicas.

Replicas share one record. It says from when the next slot may start. A replica takes a slot by
writing the record with compare-and-set; the slot starts when it was stored, or at the time that the
previous record names, whichever is later. Both are times of the server's clock, so that the clocks
of the replicas do not matter. A slot must be used soon after its start or not at all; slots are
further apart by the same slack, so that any two requests are at least one interval apart.

Some kinds of requests (launches) are limited further. Their slots count like all others, and the
record also says from when the next slot of each kind may start.

Within a process one caller at a time takes a slot, in order of arrival; so a replica that dies, or
a caller that is cancelled, wastes at most one slot.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

from schemas.lease_records import RateLimitRecord
from schemas.names import TOKEN
from schemas.topology import LEASES
from services.bus.port import Bus, Entry
from services.bus.record_bucket import RecordBucket
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Conflict, NavarchError
from services.provisioner.provider_client.provider_errors import ProviderError

SLACK_PART: Final = 0.1
SLACK_SECONDS_MAX: Final = 0.5
TRIES_MAX: Final = 100
"""To write a slot and to use it: other replicas are faster, or this process hangs."""
RECORD_TTL_SECONDS: Final = 3600
"""Of a record that is no longer written; every interval is far shorter."""
INTERVAL_SECONDS_MAX: Final = 60.0


# --- slots: pure ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRate:
    """The interval between requests, and the longer intervals of some kinds."""

    interval_seconds: float
    slower_seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSlot:
    """From when the next slot may start, and the next of each kind; absent: at once."""

    not_before: datetime | None = None
    slower: Mapping[str, datetime] = field(default_factory=dict)


def slack_seconds(interval_seconds: float) -> float:
    """Return how late a slot may still be used."""
    return min(interval_seconds * SLACK_PART, SLACK_SECONDS_MAX)


def slot_start(record: RateLimitRecord, stored_at: datetime) -> datetime:
    """Return when the slot of a record starts."""
    return stored_at if record.not_before is None else max(stored_at, record.not_before)


def next_slot(record: RateLimitRecord, stored_at: datetime, rate: RequestRate) -> NextSlot:
    """Return what may follow a record's slot."""
    start = slot_start(record, stored_at)
    slower = {kind: at for kind, at in record.slower.items() if at > start}
    if record.kind in rate.slower_seconds:
        slower[record.kind] = start + _spacing(rate.slower_seconds[record.kind])
    return NextSlot(not_before=start + _spacing(rate.interval_seconds), slower=slower)


def slot_record(after: NextSlot, kind: str) -> RateLimitRecord:
    """Return the record that takes the next slot for a request of this kind."""
    both = [each for each in (after.not_before, after.slower.get(kind)) if each is not None]
    not_before = max(both, default=None)
    return RateLimitRecord(not_before=not_before, kind=kind, slower=dict(after.slower))


def _spacing(interval_seconds: float) -> timedelta:
    return timedelta(seconds=interval_seconds + slack_seconds(interval_seconds))


def is_in_time(since_sent_seconds: float, wait: float, interval_seconds: float) -> bool:
    """Whether a slot may still be used, so long after its record was sent."""
    return since_sent_seconds - wait <= slack_seconds(interval_seconds)


# --- limiters ------------------------------------------------------------------------------------


class RateLimiter(Protocol):
    """Lets one caller at a time proceed."""

    async def wait_for_slot(self, kind: str = "") -> None:
        """Return when the caller may send a request of this kind; cancelling delays no other."""
        ...


MakeRateLimiter = Callable[[str, RequestRate], RateLimiter]
"""Makes a limiter for an account, by a name that its replicas share."""


class LocalRateLimiter:
    """Slots in this process alone."""

    def __init__(self, rate: RequestRate) -> None:
        self._rate = rate
        self._free_at: defaultdict[str, float] = defaultdict(float)
        self._queues: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def wait_for_slot(self, kind: str = "") -> None:
        """Return when the caller may send a request; a cancelled slot is not given to another."""
        now = asyncio.get_running_loop().time
        if kind:
            await self._queues[kind].acquire()
        try:
            await asyncio.sleep(max(self._free_at[kind] - now(), 0.0) if kind else 0.0)
            at = max(now(), self._free_at[""])
            self._free_at[""] = at + self._rate.interval_seconds
            if kind:
                self._free_at[kind] = at + self._rate.slower_seconds.get(kind, 0.0)
        finally:
            if kind:
                self._queues[kind].release()
        await asyncio.sleep(at - now())


def local_rate_limiter(name: str, rate: RequestRate) -> RateLimiter:
    """Make a limiter for an account that no other process uses."""
    del name
    return LocalRateLimiter(rate)


class SharedRateLimiter:
    """Slots across all processes that use the same name on the same bus."""

    def __init__(self, bus: Bus, clock: Clock, name: str, rate: RequestRate) -> None:
        """Keep the record under `provisioner.pace-<name>` in LEASES; 0 seconds do not limit."""
        if not TOKEN.match(f"pace-{name}"):
            raise NavarchError(f"{name!r} cannot name a rate limit")
        slowest = max((rate.interval_seconds, *rate.slower_seconds.values()))
        if slowest > INTERVAL_SECONDS_MAX:
            raise NavarchError(f"{slowest:g} s between two requests: {INTERVAL_SECONDS_MAX:g} max")
        self._bus = bus
        self._clock = clock
        self._records = RecordBucket(bus, LEASES, RateLimitRecord, lambda _: RECORD_TTL_SECONDS)
        self._key = f"provisioner.pace-{name}"
        self._rate = rate
        self._queue = asyncio.Lock()
        self._queues: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def wait_for_slot(self, kind: str = "") -> None:
        """Return when the caller may send a request; TRANSIENT where no slot could be taken."""
        slower = self._rate.slower_seconds.get(kind, 0.0)
        if not (self._rate.interval_seconds or slower):
            return
        try:
            if not slower:
                await self._wait("")
                return
            # Launches queue by themselves, and leave the common queue to others until one is due.
            async with self._queues[kind]:
                await self._wait(kind)
        except BusError as error:
            raise ProviderError(
                "TRANSIENT", f"no request slot could be taken ({self._key}): {error}"
            ) from error

    async def _wait(self, kind: str) -> None:
        for _ in range(TRIES_MAX):
            if kind:
                await self._wait_until_due(kind)
            async with self._queue:
                if await self._take_slot(kind):
                    return
        raise ProviderError("TRANSIENT", f"every request slot was over before use ({self._key})")

    async def _wait_until_due(self, kind: str) -> None:
        """Wait roughly until the next slot of a kind: one taken early would delay all callers.

        This process's clock is good enough: if it is wrong others wait longer; no slot is early.
        """
        longest = self._rate.slower_seconds[kind] * 2
        entry = await self._bus.get(LEASES, self._key)
        while entry is not None:
            due = self._next(entry).slower.get(kind)
            wait = (due - self._clock.now()).total_seconds() if due else 0.0
            if wait <= 0:
                return
            await self._clock.sleep(min(wait, longest))
            entry = await self._bus.get(LEASES, self._key)
            if entry is not None and self._next(entry).slower.get(kind) == due:
                return

    async def _take_slot(self, kind: str) -> bool:
        """Take a slot and wait for its start; False if it could not be used, and is wasted."""
        before = await self._bus.get(LEASES, self._key)
        record = slot_record(self._next(before) if before else NextSlot(), kind)
        sent = self._clock.monotonic()
        try:
            revision = await self._records.write(
                self._key, record, before.revision if before else 0
            )
        except Conflict:
            return False
        stored = await self._bus.get(LEASES, self._key)
        known = self._clock.monotonic()
        if stored is None or stored.revision != revision:
            # The next slot is taken already, and when ours was stored is no longer known.
            return False
        start = slot_start(self._records.decode(stored), stored.time)
        wait = (start - stored.time).total_seconds()
        await self._clock.sleep(max(known + wait - self._clock.monotonic(), 0.0))
        since_sent = self._clock.monotonic() - sent
        return is_in_time(since_sent, wait, self._rate.interval_seconds)

    def _next(self, entry: Entry) -> NextSlot:
        return next_slot(self._records.decode(entry), entry.time, self._rate)
