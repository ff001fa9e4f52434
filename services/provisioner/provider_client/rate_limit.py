"""Spaces the requests to a provider that counts them, in one process or across all replicas.

The provider fills a bucket with tokens at a rate, and each request takes one. Here the bucket is
one time: when it would be full again. Replicas share it in a record, which also says from when the
next slot may start. A replica takes a slot by writing the record with compare-and-set; the slot
starts when it was stored, or at the time that the previous record names, whichever is later. All
are times of the server's clock, so that the clocks of the replicas do not matter.

A slot must be used soon after its start or not at all. What it may be late is kept back: some
tokens of the bucket or, where it holds one alone, a part of each interval. So no window of time t
holds more requests than the bucket and t divided by the interval.

Where the provider refuses a request all the same, others use the account as well: the record then
says that the bucket was empty at that moment, and every replica waits.

Some kinds of requests (launches) are limited further. Their slots count like all others, and the
record also says from when the next slot of each kind may start.

Within a process one caller at a time takes a slot, in order of arrival; so a replica that dies, or
a caller that is cancelled, wastes at most one slot.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from schemas.lease_records import RateLimitRecord
from schemas.names import TOKEN
from schemas.topology import LEASES
from services.bus.port import Bus, Entry
from services.bus.record_bucket import RecordBucket, retry_conflicts
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
SLOTS_AHEAD_MAX: Final = 100
"""A slot further ahead was taken before the server's clock was set back."""
LOCAL_START: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""What a limiter of one process calls the start of its loop's clock."""


# --- slots: pure ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRate:
    """The interval between requests, how many may come at once, and slower kinds."""

    interval_seconds: float
    burst: int = 1
    """Tokens of the full bucket."""
    slower_seconds: Mapping[str, float] = field(default_factory=dict)
    """Kind -> the longer interval between its requests; these do not come at once."""

    @property
    def tokens_kept_back(self) -> int:
        """Tokens of the bucket for slots that are used late."""
        if self.burst == 1 or not self.interval_seconds:
            return 0
        return max(1, min(round(SLACK_SECONDS_MAX / self.interval_seconds), self.burst // 2))

    @property
    def slack_seconds(self) -> float:
        """Return how many seconds late a slot may still be used."""
        if self.tokens_kept_back:
            return self.tokens_kept_back * self.interval_seconds
        limited = self.interval_seconds or min(self.slower_seconds.values(), default=0.0)
        return min(limited * SLACK_PART, SLACK_SECONDS_MAX)

    def spacing(self, kind: str = "") -> timedelta:
        """Return how far slots of a kind are apart once the bucket is empty."""
        if kind in self.slower_seconds:
            seconds = self.slower_seconds[kind]
            part = min(seconds * SLACK_PART, SLACK_SECONDS_MAX)
            return timedelta(seconds=seconds + max(part, self.slack_seconds))
        if self.tokens_kept_back or not self.interval_seconds:
            return timedelta(seconds=self.interval_seconds)
        return timedelta(seconds=self.interval_seconds + self.slack_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSlot:
    """Says when the next slot may start, and the next of each kind; absent: at once."""

    not_before: datetime | None = None
    full_at: datetime | None = None
    slower: Mapping[str, datetime] = field(default_factory=dict)


def slot_start(record: RateLimitRecord, stored_at: datetime, rate: RequestRate) -> datetime:
    """Return when the slot of a record starts."""
    start = stored_at if record.not_before is None else max(stored_at, record.not_before)
    longest = max(rate.spacing(kind) for kind in ("", *rate.slower_seconds))
    set_back = start - stored_at > SLOTS_AHEAD_MAX * longest
    return stored_at + longest if set_back else start


def next_slot(record: RateLimitRecord, stored_at: datetime, rate: RequestRate) -> NextSlot:
    """Return what may follow a record's slot."""
    start, spacing = slot_start(record, stored_at, rate), rate.spacing()
    slower = {
        kind: min(at, start + rate.spacing(kind))
        for kind, at in record.slower.items()
        if at > start
    }
    if record.kind in rate.slower_seconds:
        slower[record.kind] = start + rate.spacing(record.kind)
    tokens = rate.burst - rate.tokens_kept_back
    # A bucket that is empty at the start is full then; later means that the clock was set back.
    latest = start + tokens * spacing
    full_at = max(record.full_at or start, start) + spacing
    full_at = latest if record.throttled else min(full_at, latest)
    return NextSlot(not_before=full_at - (tokens - 1) * spacing, full_at=full_at, slower=slower)


def slot_record(after: NextSlot, kind: str) -> RateLimitRecord:
    """Return the record that takes the next slot for a request of this kind."""
    both = [each for each in (after.not_before, after.slower.get(kind)) if each is not None]
    return RateLimitRecord(
        not_before=max(both, default=None),
        full_at=after.full_at,
        kind=kind,
        slower=dict(after.slower),
    )


def throttled_record(
    last: tuple[RateLimitRecord, datetime] | None, rate: RequestRate
) -> RateLimitRecord:
    """Return the record by which the bucket is empty; the last slot, if any, stays taken."""
    if last is None:
        return RateLimitRecord(throttled=True)
    start, after = slot_start(*last, rate), next_slot(*last, rate)
    return RateLimitRecord(not_before=start, slower=dict(after.slower), throttled=True)


def is_in_time(since_sent_seconds: float, wait: float, rate: RequestRate) -> bool:
    """Return whether a slot may still be used, so many seconds after its record was sent."""
    return since_sent_seconds - wait <= rate.slack_seconds


# --- limiters ------------------------------------------------------------------------------------


class RateLimiter(Protocol):
    """Lets one caller at a time proceed."""

    async def wait_for_slot(self, kind: str = "") -> None:
        """Return when the caller may send a request of this kind; cancelling delays no other."""

    async def report_throttled(self) -> None:
        """Empty the bucket: the provider refused a request by its rate."""


MakeRateLimiter = Callable[[str, RequestRate], RateLimiter]
"""Makes a limiter for an account, by a name that its replicas share."""


class LocalRateLimiter:
    """Gives slots to this process alone."""

    def __init__(self, rate: RequestRate) -> None:
        self._rate = rate
        self._last: tuple[RateLimitRecord, datetime] | None = None
        self._queue = asyncio.Lock()
        self._queues: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def wait_for_slot(self, kind: str = "") -> None:
        """Return when the caller may send a request; a cancelled slot is not given to another."""
        if kind not in self._rate.slower_seconds:
            await self._take_slot("")
            return
        async with self._queues[kind]:
            due = self._next().slower.get(kind, LOCAL_START)
            await asyncio.sleep((due - self._now()).total_seconds())
            await self._take_slot(kind)

    async def report_throttled(self) -> None:
        """Empty the bucket."""
        self._last = throttled_record(self._last, self._rate), self._now()

    async def _take_slot(self, kind: str) -> None:
        async with self._queue:
            record, now = slot_record(self._next(), kind), self._now()
            self._last = record, now
            start = slot_start(record, now, self._rate)
            await asyncio.sleep((start - self._now()).total_seconds())

    def _next(self) -> NextSlot:
        return next_slot(*self._last, self._rate) if self._last else NextSlot()

    def _now(self) -> datetime:
        return LOCAL_START + timedelta(seconds=asyncio.get_running_loop().time())


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

    async def report_throttled(self) -> None:
        """Empty the bucket for every replica; TRANSIENT where the record could not be written."""

        async def attempt() -> None:
            before = await self._bus.get(LEASES, self._key)
            last = (self._records.decode(before), before.time) if before else None
            empty = throttled_record(last, self._rate)
            await self._records.write(self._key, empty, before.revision if before else 0)

        try:
            await retry_conflicts(attempt, self._key)
        except BusError as error:
            raise ProviderError(
                "TRANSIENT", f"the rate limit {self._key} could not be written: {error}"
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
        start = slot_start(self._records.decode(stored), stored.time, self._rate)
        wait = (start - stored.time).total_seconds()
        await self._clock.sleep(max(known + wait - self._clock.monotonic(), 0.0))
        since_sent = self._clock.monotonic() - sent
        return is_in_time(since_sent, wait, self._rate)

    def _next(self, entry: Entry) -> NextSlot:
        return next_slot(self._records.decode(entry), entry.time, self._rate)
