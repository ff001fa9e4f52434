"""One stream: what it takes in, under which guards, and what it lets go of when. Pure.

`now` is an argument of everything that depends on it. Whatever a call stores or removes of the
server's own accord (markers, fired timers) it returns, so that consumers can be told.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from schemas import headers as h
from services.runtime.bus import Stored
from services.runtime.errors import Conflict, Refused, Unavailable
from services.simulator.jetstream.index import SubjectIndex

ROLLUP: Final = "Nats-Rollup"
SCHEDULER: Final = "Nats-Scheduler"
SCHEDULE_NEXT: Final = "Nats-Schedule-Next"
EXPIRED: Final = "MaxAge"

WRONG_LAST_SEQUENCE: Final = 10071
MESSAGE_TOO_LARGE: Final = 10054
STREAM_FULL: Final = 10077
TTL_INVALID: Final = 10165
TTL_DISABLED: Final = 10166
SCHEDULES_DISABLED: Final = 10188
SCHEDULE_INVALID: Final = 10189

RECORD_BYTES: Final = 30
"""What a file store spends on a message beside subject, headers and data."""


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The options that change what a stream does; times in nanoseconds, as the server has them."""

    name: str
    subjects: tuple[str, ...] = ()
    retention: str = "limits"
    discard: str = "old"
    max_bytes: int = -1
    max_age: int = 0
    max_msgs_per_subject: int = -1
    max_msg_size: int = -1
    duplicate_window: int = 120_000_000_000
    allow_msg_ttl: bool = False
    allow_msg_schedules: bool = False
    subject_delete_marker_ttl: int = 0


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
    index: SubjectIndex = field(default_factory=SubjectIndex)
    _ids: "OrderedDict[str, tuple[datetime, int]]" = field(default_factory=OrderedDict)
    """Message id -> until when a repetition is dropped, and what it was stored as."""
    _ends: list[tuple[datetime, int]] = field(default_factory=list)
    """When a message's own time to live is over."""
    _timers: list[tuple[datetime, int]] = field(default_factory=list)
    """When a scheduled message fires."""

    # --- taking in ----------------------------------------------------------------------------

    def store(
        self, subject: str, data: bytes, headers: Mapping[str, str], now: datetime
    ) -> tuple[int, bool]:
        """Take a message; return its sequence, and False where it is a repetition."""
        self._forget_ids(now)
        self._guard(subject, headers)
        known = self._ids.get(headers.get(h.MSG_ID, ""))
        if known is not None:
            return known[1], False
        self._check(subject, data, headers)
        stored = self._put(subject, data, dict(headers), now)
        if msg_id := headers.get(h.MSG_ID):
            window = timedelta(microseconds=self.config.duplicate_window // 1000)
            self._ids[msg_id] = now + window, stored.sequence
        return stored.sequence, True

    def _guard(self, subject: str, headers: Mapping[str, str]) -> None:
        """Refuse what does not follow on what stands; before repetitions are looked for."""
        expected = headers.get(h.EXPECTED_LAST_SUBJECT_SEQ)
        if expected is not None:
            guarded = headers.get(h.EXPECTED_LAST_SUBJECT_SEQ_SUBJECT, subject)
            last = self.index.last(guarded)
            if last != int(expected):
                raise Conflict(f"{subject}: wrong last sequence: {last} ({WRONG_LAST_SEQUENCE})")

    def _check(self, subject: str, data: bytes, headers: Mapping[str, str]) -> None:
        config = self.config
        if 0 <= config.max_msg_size < len(data) + _header_bytes(headers):
            raise _refused(subject, "message size exceeds maximum allowed", MESSAGE_TOO_LARGE)
        if h.TTL in headers:
            if not config.allow_msg_ttl:
                raise _refused(subject, "per-message TTL is disabled", TTL_DISABLED)
            if ttl_seconds(headers) is None:
                raise _refused(subject, "invalid per-message TTL", TTL_INVALID)
        if h.SCHEDULE in headers:
            if not config.allow_msg_schedules:
                raise _refused(subject, "message schedules is disabled", SCHEDULES_DISABLED)
            if fires_at(headers) is None:
                raise _refused(subject, "message schedule is invalid", SCHEDULE_INVALID)
        if config.discard == "new" and config.max_bytes >= 0:
            after = self.stored_bytes + _size(subject, data, headers)
            if config.max_bytes < after:
                raise Unavailable(f"{subject}: maximum bytes exceeded ({STREAM_FULL})")

    def _put(self, subject: str, data: bytes, headers: dict[str, str], now: datetime) -> Stored:
        self.last_sequence += 1
        stored = Stored(subject, data, self.last_sequence, now, headers)
        if h.SCHEDULE in headers or headers.get(ROLLUP) == "sub":
            # One timer a subject: the newer one takes the older one's place.
            self._remove_all(subject)
        self.messages[stored.sequence] = stored
        same = self.index.add(subject, stored.sequence)
        self.stored_bytes += _size(subject, data, headers)
        if (seconds := ttl_seconds(headers)) is not None and seconds > 0:
            heapq.heappush(self._ends, (now + timedelta(seconds=seconds), stored.sequence))
        if (at := fires_at(headers)) is not None:
            heapq.heappush(self._timers, (at, stored.sequence))
        self._keep_limits(same)
        return stored

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
        """When something is due; None: nothing ever."""
        while self._ends and self._ends[0][1] not in self.messages:
            heapq.heappop(self._ends)
        while self._timers and self._timers[0][1] not in self.messages:
            heapq.heappop(self._timers)
        due = [each[0][0] for each in (self._ends, self._timers) if each]
        if self.config.max_age and self.messages:
            due.append(self._aged(next(iter(self.messages.values()))))
        return min(due, default=None)

    def _aged(self, stored: Stored) -> datetime:
        return stored.time + timedelta(microseconds=self.config.max_age // 1000)

    def tick(self, now: datetime) -> list[Stored]:
        """Let go of what is over and fire what is due; return what was stored in doing so."""
        made: list[Stored] = []
        while (due := self.next_moment()) is not None and due <= now:
            if self._timers and self._timers[0][0] == due:
                made.append(self._fire(heapq.heappop(self._timers)[1], now))
            elif self._ends and self._ends[0][0] == due:
                made.extend(self._expire(heapq.heappop(self._ends)[1], now))
            else:
                made.extend(self._expire(next(iter(self.messages)), now))
        return made

    def _fire(self, sequence: int, now: datetime) -> Stored:
        stored = self.messages[sequence]
        self.remove(sequence)
        dropped = (h.SCHEDULE, h.SCHEDULE_TARGET, h.MSG_ID, ROLLUP)
        kept = {name: value for name, value in stored.headers.items() if name not in dropped}
        made = {SCHEDULER: stored.subject, SCHEDULE_NEXT: "purge"}
        return self._put(stored.headers[h.SCHEDULE_TARGET], stored.data, kept | made, now)

    def _expire(self, sequence: int, now: datetime) -> Iterator[Stored]:
        stored = self.messages[sequence]
        self.remove(sequence)
        marker_ns = self.config.subject_delete_marker_ttl
        is_marker = h.MARKER_REASON in stored.headers
        if marker_ns and not is_marker and not self.index.last(stored.subject):
            marker = {h.MARKER_REASON: EXPIRED, h.TTL: f"{max(marker_ns // 1_000_000_000, 1)}s"}
            yield self._put(stored.subject, b"", marker, now)

    # --- looking ------------------------------------------------------------------------------

    def sequences(self, filter_: str, after: int = 0) -> list[int]:
        """Sequences under a filter, oldest first."""
        found = [each for part in self.index.of(filter_) for each in part if each > after]
        found.sort()
        return found

    def last(self, filter_: str) -> Stored | None:
        """The newest message under a filter."""
        return self.messages.get(self.index.last(filter_))

    def info(self) -> dict[str, Any]:
        """The server's account of it."""
        first = next(iter(self.messages), self.last_sequence + 1)
        return {
            "config": self.asked,
            "created": self.created.isoformat(),
            "state": {
                "messages": len(self.messages),
                "bytes": self.stored_bytes,
                "first_seq": first,
                "last_seq": self.last_sequence,
            },
        }


def ttl_seconds(headers: Mapping[str, str]) -> float | None:
    """A message's own time to live; 0 for one that never ends; None: it has none that is valid."""
    text = headers.get(h.TTL, "")
    if text == "never":
        return 0.0
    number = text.removesuffix("s")
    return float(number) if number.isdigit() and int(number) > 0 else None


def fires_at(headers: Mapping[str, str]) -> datetime | None:
    """When a scheduled message fires; None where it is none, or says no moment."""
    text = headers.get(h.SCHEDULE, "")
    if not text.startswith("@at "):
        return None
    try:
        return datetime.fromisoformat(text.removeprefix("@at "))
    except ValueError:
        return None


def _header_bytes(headers: Mapping[str, str]) -> int:
    return sum(map(len, headers)) + sum(map(len, headers.values())) + 4 * len(headers)


def _size(subject: str, data: bytes, headers: Mapping[str, str]) -> int:
    return RECORD_BYTES + len(subject) + len(data) + _header_bytes(headers)


def _refused(subject: str, description: str, code: int) -> Refused:
    return Refused(f"{subject}: {description} ({code})", code)
