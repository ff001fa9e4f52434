"""One consumer: what it has delivered to whom, what is owed an acknowledgement until when. Pure.

Pullers say how many messages they take; `pump` deals out what is there, redeliveries first, in turn
to a puller with room. Nothing here knows how a message reaches a puller.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

import msgspec

from services.bus.memory.jetstream.stream_state import StreamState
from services.bus.port import Stored
from services.bus.protocol.subject_filters import pattern

Word = Literal["ack", "nak", "term", "progress"]

WANTED_MAX: Final = 20_000
"""Subjects of which it is remembered whether they are wanted."""
NAK_SECONDS: Final = 0.01
"""The server looks at what is overdue so long after the last message was handed back, and then
takes all of it in the order of storing."""
RECONFIGURED_SECONDS: Final = 0.1
"""And so long after the acknowledgement wait was changed."""
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
        """Return the subjects that the consumer takes; all where its configuration names none."""
        return self.filter_subjects or ((self.filter_subject,) if self.filter_subject else (">",))


class Delivered(NamedTuple):
    """Holds one message on its way to one puller."""

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
    """Holds the state of a consumer of one stream."""

    config: ConsumerConfig
    asked: dict[str, Any]
    created: datetime
    pending: dict[int, datetime] = field(default_factory=dict)
    """Sequence -> when its acknowledgement is overdue."""
    free: "OrderedDict[int, int]" = field(default_factory=OrderedDict)
    """MemoryPuller -> how many more it takes; the next one to be served comes first."""
    delivered: int = 0
    """The newest sequence that was delivered."""
    passed: int = 0
    """Up to where the stream has been gone through; other filters begin after it."""
    count: int = 0
    """How many deliveries there were."""
    _ready: "OrderedDict[int, None]" = field(default_factory=OrderedDict)
    """What was never delivered, oldest first."""
    _again: deque[int] = field(default_factory=deque)
    """What is to be delivered again; it owes an acknowledgement still."""
    _overdue: list[tuple[datetime, int]] = field(default_factory=list)
    _quiet_until: datetime | None = None
    """Nothing is looked at before; set by whatever was handed back last."""
    _given_up: set[int] = field(default_factory=set)
    """Delivered as often as may be, and not acknowledged; a late acknowledgement still counts."""
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
        self.passed = stream.last_sequence if config.deliver_policy == "new" else max(start - 1, 0)
        for sequence in sorted(found):
            if sequence >= start and (since is None or stream.messages[sequence].time >= since):
                self._ready[sequence] = None

    def recover(
        self, delivered: int, owed: Iterable[int], stream: StreamState, now: datetime
    ) -> "ConsumerState":
        """The same consumer, which has delivered so much, of a stream that was recovered.

        A server that starts lets no consumer be ahead of its stream.
        """
        found = ConsumerState(config=self.config, asked=self.asked, created=self.created)
        found.begin(stream)
        found.free = self.free
        found.delivered = found.passed = min(delivered, stream.last_sequence)
        for sequence in [each for each in found._ready if each <= found.delivered]:
            del found._ready[sequence]
        for sequence in sorted(owed):
            if sequence in stream.messages and sequence <= found.delivered:
                found._counts[sequence] = 1
                found._owe(sequence, now + found._ack_wait)
        return found

    def offer(self, stored: Stored) -> bool:
        """Take up a message that was just stored, if it is one of ours; whether it is."""
        wanted = self._wanted.get(stored.subject)
        if wanted is None:
            if len(self._wanted) >= WANTED_MAX:
                self._wanted.clear()
            wanted = pattern(self.config.filters).fullmatch(stored.subject) is not None
            self._wanted[stored.subject] = wanted
        if wanted:
            self._ready[stored.sequence] = None
        return wanted

    def reconfigure(
        self, config: ConsumerConfig, asked: dict[str, Any], stream: StreamState, now: datetime
    ) -> None:
        """Change what may be changed of an existing consumer: what comes next, and the waits."""
        longer = timedelta(microseconds=(config.ack_wait - self.config.ack_wait) // 1000)
        filters = self.config.filters
        self.config, self.asked = config, asked
        if set(filters) != set(config.filters):
            self._wanted.clear()
            found = {each for one in config.filters for each in stream.sequences(one, self.passed)}
            self._ready = OrderedDict.fromkeys(sorted(found))
        if longer:
            self._quiet_until = now + timedelta(seconds=RECONFIGURED_SECONDS)
            self.pending = {each: until + longer for each, until in self.pending.items()}
            self._overdue = [
                (until, each) for each, until in self.pending.items() if each not in self._again
            ]
            heapq.heapify(self._overdue)

    def gone(self, removed: list[int]) -> bool:
        """Owe nothing for what the stream has let go of; whether anything was owed."""
        owed = False
        for sequence in removed:
            self._ready.pop(sequence, None)
            if sequence in self.pending or sequence in self._given_up:
                self._drop(sequence)
                owed = True
        return owed

    # --- dealing out --------------------------------------------------------------------------

    def pump(self, stream: StreamState, now: datetime) -> list[Delivered]:
        """Deal out what is there to the pullers that take more."""
        found: list[Delivered] = []
        while (puller := self._turn()) is not None:
            stored = self._next(stream)
            if stored is None:
                if not self._ready:
                    self.passed = stream.last_sequence
                break
            self.free[puller] -= 1
            self.free.move_to_end(puller)
            found.append(self._deal(puller, stored, now))
        return found

    def _turn(self) -> int | None:
        for puller, free in self.free.items():
            if free > 0:
                return puller
        return None

    def _next(self, stream: StreamState) -> Stored | None:
        while self._again:
            sequence = self._again.popleft()
            if sequence in self.pending:
                return stream.messages[sequence]
        if self.config.ack_policy != "none" and len(self.pending) >= self._pending_max:
            return None
        return stream.messages[self._ready.popitem(last=False)[0]] if self._ready else None

    @property
    def _pending_max(self) -> int:
        most = self.config.max_ack_pending
        return most if most > 0 else 1_000_000_000

    def _deal(self, puller: int, stored: Stored, now: datetime) -> Delivered:
        self.count += 1
        self.delivered = max(self.delivered, stored.sequence)
        self.passed = max(self.passed, stored.sequence)
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
        if word in ("ack", "term"):
            known = sequence in self.pending or sequence in self._given_up
            self._drop(sequence)
            return known
        if sequence in self.pending and sequence not in self._again:
            if word == "nak":
                self._owe(sequence, now + timedelta(seconds=max(delay_seconds, 0.0)))
                self._quiet_until = now + timedelta(seconds=NAK_SECONDS)
            else:
                self._owe(sequence, now + self._ack_wait)
        return False

    def _drop(self, sequence: int) -> None:
        self.pending.pop(sequence, None)
        self._counts.pop(sequence, None)
        self._given_up.discard(sequence)

    def next_moment(self) -> datetime | None:
        """Return when what is overdue is looked at next; None: nothing is owed."""
        while self._overdue:
            due, sequence = self._overdue[0]
            if self.pending.get(sequence) == due:
                return max(due, self._quiet_until) if self._quiet_until else due
            heapq.heappop(self._overdue)
        return None

    def tick(self, now: datetime) -> list[Exceeded]:
        """Put what is overdue up for redelivery; return what has been delivered too often."""
        due = self.next_moment()
        if due is None or due > now:
            return []
        self._quiet_until = None
        found: set[int] = set()
        while (due := self.next_moment()) is not None and due <= now:
            found.add(heapq.heappop(self._overdue)[1])
        given_up: list[Exceeded] = []
        for sequence in sorted(found):
            deliveries = self._counts[sequence]
            if 0 < self.config.max_deliver <= deliveries:
                del self.pending[sequence]
                self._given_up.add(sequence)
                given_up.append(Exceeded(sequence, deliveries))
            else:
                self._again.append(sequence)
        return given_up

    # --- looking ------------------------------------------------------------------------------

    def info(self, stream: StreamState) -> dict[str, Any]:
        """Return the server's description of the consumer."""
        owed = [*self.pending, *self._given_up]
        floor = min(owed) - 1 if owed else self.delivered
        return {
            "stream_name": stream.config.name,
            "name": self.config.name,
            "created": self.created.isoformat(),
            "config": self.asked,
            "delivered": {"consumer_seq": self.count, "stream_seq": self.delivered},
            "ack_floor": {"consumer_seq": self.count - len(self.pending), "stream_seq": floor},
            "num_ack_pending": len(self.pending),
            "num_redelivered": sum(1 for each in owed if self._counts.get(each, 0) > 1),
            "num_waiting": sum(1 for free in self.free.values() if free > 0),
            "num_pending": len(self._ready),
        }


def read_config(asked: Mapping[str, Any]) -> ConsumerConfig:
    """Read a consumer's options; what does not matter here is left out."""
    config = msgspec.convert(asked, ConsumerConfig)
    name = config.name or config.durable_name
    return msgspec.structs.replace(config, name=name)
