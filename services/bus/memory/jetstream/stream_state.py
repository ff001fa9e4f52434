"""One stream: what it takes in, under which guards, and what it lets go of when. Pure.

`now` is an argument of everything that depends on it. Whatever a call stores or removes of the
server's own accord (markers, fired timers) it returns, so that consumers get it.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import takewhile
from typing import Any, Final

import msgspec

from schemas import headers as h
from services.bus.memory.jetstream.publish_rules import (
    ROLLUP,
    check_guard,
    check_itself,
    check_rollup,
    check_schedule,
    fires_at,
    ttl_seconds,
    written,
)
from services.bus.memory.jetstream.subject_index import SubjectIndex
from services.bus.port import Stored
from services.bus.protocol.server_protocol import SUBJECT_FULL, header_bytes
from services.bus.protocol.subject_filters import REST
from services.primitives.errors import TooMany, Unavailable

SCHEDULER: Final = "Nats-Scheduler"
SCHEDULE_NEXT: Final = "Nats-Schedule-Next"
EXPIRED: Final = "MaxAge"
NOT_FIRED: Final = (
    h.SCHEDULE,
    h.SCHEDULE_TARGET,
    h.MSG_ID,
    h.TTL,
    h.EXPECTED_LAST_SUBJECT_SEQ,
    h.EXPECTED_LAST_SUBJECT_SEQ_SUBJECT,
    ROLLUP,
)
"""Headers that are the timer's own, and not those of what it fires."""
STREAM_FULL: Final = 10077

LOOK: Final = timedelta(milliseconds=250)
"""Between two looks at what is due."""
RECORD_BYTES: Final = 30
"""What a file store spends on a message beside subject, headers and data."""
SPANS_MAX: Final = 1_024
HEADERS_BYTES: Final = 4
"""And on saying how long its headers are, where it has any."""


class StreamSource(msgspec.Struct, frozen=True):
    """A stream whose messages are copied into another."""

    name: str


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The options that change what a stream does; times in nanoseconds, as the server has them."""

    name: str
    subjects: tuple[str, ...] = ()
    retention: str = "limits"
    discard: str = "old"
    max_bytes: int = -1
    max_age: int = 0
    max_msgs_per_subject: int = -1
    discard_new_per_subject: bool = False
    sources: tuple[StreamSource, ...] = ()
    max_msg_size: int = -1
    duplicate_window: int = 120_000_000_000
    allow_msg_ttl: bool = False
    allow_msg_schedules: bool = False
    allow_rollup_hdrs: bool = False
    subject_delete_marker_ttl: int = 0


@dataclass(slots=True)
class WakeTime:
    """When the server looks at what is due: not at every moment, and then at all of it.

    What comes due soon after it was set, or soon after the last look, waits for the next one.
    """

    at: datetime | None = None

    def set(self, due: datetime, now: datetime) -> None:
        """Look at `due`; where a look is to come before, that does as well."""
        moment = max(due, now + LOOK)
        if self.at is None or self.at < now or moment < self.at:
            self.at = moment

    def looked(self, next_: datetime | None, now: datetime) -> None:
        """Look again when the next is due."""
        self.at = max(next_, now + LOOK) if next_ else now + LOOK


@dataclass(slots=True)
class StreamState:
    """A stream and what it holds."""

    config: StreamConfig
    asked: dict[str, Any]
    """The configuration as it was given."""
    created: datetime
    last_sequence: int = 0
    stored_bytes: int = 0
    messages: "OrderedDict[int, Stored]" = field(default_factory=OrderedDict)
    removed: list[int] = field(default_factory=list)
    """Removed messages that the consumers do not know of yet."""
    index: SubjectIndex = field(default_factory=SubjectIndex)
    sourced: dict[str, int] = field(default_factory=dict)
    """Stream -> the last of its messages that was copied into this one."""
    _ids: "OrderedDict[str, tuple[datetime, int]]" = field(default_factory=OrderedDict)
    """Message id -> until when a repetition is dropped, and what it was stored as."""
    _ends: list[tuple[datetime, int]] = field(default_factory=list)
    """When a message's own time to live is over."""
    _timers: list[tuple[datetime, int]] = field(default_factory=list)
    """When a scheduled message fires."""
    _expires: WakeTime = field(default_factory=WakeTime)
    """When the server looks for what is over."""
    _fires: WakeTime = field(default_factory=WakeTime)
    """When it looks for timers that are due."""

    # --- taking in ----------------------------------------------------------------------------

    def store(
        self, subject: str, data: bytes, headers: Mapping[str, str], now: datetime
    ) -> tuple[int, bool]:
        """Take a message; return its sequence, and False where it is a repetition."""
        self._forget_ids(now)
        check_itself(self.config, subject, data, headers)
        if h.EXPECTED_LAST_SUBJECT_SEQ in headers:
            guarded = headers.get(h.EXPECTED_LAST_SUBJECT_SEQ_SUBJECT, subject)
            check_guard(subject, self.index.last(guarded), headers)
        check_schedule(self.config, subject, headers)
        known = self._ids.get(headers.get(h.MSG_ID, ""))
        if known is not None:
            return known[1], False
        check_rollup(self.config, subject, headers)
        self._check_room(subject, data, headers)
        stored = self._put(subject, data, dict(headers), now)
        if msg_id := headers.get(h.MSG_ID):
            self._ids[msg_id] = now + _span(self.config.duplicate_window), stored.sequence
        return stored.sequence, True

    def _check_room(self, subject: str, data: bytes, headers: Mapping[str, str]) -> None:
        """Refuse what does not fit, unless it takes the place of something as large."""
        config = self.config
        if config.discard_new_per_subject:
            same = next(self.index.of(subject), {})
            if len(same) >= config.max_msgs_per_subject:
                raise TooMany(f"{subject}: {SUBJECT_FULL} ({STREAM_FULL})")
        if config.discard != "new" or config.max_bytes < 0:
            return
        if self.stored_bytes + _size(subject, data, headers) <= config.max_bytes:
            return
        same = next(self.index.of(subject), {})
        if 0 < config.max_msgs_per_subject <= len(same):
            oldest = self.messages[next(iter(same))]
            room = len(oldest.data) + header_bytes(oldest.headers)
            if room >= len(data) + header_bytes(headers):
                return
        raise Unavailable(f"{subject}: maximum bytes exceeded ({STREAM_FULL})")

    def _put(
        self,
        subject: str,
        data: bytes,
        headers: dict[str, str],
        now: datetime,
        at: datetime | None = None,
    ) -> Stored:
        """Store a message, which was stored `at` another time if it is recovered."""
        self.last_sequence += 1
        life = ttl_seconds(headers)
        shortest = self.config.subject_delete_marker_ttl // 1_000_000_000
        if self.config.max_msgs_per_subject != 1 and 0 < (life or 0) < shortest:
            # Outside of buckets no message has a shorter life than its marker.
            life = shortest
            headers[h.TTL] = str(shortest)
        if h.SCHEDULE in headers:
            # One timer a subject: the newer one takes the older one's place.
            headers[ROLLUP] = "sub"
        stored = Stored(subject, data, self.last_sequence, at or now, headers)
        if rollup := headers.get(ROLLUP):
            self._remove_all(REST if rollup == "all" else subject)
        self.messages[stored.sequence] = stored
        same = self.index.add(subject, stored.sequence)
        self.stored_bytes += _size(subject, data, headers)
        if life:
            heapq.heappush(self._ends, (stored.time + timedelta(seconds=life), stored.sequence))
            self._expires.set(self._ends[0][0], now)
        if self.config.max_age:
            self._expires.set(self._aged(stored), now)
        if (at := fires_at(headers)) is not None:
            heapq.heappush(self._timers, (at, stored.sequence))
            self._fires.set(at, now)
        self._keep_limits(same)
        return stored

    def recover(
        self, messages: Iterable[Stored], last_sequence: int, now: datetime
    ) -> "StreamState":
        """The same stream holding these messages and no others, as after a restored backup."""
        found = StreamState(config=self.config, asked=self.asked, created=self.created)
        for each in messages:
            found.last_sequence = each.sequence - 1
            found._put(each.subject, each.data, dict(each.headers), now, at=each.time)
            if msg_id := each.headers.get(h.MSG_ID):
                found._ids[msg_id] = each.time + _span(self.config.duplicate_window), each.sequence
            if source := each.headers.get(h.STREAM_SOURCE):
                name, sequence = source.split()[:2]
                found.sourced[name] = int(sequence)
        found.last_sequence = last_sequence
        found.removed.clear()
        return found

    def reconfigure(self, config: StreamConfig, asked: dict[str, Any], now: datetime) -> None:
        """Change what may be changed of an existing stream; what is over its limits goes."""
        self.config, self.asked = config, asked
        for same in list(self.index.of(REST)):
            self._keep_limits(same)
        if (due := self._next_end()) is not None:
            self._expires.set(due, now)

    def _keep_limits(self, same: dict[int, None]) -> None:
        """Let go of the oldest of one subject, then of the oldest of all."""
        most = self.config.max_msgs_per_subject
        while 0 < most < len(same):
            self.remove(next(iter(same)))
        if self.config.discard == "old" and self.config.max_bytes >= 0:
            while self.stored_bytes > self.config.max_bytes and self.messages:
                self.remove(next(iter(self.messages)))

    # --- letting go ---------------------------------------------------------------------------

    def remove(self, sequence: int) -> bool:
        """Remove one message; False where it is gone already."""
        stored = self.messages.pop(sequence, None)
        if stored is None:
            return False
        self.index.remove(stored.subject, sequence)
        self.stored_bytes -= _size(stored.subject, stored.data, stored.headers)
        self.removed.append(sequence)
        return True

    def _remove_all(self, filter_: str) -> int:
        found = self.sequences(filter_)
        for sequence in found:
            self.remove(sequence)
        return len(found)

    def purge(self, filter_: str, *, keep: int = 0, before: int = 0) -> int:
        """Remove what a filter names: but the newest `keep`, or only what came `before`."""
        found = self.sequences(filter_ or ">")
        if keep:
            found = found[:-keep]
        if before:
            found = [each for each in found if each < before]
        for sequence in found:
            self.remove(sequence)
        return len(found)

    def _forget_ids(self, now: datetime) -> None:
        while self._ids:
            first = next(iter(self._ids))
            if self._ids[first][0] > now:
                return
            del self._ids[first]

    def next_moment(self) -> datetime | None:
        """Return when something is due; None: nothing ever."""
        fires = self._fires.at if self._next_timer() is not None else None
        ends = self._expires.at if self._next_end() is not None else None
        if fires is None or ends is None:
            return fires or ends
        return min(fires, ends)

    def _next_timer(self) -> datetime | None:
        while self._timers and not self._is_current(self._timers[0][1]):
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _next_end(self) -> datetime | None:
        while self._ends and self._ends[0][1] not in self.messages:
            heapq.heappop(self._ends)
        end = self._ends[0][0] if self._ends else None
        if not self.config.max_age or not self.messages:
            return end
        aged = self._aged(next(iter(self.messages.values())))
        return min(aged, end) if end else aged

    def _is_current(self, timer: int) -> bool:
        """Whether a timer is to fire still: whatever else comes under its subject ends it."""
        stored = self.messages.get(timer)
        return stored is not None and self.index.last(stored.subject) == timer

    def _aged(self, stored: Stored) -> datetime:
        return stored.time + _span(self.config.max_age)

    def tick(self, now: datetime) -> list[Stored]:
        """Fire what is due and let go of what is over; return what was stored in doing so."""
        made: list[Stored] = []
        if self._next_timer() is not None and self._fires.at is not None and self._fires.at <= now:
            due = self._due(self._timers, now)
            made += [self._fire(each, now) for each in due if self._is_current(each)]
            self._fires.looked(self._next_timer(), now)
        if (
            self._next_end() is not None
            and self._expires.at is not None
            and self._expires.at <= now
        ):
            over = set(self._due(self._ends, now))
            if self.config.max_age:
                aged = takewhile(lambda each: self._aged(each) <= now, self.messages.values())
                over.update(each.sequence for each in aged)
            for sequence in sorted(over):
                made.extend(self._expire(sequence, now))
            self._expires.looked(self._next_end(), now)
        return made

    def _due(self, moments: list[tuple[datetime, int]], now: datetime) -> list[int]:
        """Take what is due, in the order of storing."""
        found = set()
        while moments and moments[0][0] <= now:
            found.add(heapq.heappop(moments)[1])
        return sorted(found)

    def _fire(self, sequence: int, now: datetime) -> Stored:
        timer = self.messages[sequence]
        kept = {name: value for name, value in timer.headers.items() if name not in NOT_FIRED}
        made = {SCHEDULER: timer.subject, SCHEDULE_NEXT: "purge"}
        fired = self._put(timer.headers[h.SCHEDULE_TARGET], timer.data, kept | made, now)
        # Only now: a full stream has to hold both for a moment.
        self.remove(sequence)
        return fired

    def _expire(self, sequence: int, now: datetime) -> Iterator[Stored]:
        stored = self.messages.get(sequence)
        if stored is None:
            return
        self.remove(sequence)
        marker_ns = self.config.subject_delete_marker_ttl
        is_marker = h.MARKER_REASON in stored.headers
        if marker_ns and not is_marker and not self.index.last(stored.subject):
            life = written(max(marker_ns // 1_000_000_000, 1))
            marker = {h.MARKER_REASON: EXPIRED, h.TTL: life, ROLLUP: "sub"}
            yield self._put(stored.subject, b"", marker, now)

    # --- looking ------------------------------------------------------------------------------

    def sequences(self, filter_: str, after: int = 0) -> list[int]:
        """Return the sequences under a filter, oldest first."""
        found = [each for part in self.index.of(filter_) for each in part if each > after]
        found.sort()
        return found

    def last(self, filter_: str) -> Stored | None:
        """Return the newest message under a filter."""
        return self.messages.get(self.index.last(filter_))

    def info(self, counted: str = "") -> dict[str, Any]:
        """The server's account of it, with how many messages each of the `counted` subjects has."""
        first = next(iter(self.messages), self.last_sequence + 1) if self.last_sequence else 0
        state: dict[str, Any] = {
            "messages": len(self.messages),
            "bytes": self.stored_bytes,
            "first_seq": first,
            "last_seq": self.last_sequence,
        }
        if counted:
            same = [each for each in self.index.of(counted) if each]
            state["subjects"] = {self.messages[next(iter(of))].subject: len(of) for of in same}
        return {"config": self.asked, "created": self.created.isoformat(), "state": state}


@lru_cache(maxsize=SPANS_MAX)
def _span(nanoseconds: int) -> timedelta:
    return timedelta(microseconds=nanoseconds // 1000)


def _size(subject: str, data: bytes, headers: Mapping[str, str]) -> int:
    header_size = HEADERS_BYTES + header_bytes(headers) if headers else 0
    return RECORD_BYTES + len(subject) + len(data) + header_size
