"""One consumer: what it has delivered to whom, what is owed an acknowledgement until when. Pure.

Pullers say how many messages they take; `pump` deals out what is there, redeliveries first, in turn
to whoever has room. Nothing here knows how a message reaches a puller.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

import msgspec

from services.runtime.bus import Stored
from services.simulator.jetstream.index import pattern
from services.simulator.jetstream.stream import StreamState

Word = Literal["ack", "nak", "term", "progress"]

WANTED_MAX: Final = 20_000
"""Subjects of which it is remembered whether they are wanted."""
MAX_DELIVERIES_ADVISORY: Final = "io.nats.jetstream.advisory.v1.max_deliver"


class ConsumerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The options that change what a consumer does; times in nanoseconds."""

    name: str = ""
    durable_name: str = ""
    filter_subject: str = ""
    filter_subjects: tuple[str, ...] = ()
    deliver_policy: str = "all"
    opt_start_seq: int = 0
    opt_start_time: datetime | None = None
    ack_policy: str = "explicit"
    ack_wait: int = 30_000_000_000
    max_deliver: int = -1
    max_ack_pending: int = 1000

    @property
    def filters(self) -> tuple[str, ...]:
        """What it takes; everything where it says nothing."""
        return self.filter_subjects or ((self.filter_subject,) if self.filter_subject else (">",))


class Delivered(NamedTuple):
    """One message on its way to one puller."""

    puller: int
    stored: Stored
    deliveries: int
    pending: int
    """How many wait behind it."""


class Exceeded(NamedTuple):
    """A message that was delivered as often as may be."""

    sequence: int
    deliveries: int


@dataclass(slots=True)
class ConsumerState:
    """A consumer of one stream."""

    config: ConsumerConfig
    asked: dict[str, Any]
    created: datetime
    pending: dict[int, datetime] = field(default_factory=dict)
    """Sequence -> when its acknowledgement is overdue."""
    free: "OrderedDict[int, int]" = field(default_factory=OrderedDict)
    """Puller -> how many more it takes; whose turn is next stands first."""
    delivered: int = 0
    """The newest sequence that was delivered."""
    count: int = 0
    """How many deliveries there were."""
    _ready: deque[int] = field(default_factory=deque)
    _again: deque[int] = field(default_factory=deque)
    _overdue: list[tuple[datetime, int]] = field(default_factory=list)
    _counts: dict[int, int] = field(default_factory=dict)
    _wanted: dict[str, bool] = field(default_factory=dict)

    # --- what comes in ------------------------------------------------------------------------

    def begin(self, stream: StreamState) -> None:
        """Take up what the stream holds from where the consumer is to begin."""
        config = self.config
        found: set[int] = set()
        for filter_ in config.filters:
            if config.deliver_policy == "last_per_subject":
                found.update(next(reversed(each)) for each in stream.index.of(filter_))
            elif config.deliver_policy != "new":
                found.update(stream.sequences(filter_))
        start = config.opt_start_seq if config.deliver_policy == "by_start_sequence" else 0
        since = config.opt_start_time if config.deliver_policy == "by_start_time" else None
        for sequence in sorted(found):
            if sequence >= start and (since is None or stream.messages[sequence].time >= since):
                self._ready.append(sequence)

    def offer(self, stored: Stored) -> bool:
        """Take up a message that was just stored, if it is one of ours; whether it is."""
        wanted = self._wanted.get(stored.subject)
        if wanted is None:
            if len(self._wanted) >= WANTED_MAX:
                self._wanted.clear()
            wanted = pattern(self.config.filters).fullmatch(stored.subject) is not None
            self._wanted[stored.subject] = wanted
        if wanted:
            self._ready.append(stored.sequence)
        return wanted

    def reconfigure(self, config: ConsumerConfig, asked: dict[str, Any]) -> None:
        """Change what may be changed of a consumer that stands."""
        self.config, self.asked = config, asked
        self._wanted.clear()

    # --- dealing out --------------------------------------------------------------------------

    def pump(self, stream: StreamState, now: datetime) -> list[Delivered]:
        """Deal out what is there to whoever takes more."""
        found: list[Delivered] = []
        while (puller := self._turn()) is not None:
            stored = self._next(stream)
            if stored is None:
                break
            self.free[puller] -= 1
            self.free.move_to_end(puller)
            found.append(self._deal(puller, stored, now))
        return found

    def _turn(self) -> int | None:
        return next((puller for puller, free in self.free.items() if free > 0), None)

    def _next(self, stream: StreamState) -> Stored | None:
        while self._again:
            sequence = self._again.popleft()
            if sequence in self.pending and sequence in stream.messages:
                return stream.messages[sequence]
            self._drop(sequence)
        while self._ready:
            if self.config.ack_policy != "none" and len(self.pending) >= self._pending_max:
                return None
            stored = stream.messages.get(self._ready.popleft())
            if stored is not None:
                return stored
        return None

    @property
    def _pending_max(self) -> int:
        most = self.config.max_ack_pending
        return most if most > 0 else 1_000_000_000

    def _deal(self, puller: int, stored: Stored, now: datetime) -> Delivered:
        self.count += 1
        self.delivered = max(self.delivered, stored.sequence)
        deliveries = 1
        if self.config.ack_policy != "none":
            deliveries = self._counts[stored.sequence] = self._counts.get(stored.sequence, 0) + 1
            self._owe(stored.sequence, now + self._ack_wait)
        return Delivered(puller, stored, deliveries, len(self._ready))

    @property
    def _ack_wait(self) -> timedelta:
        return timedelta(microseconds=self.config.ack_wait // 1000)

    def _owe(self, sequence: int, until: datetime) -> None:
        self.pending[sequence] = until
        heapq.heappush(self._overdue, (until, sequence))

    # --- acknowledgements ---------------------------------------------------------------------

    def settle(self, sequence: int, word: Word, delay_seconds: float, now: datetime) -> bool:
        """Take an acknowledgement in; True where the consumer is done with the message."""
        if sequence not in self.pending:
            return False
        match word:
            case "progress":
                if sequence not in self._again:
                    self._owe(sequence, now + self._ack_wait)
            case "nak":
                if sequence not in self._again:
                    self._owe(sequence, now + timedelta(seconds=max(delay_seconds, 0.0)))
            case "ack" | "term":
                self._drop(sequence)
                return True
        return False

    def _drop(self, sequence: int) -> None:
        self.pending.pop(sequence, None)
        self._counts.pop(sequence, None)

    def next_moment(self) -> datetime | None:
        """When an acknowledgement is overdue; None: none is owed."""
        while self._overdue:
            due, sequence = self._overdue[0]
            if self.pending.get(sequence) == due:
                return due
            heapq.heappop(self._overdue)
        return None

    def tick(self, stream: StreamState, now: datetime) -> list[Exceeded]:
        """Put what is overdue up for redelivery; return what has been delivered too often."""
        given_up: list[Exceeded] = []
        while (due := self.next_moment()) is not None and due <= now:
            _, sequence = heapq.heappop(self._overdue)
            deliveries = self._counts.get(sequence, 0)
            if sequence not in stream.messages:
                self._drop(sequence)
            elif 0 < self.config.max_deliver <= deliveries:
                self._drop(sequence)
                given_up.append(Exceeded(sequence, deliveries))
            else:
                self._again.append(sequence)
        return given_up

    # --- looking ------------------------------------------------------------------------------

    def info(self, stream: StreamState) -> dict[str, Any]:
        """The server's account of it."""
        waiting = sum(1 for each in self._ready if each in stream.messages)
        owed = [each for each in self.pending if each in stream.messages]
        floor = min(owed) - 1 if owed else self.delivered
        return {
            "stream_name": stream.config.name,
            "name": self.config.name,
            "created": self.created.isoformat(),
            "config": self.asked,
            "delivered": {"consumer_seq": self.count, "stream_seq": self.delivered},
            "ack_floor": {"consumer_seq": self.count - len(owed), "stream_seq": floor},
            "num_ack_pending": len(owed),
            "num_redelivered": sum(1 for each in owed if self._counts.get(each, 0) > 1),
            "num_waiting": sum(1 for free in self.free.values() if free > 0),
            "num_pending": waiting,
        }


def read_config(asked: Mapping[str, Any]) -> ConsumerConfig:
    """Read a consumer's options; what does not matter here is left out."""
    config = msgspec.convert(asked, ConsumerConfig)
    name = config.name or config.durable_name
    return msgspec.structs.replace(config, name=name)
