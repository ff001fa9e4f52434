"""The one consumer loop: decode, handle, ack; retry with back-off; dead letter.

A message is given up only for its content: it cannot be decoded, the handler rejects it, the
handler raises again and again, or it ends process after process (`crash_guard`). A bus that
refuses, and a service that lags, delay it and no more.

Messages of one key (a node, a saga) are handled one after the other, others side by side. While a
handler works its message is kept alive by progress signs, so the durable's acknowledgement wait can
be short, and what a killed service held comes back quickly. Handlers publish first, save second and
return; only then is the message acknowledged.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from schemas import subjects
from schemas.dead_letters import DeadLetter
from schemas.messages import Invalid, Message, UnknownType, encode
from schemas.stream_specs import DurableSpec
from services.bus.port import Bus, Delivery, Stored
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Reject, Retry, TooLarge, UnreadableRecord
from services.primitives.redaction import redacted
from services.runtime.crash_guard import CrashGuard, Suspect
from services.runtime.failure_register import flooded, unreadable
from services.runtime.process_metrics import Instruments, Meters
from services.runtime.sender_quota import (
    EQUAL_MAX,
    SENDER_MAX,
    SUMMARY_SECONDS,
    DeadLetterQuota,
    SenderLimit,
    SenderQuota,
)
from services.runtime.tracing import Tracing, trace_labels

log = logging.getLogger(__name__)

BACKOFF_FIRST_SECONDS: Final = 0.05
BACKOFF_MAX_SECONDS: Final = 30.0
BACKOFF_DOUBLINGS_MAX: Final = 16
FAILING_MAX: Final = 10_000
"""Messages whose failures are counted at once."""
ANSWERED_MAX: Final = 10_000
"""Messages of which it is known that this process asked for their next delivery."""
FINISH_SECONDS: Final = 5.0
DEAD_DATA_BYTES_MAX: Final = 65_536
MAKE_UP_TRIES_MAX: Final = 20
"""Some six minutes, while the bus is away."""


M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Received(Generic[M]):
    """A decoded message, and how it is stored."""

    message: M
    stored: Stored
    deliveries: int = 1


Decoded = Message | UnknownType | Invalid
Decode = Callable[[Stored], Decoded]
Handle = Callable[[Received[Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """Says what a service does with one durable."""

    durable: DurableSpec
    decode: Decode
    handle: Handle
    key: Callable[[Stored], str]
    """Messages with the same key are handled in order; a node's key is its sender too."""
    limit: SenderLimit | None = None
    """How its senders are limited; None: they are not."""
    make_up: Handle | None = None
    """Brings about, once a message that can be handled is a dead letter, what does not come about
    without it; None: an operator is to publish it again."""
    finish_seconds: float = FINISH_SECONDS
    """How long what is held may take to finish when the process stops; then it is handed back."""


@dataclass(slots=True)
class ConsumerLoop:
    """Runs one consumer until cancelled."""

    bus: Bus
    consumer: Consumer
    clock: Clock
    instruments: Instruments
    tracing: Tracing
    guard: CrashGuard | None = None
    """None: a message that ends process after process is delivered for ever."""
    _meters: Meters = field(init=False)
    _tails: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _held: set[Delivery] = field(default_factory=set)
    _holding: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _failed: dict[int, int] = field(default_factory=dict)
    """Sequence -> how often the handler raised for it, in this process."""
    _answered: dict[int, int] = field(default_factory=dict)
    """Sequence -> the last delivery that this process answered, and asked for another."""
    _unreadable: dict[str, str] = field(default_factory=dict)
    """Key -> the record because of which its messages wait."""
    _quota: DeadLetterQuota = field(default_factory=DeadLetterQuota)
    _senders: SenderQuota | None = field(init=False)

    def __post_init__(self) -> None:
        """Find the durable's own instruments once."""
        limit = self.consumer.limit
        self._meters = self.instruments.of(self.consumer.durable.name)
        self._senders = SenderQuota(limit, self.clock.monotonic()) if limit else None

    async def run(self) -> None:
        """Take messages until cancelled; finish what is held within a bound, hand back the rest."""
        keeping = [
            asyncio.create_task(each) for each in (self._keep_alive(), self._summarise_for_ever())
        ]
        try:
            async for delivery in self.bus.consume(self.consumer.durable):
                if self._is_suspect(delivery):  # it may be the decoding that ends a process
                    self._take(delivery, None)
                    continue
                decoded = self.consumer.decode(delivery.stored)
                if self._admits(delivery, decoded):
                    self._take(delivery, decoded)
                else:
                    await delivery.ack()
                    self._meters.settled("withheld", 0.0, {})
        finally:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self.consumer.finish_seconds)
            unfinished = list(self._held)
            for task in [*self._tasks, *keeping]:
                task.cancel()
            await asyncio.gather(*self._tasks, *keeping, return_exceptions=True)
            for delivery in unfinished:
                await delivery.nak(0)
            await self._summarise()

    def _admits(self, delivery: Delivery, decoded: Decoded) -> bool:
        """Whether the sender's quota lets a message pass; a repeated delivery has passed before."""
        if self._senders is None or not isinstance(decoded, Message) or delivery.deliveries > 1:
            return True
        return self._senders.admit(self.consumer.key(delivery.stored), decoded)

    def _is_suspect(self, delivery: Delivery) -> bool:
        """Whether an earlier delivery ended without an answer, as far as this process knows."""
        last = self._answered.pop(delivery.stored.sequence, 0)
        return self.guard is not None and delivery.deliveries > 1 and last + 1 < delivery.deliveries

    def _take(self, delivery: Delivery, decoded: Decoded | None) -> None:
        self._meters.lag_messages.set(delivery.pending)
        age = (self.clock.now() - delivery.stored.time).total_seconds()
        self._meters.lag_seconds.set(max(age, 0.0))
        key = self.consumer.key(delivery.stored)
        self._held.add(delivery)
        self._holding.set()
        task = asyncio.create_task(self._after(self._tails.get(key), delivery, decoded))
        self._tails[key] = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._forget(key, done, delivery))

    def _forget(self, key: str, task: asyncio.Task[None], delivery: Delivery) -> None:
        self._tasks.discard(task)
        self._held.discard(delivery)
        if not self._held:
            self._holding.clear()
        if self._tails.get(key) is task:
            del self._tails[key]

    async def _after(
        self, earlier: asyncio.Task[None] | None, delivery: Delivery, decoded: Decoded | None
    ) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        started = self.clock.monotonic()
        if decoded is None:
            outcome = await self._settle_suspect(delivery)
        else:
            outcome = await self._answer(delivery, decoded)
        if outcome not in ("retried", "set-aside") and self.guard is not None:
            self.guard.settled(delivery.stored)
        taken = self.clock.monotonic() - started
        self._meters.settled(outcome, taken, trace_labels(delivery.stored.headers))

    async def _answer(self, delivery: Delivery, decoded: Decoded) -> str:
        """Settle one delivery; where it is to come again, it is known to have been answered."""
        outcome = await self._settle(delivery, decoded)
        if outcome == "retried":
            self._answered[delivery.stored.sequence] = delivery.deliveries
            if len(self._answered) > ANSWERED_MAX:
                del self._answered[next(iter(self._answered))]
        return outcome

    async def _settle_suspect(self, delivery: Delivery) -> str:
        """Settle what may have ended the processes that handled it before."""
        guard = self.guard
        assert guard is not None, "no message is a suspect without a guard"
        suspect = await guard.begin(self.consumer.durable, delivery.stored)
        if suspect.fatal:
            return await self._set_aside(delivery, guard, suspect)
        try:
            return await self._answer(delivery, self.consumer.decode(delivery.stored))
        finally:
            guard.end(suspect)

    async def _set_aside(self, delivery: Delivery, guard: CrashGuard, suspect: Suspect) -> str:
        """Dead-letter what ends processes, then report it; until then no handler gets it.

        The report comes second: once its command is run, nothing sets the message aside again.
        """
        reason = f"set aside: {suspect.deaths + 1} processes died while they handled it"
        if not await self._lettered(delivery, reason):
            return "retried"
        try:
            await guard.set_aside(
                self.consumer.durable,
                delivery.stored,
                suspect.deaths,
                replayed=self.consumer.make_up is None,
            )
        except (BusError, Retry) as error:
            return await self._again(delivery, error)
        await delivery.term()
        await self._make_up(delivery)
        return "set-aside"

    async def _make_up(self, delivery: Delivery) -> None:
        """Let the consumer do the rest; the message is gone by then, whatever comes of it."""
        if (make_up := self.consumer.make_up) is None:
            return None
        message = self.consumer.decode(delivery.stored)
        if not isinstance(message, Message):
            return None
        received = Received(message, delivery.stored, delivery.deliveries)
        for tried in range(MAKE_UP_TRIES_MAX):
            try:
                return await make_up(received)
            except (BusError, Retry):
                await self.clock.sleep(_backoff_seconds(tried))
            except Exception:
                log.exception("not made up for", extra={"subject": delivery.stored.subject})
                return None
        log.error("not made up for: no bus", extra={"subject": delivery.stored.subject})
        return None

    async def _settle(self, delivery: Delivery, decoded: Decoded) -> str:
        """Handle one delivery and settle it; return the outcome's name."""
        stored = delivery.stored
        match decoded:
            case UnknownType(type=kind):
                log.info("unknown type", extra={"subject": stored.subject, "type": kind})
                await delivery.ack()
                return "unknown"
            case Invalid(type=kind, reason=reason):
                return await self._unusable(delivery, "invalid", f"{kind or 'no type'}: {reason}")
            case Message() as message:
                pass
        try:
            with self.tracing.span(
                f"{self.consumer.durable.name} {stored.subject.rsplit('.', 2)[-2]}"
                f".{stored.subject.rsplit('.', 1)[-1]}",
                stored.headers,
                subject=stored.subject,
                sequence=stored.sequence,
            ):
                await self.consumer.handle(Received(message, stored, delivery.deliveries))
        except Reject as error:
            return await self._unusable(delivery, "dead", str(error))
        except TooLarge as error:
            return await self._failed_again(delivery, error)
        except Retry as error:
            return await self._retry(delivery, error)
        except BusError as error:
            return await self._again(delivery, error)
        except Exception as error:
            # A defect of ours must neither end the service nor lose the message.
            if stored.sequence not in self._failed:
                log.exception("handler failed", extra={"subject": stored.subject})
            return await self._failed_again(delivery, error)
        await delivery.ack()
        self._failed.pop(stored.sequence, None)
        if self._unreadable and (about := self._unreadable.pop(self.consumer.key(stored), "")):
            self.instruments.failures.end("record-unreadable", about)
        return "done"

    async def _retry(self, delivery: Delivery, error: Retry) -> str:
        """Deliver again what has to wait for us, or for the repair of a record."""
        if isinstance(error, UnreadableRecord):
            failure = unreadable(error)
            self._unreadable[self.consumer.key(delivery.stored)] = failure.about
            self.instruments.failures.report(failure)
            return await self._again(delivery, error)
        return await self._again(delivery, error)

    async def _failed_again(self, delivery: Delivery, error: Exception) -> str:
        """Deliver again what the handler raised for, unless it did so too often."""
        sequence, most = delivery.stored.sequence, self.consumer.durable.failures_max
        failed = self._failed[sequence] = self._failed.get(sequence, 0) + 1
        if len(self._failed) > FAILING_MAX:
            del self._failed[next(iter(self._failed))]
        if failed < most:
            return await self._again(delivery, error)
        reason = f"given up after {failed} failures: {error}"
        outcome = await self._bury(delivery, "dead", reason)
        if outcome == "dead":
            await self._make_up(delivery)
            self._failed.pop(sequence, None)
        return outcome

    async def _again(self, delivery: Delivery, error: Exception) -> str:
        delay = _backoff_seconds(delivery.deliveries - 1)
        if isinstance(error, Retry) and error.after_seconds is not None:
            delay = error.after_seconds
        log.info(
            "trying again",
            extra={"subject": delivery.stored.subject, "reason": str(error), "after_s": delay},
        )
        await delivery.nak(delay)
        return "retried"

    async def _unusable(self, delivery: Delivery, outcome: str, reason: str) -> str:
        """Set aside what no handler can use: in a letter of its own, or in its sender's summary."""
        stored = delivery.stored
        sender = self.consumer.key(stored)
        if self._quota.admit(sender, stored, reason, self.clock.monotonic()):
            return await self._bury(delivery, outcome, reason)
        await delivery.term()
        return outcome

    async def _bury(self, delivery: Delivery, outcome: str, reason: str) -> str:
        """Dead-letter a message; it stays in its stream's hands until the letter is stored."""
        if not await self._lettered(delivery, reason):
            return "retried"
        await delivery.term()
        return outcome

    async def _lettered(self, delivery: Delivery, reason: str) -> bool:
        """Write the letter of a message, or have it delivered again."""
        stored, reason = delivery.stored, redacted(reason)
        log.warning("dead letter", extra={"subject": stored.subject, "reason": reason})
        letter = self._letter(stored, reason, deliveries=delivery.deliveries)
        if await self._stored(letter):
            return True
        await delivery.nak(BACKOFF_MAX_SECONDS)
        return False

    async def _summarise_for_ever(self) -> None:
        while True:
            await self.clock.sleep(SUMMARY_SECONDS)
            await self._summarise()
            self._report_floods()

    async def _summarise(self) -> None:
        """Write one letter for all the messages of a sender that have none of their own."""
        for each in self._quota.take_withheld():
            reason = f"{each.count} messages of {each.sender} are like this one: {each.reason}"
            log.warning("dead letter", extra={"subject": each.last.subject, "reason": reason})
            if not await self._stored(self._letter(each.last, reason, messages=each.count)):
                self._quota.give_back(each)

    def _report_floods(self) -> None:
        """Report the senders of which messages are withheld, in one failure for the durable."""
        if self._senders is None:
            return
        name, found = self.consumer.durable.name, self._senders.flooders(self.clock.monotonic())
        senders = sorted(found, key=lambda each: (-found[each], each))
        failures = [flooded(name, senders, EQUAL_MAX, SENDER_MAX)] if senders else []
        self.instruments.failures.update(f"floods of {name}", failures)

    def _letter(
        self, stored: Stored, reason: str, *, deliveries: int = 1, messages: int = 1
    ) -> DeadLetter:
        durable = self.consumer.durable
        return DeadLetter(
            id=f"dead-{durable.stream}-{durable.name}-{stored.sequence}",
            time=self.clock.now(),
            stream=durable.stream,
            durable=durable.name,
            subject=stored.subject,
            sequence=stored.sequence,
            deliveries=deliveries,
            reason=reason,
            data=stored.data[:DEAD_DATA_BYTES_MAX].decode("utf-8", "replace"),
            bytes=len(stored.data),
            messages=messages,
        )

    async def _stored(self, letter: DeadLetter) -> bool:
        subject = subjects.dead(letter.stream, letter.durable)
        try:
            await self.bus.publish(subject, encode(letter), msg_id=letter.id)
        except BusError:
            return False
        return True

    async def _keep_alive(self) -> None:
        """Report progress on held messages, three times per acknowledgement wait."""
        interval = self.consumer.durable.ack_wait_seconds / 3
        while True:
            await self._holding.wait()
            held = list(self._held)
            await self.clock.sleep(interval)
            with suppress(BusError):
                for delivery in held:
                    if delivery in self._held:
                        await delivery.progress()


def _backoff_seconds(tries: int) -> float:
    """How long to wait after so many tries before this one."""
    return min(
        BACKOFF_FIRST_SECONDS * 2.0 ** min(tries, BACKOFF_DOUBLINGS_MAX), BACKOFF_MAX_SECONDS
    )
