"""The server as a whole: streams, consumers, and what one change leads to. Pure.

Every change is a method that takes `now` and returns its effects; `tick` does what is due by
itself. The shell around it (`memory_bus`) carries the effects out and sees to it that `tick` is
called when `next_moment` says so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from schemas import headers as h
from schemas.subjects import MAX_DELIVERIES
from services.bus.memory.jetstream.consumer_state import (
    MAX_DELIVERIES_ADVISORY,
    ConsumerConfig,
    ConsumerState,
    Delivered,
    Exceeded,
    Word,
)
from services.bus.memory.jetstream.stream_state import StreamState
from services.bus.port import Stored
from services.bus.protocol.subject_filters import REST, matches
from services.primitives.errors import Unavailable

_json = msgspec.json.Encoder()

HOMES_MAX: Final = 20_000
"""Subjects whose stream is remembered; sagas' logs bring new ones all the time."""


class ConsumerPlace(NamedTuple):
    """Names a consumer's place: its stream and its name."""

    stream: str
    consumer: str


@dataclass(slots=True)
class ServerEffects:
    """Describes what a change leads to."""

    delivered: list[tuple[ConsumerPlace, Delivered]] = field(default_factory=list)
    stored: list[tuple[str, Stored]] = field(default_factory=list)
    """Stream, and what was stored there: what was asked for and what followed from it."""


class StreamBackup(NamedTuple):
    """Holds what a stream and its consumers held at a moment."""

    messages: tuple[Stored, ...]
    last_sequence: int
    consumers: dict[str, tuple[int, tuple[int, ...]]]
    """Name -> the last sequence delivered, and those that were not acknowledged."""


@dataclass(slots=True)
class ServerState:
    """Everything that a server keeps."""

    streams: dict[str, StreamState] = field(default_factory=dict)
    consumers: dict[str, dict[str, ConsumerState]] = field(default_factory=dict)
    """Stream -> name -> consumer."""
    waiting: dict[ConsumerPlace, dict[int, int]] = field(default_factory=dict)
    """Consumers that are not there (yet, or any more) -> who would take how many messages."""
    _homes: dict[str, str] = field(default_factory=dict)
    """Subject -> its stream; forgotten whenever a stream comes or goes."""
    _dues: dict[str, datetime] = field(default_factory=dict)
    """Stream -> when something of it is due, as of when it was last looked at."""
    _stale: dict[str, None] = field(default_factory=dict)
    """Streams that have changed since."""
    _first: datetime | None = None
    """The earliest of the dues."""

    # --- changes ------------------------------------------------------------------------------

    def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str], now: datetime
    ) -> tuple[int, ServerEffects]:
        """Store a message where its subject belongs; return its sequence."""
        home = self.home(subject)
        if not home:
            raise Unavailable(f"{subject}: no responders")
        stream = self.streams[home]
        effects = ServerEffects()
        self._changed(home)
        # What is due at this very moment comes first: a guard must not hold for what is over.
        self._tick_stream(home, now, effects)
        sequence, new = stream.store(subject, data, headers, now)
        # What is larger than its whole stream may be is gone already.
        stored = stream.messages.get(sequence) if new else None
        self._took(home, [stored] if stored else [], now, effects)
        if stored:
            self._copy(home, now, effects)
        return sequence, effects

    def _copy(self, source: str, now: datetime, effects: ServerEffects) -> None:
        """Copy what a stream has into those that it is a source of."""
        held = self.streams[source]
        for name in self.copying(source):
            stream = self.streams[name]
            after = min(stream.sourced.get(source, 0), held.last_sequence)
            for each in map(held.messages.__getitem__, held.sequences(REST, after)):
                stream.sourced[source] = each.sequence
                headers = {**each.headers, h.STREAM_SOURCE: f"{source} {each.sequence}"}
                sequence, new = stream.store(each.subject, each.data, headers, now)
                self._changed(name)
                self._took(name, [stream.messages[sequence]] if new else [], now, effects)

    def copying(self, source: str) -> list[str]:
        """The streams that copy one."""
        return [
            name
            for name, each in self.streams.items()
            if any(source == its.name for its in each.config.sources)
        ]

    def settle(
        self, place: ConsumerPlace, sequence: int, word: Word, delay_seconds: float, now: datetime
    ) -> ServerEffects:
        """Take an acknowledgement in; a work queue lets go of what is done."""
        effects = ServerEffects()
        consumer = self.consumers.get(place.stream, {}).get(place.consumer)
        if consumer is None:
            return effects
        self._changed(place.stream)
        stream = self.streams[place.stream]
        done = consumer.settle(sequence, word, delay_seconds, now)
        if done and stream.config.retention == "workqueue":
            stream.remove(sequence)
        self._tick_consumer(place, now, effects)
        self._took(place.stream, [], now, effects)
        self._deal(place, consumer, now, effects)
        return effects

    def take(self, place: ConsumerPlace, puller: int, room: int, now: datetime) -> ServerEffects:
        """A puller takes so many more messages."""
        effects = ServerEffects()
        consumer = self.consumers.get(place.stream, {}).get(place.consumer)
        if consumer is None:
            waiting = self.waiting.setdefault(place, {})
            waiting[puller] = waiting.get(puller, 0) + room
            return effects
        self._changed(place.stream)
        consumer.free[puller] = consumer.free.get(puller, 0) + room
        self._deal(place, consumer, now, effects)
        return effects

    def leave(self, place: ConsumerPlace, puller: int) -> None:
        """A puller takes no more."""
        consumer = self.consumers.get(place.stream, {}).get(place.consumer)
        if consumer is not None:
            consumer.free.pop(puller, None)
        elif place in self.waiting:
            self.waiting[place].pop(puller, None)
            if not self.waiting[place]:
                del self.waiting[place]

    def add_stream(self, stream: StreamState) -> None:
        """Begin to keep a stream."""
        self.streams[stream.config.name] = stream
        self.consumers.setdefault(stream.config.name, {})
        self._changed(stream.config.name)
        self._homes.clear()

    def drop_stream(self, name: str) -> None:
        """Forget a stream, its messages and its consumers."""
        for consumer in list(self.consumers[name]):
            self.drop_consumer(ConsumerPlace(name, consumer))
        for each in self.copying(name):  # a new stream of the name is copied from its beginning
            self.streams[each].sourced.pop(name, None)
        del self.streams[name]
        del self.consumers[name]
        self._changed(name)
        self._homes.clear()

    def back_up(self, name: str) -> StreamBackup:
        """Return what a stream holds now."""
        stream = self.streams[name]
        consumers = {
            at: (each.delivered, tuple(each.pending)) for at, each in self.consumers[name].items()
        }
        return StreamBackup(tuple(stream.messages.values()), stream.last_sequence, consumers)

    def restore(self, name: str, backup: StreamBackup, now: datetime) -> None:
        """Bring a stream to what it held before; consumers in memory are lost.

        A durable that the backup does not have is one that was created since.
        """
        held = self.streams[name]
        self.streams[name] = held.recover(backup.messages, backup.last_sequence, now)
        for at, consumer in list(self.consumers[name].items()):
            if consumer.config.durable_name:
                self.restore_consumer(ConsumerPlace(name, at), backup, now)
            else:
                self.drop_consumer(ConsumerPlace(name, at))
        self._changed(name)

    def restore_consumer(self, place: ConsumerPlace, backup: StreamBackup, now: datetime) -> None:
        """Bring a durable to the position that it had before."""
        consumer, stream = self.consumers[place.stream][place.consumer], self.streams[place.stream]
        delivered, owed = backup.consumers.get(place.consumer, (0, ()))
        self.consumers[place.stream][place.consumer] = consumer.recover(
            delivered, owed, stream, now
        )
        self._changed(place.stream)

    def add_consumer(self, stream: str, consumer: ConsumerState) -> None:
        """Create a consumer; pullers that wait for it get its messages."""
        self._changed(stream)
        consumer.begin(self.streams[stream])
        place = ConsumerPlace(stream, consumer.config.name)
        consumer.free.update(self.waiting.pop(place, {}))
        self.consumers[stream][consumer.config.name] = consumer

    def drop_consumer(self, place: ConsumerPlace) -> None:
        """Delete a consumer; its pullers wait for its return."""
        self._changed(place.stream)
        consumer = self.consumers.get(place.stream, {}).pop(place.consumer, None)
        if consumer is not None and consumer.free:
            self.waiting[place] = dict(consumer.free)

    def reconfigure_consumer(
        self, place: ConsumerPlace, config: ConsumerConfig, asked: dict[str, Any], now: datetime
    ) -> None:
        """Change what may be changed of a consumer."""
        self._changed(place.stream)
        consumer = self.consumers[place.stream][place.consumer]
        consumer.reconfigure(config, asked, self.streams[place.stream], now)

    def purge(self, stream: str, filter_: str, keep: int, before: int) -> int:
        """Remove what a filter names; return how many."""
        self._changed(stream)
        return self.streams[stream].purge(filter_, keep=keep, before=before)

    def settled(self, now: datetime) -> ServerEffects:
        """Return what follows from a call of the server's API: consumers take what they may now."""
        effects = ServerEffects()
        for name in list(self._stale):
            if name in self.streams:
                for source in self.streams[name].config.sources:
                    if source.name in self.streams:
                        self._copy(source.name, now, effects)
                self._took(name, [], now, effects)
                self._pump(name, now, effects)
        return effects

    # --- time ---------------------------------------------------------------------------------

    def next_moment(self) -> datetime | None:
        """Return when something is due by itself; None: nothing ever."""
        if self._stale:
            for name in self._stale:
                self._look_at(name)
            self._stale.clear()
        return self._first

    def _look_at(self, name: str) -> None:
        """Find when something of a stream is due, and whether it is the first of all."""
        before = self._dues.pop(name, None)
        due = self._due_in(name) if name in self.streams else None
        if due is not None:
            self._dues[name] = due
        if due is not None and (self._first is None or due <= self._first):
            self._first = due
        elif before is not None and before == self._first:
            self._first = min(self._dues.values(), default=None)

    def _due_in(self, name: str) -> datetime | None:
        due = self.streams[name].next_moment()
        for each in self.consumers[name].values():
            moment = each.next_moment()
            if moment is not None and (due is None or moment < due):
                due = moment
        return due

    def _changed(self, name: str) -> None:
        self._stale[name] = None

    def is_due(self, now: datetime) -> bool:
        """Return whether anything is due."""
        first = self.next_moment()
        return first is not None and first <= now

    def tick(self, now: datetime) -> ServerEffects:
        """Do what is due."""
        effects = ServerEffects()
        if not self.is_due(now):
            return effects
        for name in list(self.streams):
            if name in self._stale:
                self.next_moment()
            due = self._dues.get(name)
            if due is None or due > now:
                continue
            self._changed(name)
            self._tick_stream(name, now, effects)
            for consumer in self.consumers[name]:
                self._tick_consumer(ConsumerPlace(name, consumer), now, effects)
            self._pump(name, now, effects)
        return effects

    def _tick_stream(self, name: str, now: datetime, effects: ServerEffects) -> None:
        stream = self.streams[name]
        made = stream.tick(now)
        if made or stream.removed:
            self._took(name, made, now, effects)

    def _tick_consumer(self, place: ConsumerPlace, now: datetime, effects: ServerEffects) -> None:
        consumer = self.consumers[place.stream][place.consumer]
        for each in consumer.tick(now):
            self._advise(place, each, now, effects)

    def _advise(
        self, place: ConsumerPlace, exceeded: Exceeded, now: datetime, effects: ServerEffects
    ) -> None:
        subject = f"{MAX_DELIVERIES.removesuffix('>')}{place.stream}.{place.consumer}"
        if not self.home(subject):
            return
        about = {
            "type": MAX_DELIVERIES_ADVISORY,
            "id": f"{place.stream}-{place.consumer}-{exceeded.sequence}",
            "timestamp": now.isoformat(),
            "stream": place.stream,
            "consumer": place.consumer,
            "stream_seq": exceeded.sequence,
            "deliveries": exceeded.deliveries,
        }
        _, more = self.publish(subject, _json.encode(about), {}, now)
        effects.stored += more.stored
        effects.delivered += more.delivered

    # --- what follows -------------------------------------------------------------------------

    def _took(
        self, name: str, stored: Iterable[Stored], now: datetime, effects: ServerEffects
    ) -> None:
        """Offer what was stored to every consumer, and deal it out where it is wanted."""
        stream = self.streams[name]
        consumers = self.consumers[name]
        changed: dict[str, ConsumerState] = {}
        for each in stored:
            effects.stored.append((name, each))
            if each.sequence in stream.messages:
                changed |= {at: c for at, c in consumers.items() if c.offer(each)}
        if stream.removed:
            removed, stream.removed = stream.removed, []
            changed |= {at: c for at, c in consumers.items() if c.gone(removed)}
        for at, consumer in changed.items():
            self._deal(ConsumerPlace(name, at), consumer, now, effects)

    def _pump(self, name: str, now: datetime, effects: ServerEffects) -> None:
        for consumer_name, consumer in self.consumers[name].items():
            self._deal(ConsumerPlace(name, consumer_name), consumer, now, effects)

    def _deal(
        self, place: ConsumerPlace, consumer: ConsumerState, now: datetime, effects: ServerEffects
    ) -> None:
        found = consumer.pump(self.streams[place.stream], now)
        effects.delivered += ((place, each) for each in found)

    def home(self, subject: str) -> str:
        """The stream that takes a subject; empty where none does."""
        found = self._homes.get(subject)
        if found is None:
            if len(self._homes) >= HOMES_MAX:
                self._homes.clear()
            found = next(
                (
                    name
                    for name, stream in self.streams.items()
                    if any(matches(each, subject) for each in stream.config.subjects)
                ),
                "",
            )
            self._homes[subject] = found
        return found
