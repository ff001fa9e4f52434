"""The in-memory server's shell: keeps the state, does what is due in time, hands out what is dealt.

Any number of `MemoryBus` connections share one. It lives in one event loop and knows no other time
than the clock it is given, so that it serves tests in real time and simulations in virtual time.
"""

import asyncio
import contextvars
import itertools
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from services.bus.memory.jetstream import api_calls
from services.bus.memory.jetstream.consumer_state import Delivered, Word
from services.bus.memory.jetstream.server_state import (
    ConsumerPlace,
    ServerEffects,
    ServerState,
    StreamBackup,
)
from services.bus.port import Endpoint, Stored
from services.bus.protocol.subject_filters import ANY, REST, matches
from services.primitives.clock import Clock
from services.primitives.errors import StoreFull


class Receiver(Protocol):
    """Takes a consumer's messages."""

    def hand(self, delivered: Delivered) -> None:
        """Take one delivered message."""

    def deleted(self) -> None:
        """End the pull, because its consumer does not exist any more."""


@dataclass(frozen=True, slots=True)
class Responder:
    """Answers a subject."""

    name: str
    """Of its service: those of one name take turns."""
    endpoint: Endpoint
    as_service: bool
    context: contextvars.Context
    """What its work runs in: the answering process's own."""
    reachable: Callable[[], bool]


class MemoryServer:
    """A server that forgets everything with its process."""

    def __init__(self, clock: Clock) -> None:
        self.state = ServerState()
        self.clock = clock
        self.on_stored: Callable[[str, Stored], None] | None = None
        """Called with stream and message for whatever is stored."""
        self.on_refused: Callable[[str], None] | None = None
        """Called with the stream whenever a message for it is refused."""
        self.on_acknowledged: Callable[[str, str, int], None] | None = None
        """Called with stream, consumer and sequence of each acknowledgement."""
        self._receivers: dict[int, Receiver] = {}
        self._responders: dict[str, list[Responder]] = {}
        self._answered: dict[int, list[str]] = {}
        """Identity of a context -> the subjects that are answered in it."""
        self._wildcards: dict[str, None] = {}
        """Which of what is answered are whole trees of subjects."""
        self._working: dict[asyncio.Task[None], None] = {}
        self._numbers = itertools.count(1)
        self.closed = False
        self.refusing: dict[str, int] = {}
        """Stream -> how many faults have it refuse what is to be stored, as on a full disk."""
        self._timer: asyncio.TimerHandle | None = None
        self._due: datetime | None = None

    def number(self) -> int:
        """The next of a count that never repeats."""
        return next(self._numbers)

    # --- changes ------------------------------------------------------------------------------

    def publish(self, subject: str, data: bytes, headers: Mapping[str, str]) -> int:
        """Store a message; return its sequence."""
        stream = self.state.home(subject) if self.refusing else ""
        if stream and self.refusing.keys() & {stream, *self.state.copying(stream)}:
            if self.on_refused is not None:
                self.on_refused(stream)
            raise StoreFull(f"{subject}: insufficient storage resources available (10047)")
        now = self.clock.now()
        # By itself, and before: what came due must not be lost with a message that is refused.
        if self.state.is_due(now):
            self._carry_out(self.state.tick(now))
        sequence, effects = self.state.publish(subject, data, headers, now)
        self._carry_out(effects)
        return sequence

    def settle(self, place: ConsumerPlace, sequence: int, word: Word, delay_seconds: float) -> None:
        """Take an acknowledgement in."""
        if word == "ack" and self.on_acknowledged is not None:
            self.on_acknowledged(place.stream, place.consumer, sequence)
        self._carry_out(self.state.settle(place, sequence, word, delay_seconds, self.clock.now()))

    def lose_memory(self) -> None:
        """Drop every stream that is kept in memory, as a restart of the server does."""
        for name, stream in list(self.state.streams.items()):
            if stream.asked.get("storage") == "memory":
                self.state.drop_stream(name)
        self._notify_deleted()

    def admin(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a call of the server's own API."""
        now = self.clock.now()
        self._carry_out(self.state.tick(now))
        found = api_calls.call(self.state, call, body, now)
        if ".DELETE." in call:
            self._notify_deleted()
        self._carry_out(self.state.settled(now))
        return found

    def restore(self, stream: str, backup: StreamBackup, durable: str = "") -> None:
        """Bring a stream, or one durable of it, to what it was before."""
        now = self.clock.now()
        if durable:
            self.state.restore_consumer(ConsumerPlace(stream, durable), backup, now)
        else:
            self.state.restore(stream, backup, now)
        self._notify_deleted()
        self._carry_out(self.state.settled(now))

    def fresh(self) -> ServerState:
        """The state, with everything done that is due."""
        now = self.clock.now()
        if self.state.is_due(now):
            self._carry_out(self.state.tick(now))
        return self.state

    def begin(self, receiver: Receiver) -> int:
        """Know a receiver by a number."""
        number = self.number()
        self._receivers[number] = receiver
        return number

    def take(self, place: ConsumerPlace, puller: int, room: int) -> None:
        """A receiver takes so many more messages."""
        self._carry_out(self.state.take(place, puller, room, self.clock.now()))
        self._notify_deleted()

    def end(self, place: ConsumerPlace, puller: int) -> None:
        """A receiver takes no more."""
        self.state.leave(place, puller)
        self._receivers.pop(puller, None)

    def leave(self, place: ConsumerPlace, puller: int) -> None:
        """A receiver takes nothing for a while."""
        self.state.leave(place, puller)

    def forget(self, place: ConsumerPlace) -> None:
        """A consumer whose only receiver is gone."""
        self.state.drop_consumer(place)
        self._wake()

    # --- what follows -------------------------------------------------------------------------

    def _notify_deleted(self) -> None:
        for pullers in list(self.state.waiting.values()):
            for number in list(pullers):
                self._receivers[number].deleted()

    def _carry_out(self, effects: ServerEffects) -> None:
        if self.on_stored is not None:
            for stream, stored in effects.stored:
                self.on_stored(stream, stored)
        for _, delivered in effects.delivered:
            receiver = self._receivers.get(delivered.puller)
            if receiver is not None:
                receiver.hand(delivered)
        self._wake()

    def _wake(self) -> None:
        due = self.state.next_moment()
        if due == self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, due
        if due is not None:
            seconds = max((due - self.clock.now()).total_seconds(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._timer = self._due = None
        self._carry_out(self.state.tick(self.clock.now()))

    def close(self) -> None:
        """Do nothing any more."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    # --- questions ----------------------------------------------------------------------------

    def respond(self, subject: str, responder: Responder) -> None:
        """Register a responder."""
        if ANY in subject or REST in subject:
            self._wildcards[subject] = None
        self._responders.setdefault(subject, []).append(responder)
        self._answered.setdefault(id(responder.context), []).append(subject)

    def silence(self, context: contextvars.Context) -> None:
        """Remove the responders of a context."""
        for subject in dict.fromkeys(self._answered.pop(id(context), ())):
            left = [each for each in self._responders[subject] if each.context is not context]
            if left:
                self._responders[subject] = left
            else:
                del self._responders[subject]
                self._wildcards.pop(subject, None)

    def responders(self, subject: str) -> list[Responder]:
        """Return the responders of one request: every plain one, and one of each service."""
        found: list[Responder] = []
        for asked in (subject, *(each for each in self._wildcards if matches(each, subject))):
            known = self._responders.get(asked, [])
            heard = [each for each in known if each.reachable()]
            found += [each for each in heard if not each.as_service]
            in_turn = next((each for each in heard if each.as_service), None)
            if in_turn is not None:
                known.append(known.pop(known.index(in_turn)))
                found.append(in_turn)
        return found

    def work(self, work: Coroutine[Any, Any, None], context: contextvars.Context) -> None:
        """Run work in a responder's context, to its end."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._working[task] = None
        task.add_done_callback(lambda done: self._working.pop(done, None))
