"""Keeps what fails in this process until it is over.

A failure is seen in the process's log, its metrics, EVENTS and `status`. A node, pool, saga or
record that cannot be processed is reported here and skipped, so that everything else goes on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Final, get_args

import msgspec
from prometheus_client import CollectorRegistry, Gauge

from schemas.fleet_events import FailureKind, ServiceFailure
from schemas.fleet_queries import CurrentFailure
from schemas.metric_catalogue import FAILURES
from services.bus.port import Bus, Endpoint, Headers
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Retry, TooLarge, UnreadableRecord
from services.primitives.race import race
from services.primitives.redaction import redacted
from services.runtime.event_publisher import publish_event
from services.runtime.store_refusals import REMEDIES, refusal_cause

log = logging.getLogger(__name__)

FAILURES_MAX: Final = 100
"""Kept at once; more are shown when some of these are over."""
FLOODERS_NAMED_MAX: Final = 5
AGAIN_SECONDS: Final = 660.0
"""Longer than the server remembers the ID of an event; the alert ends without three of these."""
RETRY_FIRST_SECONDS: Final = 5.0
RETRY_MAX_SECONDS: Final = 300.0
DEFECT_REMEDY: Final = (
    "report the log lines of this time as a defect; everything else goes on, and it is tried again"
)

Key = tuple[FailureKind, str]


class FailureRegister:
    """Holds the failures of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauge = Gauge(*FAILURES.declared, registry=registry)
        for kind in get_args(FailureKind):
            self._gauge.labels(kind)  # 0 until one begins, so that a query has an answer
        self._now: dict[Key, CurrentFailure] = {}
        self._published: dict[Key, ServiceFailure] = {}
        self._pending: ServiceFailure | None = None
        """What is being published; it may be stored, and keeps its ID until it is."""
        self._tries: dict[Key, int] = {}
        self._observed: dict[str, tuple[Key, ...]] = {}
        """Observer -> what it found last."""
        self._unread: dict[str, Key] = {}
        """What work was about -> the record that it could not read."""
        self._changed = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._number = 0
        """Of the next event."""

    @property
    def current(self) -> tuple[CurrentFailure, ...]:
        """Return what fails now, oldest first."""
        return tuple(self._now.values())

    def report(self, failure: CurrentFailure) -> None:
        """Take note of a failure; it is logged when it begins and when its reason changes."""
        key = (failure.failure, failure.about)
        known = self._now.get(key)
        if known is None and len(self._now) >= FAILURES_MAX:
            return
        if known is None or known.reason != failure.reason:
            log.error("%s: %s; %s", failure.about, failure.reason, failure.remedy)
            self._now[key] = failure
            self._count(failure.failure)

    def end(self, kind: FailureKind, about: str) -> None:
        """Take note that something works again."""
        self._tries.pop((kind, about), None)
        if self._now.pop((kind, about), None) is not None:
            log.info("%s: works again", about)
            self._count(kind)

    def update(self, observer: str, found: Iterable[CurrentFailure]) -> None:
        """Report what one observer finds now, and end what it had found before and is over."""
        now = {(each.failure, each.about): each for each in found}
        for failure in now.values():
            self.report(failure)
        before, self._observed[observer] = self._observed.get(observer, ()), tuple(now)
        still = {key for keys in self._observed.values() for key in keys}
        for key in before:
            if key not in still:
                self.end(*key)

    def _count(self, kind: FailureKind) -> None:
        self._changed.set()
        self._flushed.clear()
        self._gauge.labels(kind).set(sum(1 for each, _ in self._now if each == kind))

    async def attempt(self, about: str, work: Callable[[], Awaitable[object]]) -> bool:
        """Do work about one thing; False where it failed. BusError and Retry are raised."""
        try:
            await work()
        except UnreadableRecord as error:
            found = unreadable(error)
            self._unread[about] = (found.failure, found.about)
            self.report(found)
        except (BusError, Retry) as error:
            if not isinstance(error, TooLarge):
                raise
            self._defect(about, error)
        except Exception as error:
            if ("decision-failed", about) not in self._now:
                log.exception("%s cannot be processed", about)
            self._defect(about, error)
        else:
            self.end_work(about)
            return True
        return False

    def end_work(self, about: str) -> None:
        """Take note that work about one thing works again, or need not be done any more."""
        self.end("decision-failed", about)
        read = self._unread.pop(about, None)
        if read and not any(read in keys for keys in self._observed.values()):
            self.end(*read)

    def _defect(self, about: str, error: Exception) -> None:
        reason = redacted(f"{type(error).__name__}: {error}")
        self.report(
            CurrentFailure(
                failure="decision-failed", about=about, reason=reason, remedy=DEFECT_REMEDY
            )
        )

    def retry_seconds(self, about: str) -> float:
        """Return the seconds to wait before the next try; doubled with each call until it works."""
        key: Key = ("decision-failed", about)
        self._tries[key] = self._tries.get(key, -1) + 1
        return min(RETRY_FIRST_SECONDS * 2.0 ** min(self._tries[key], 10), RETRY_MAX_SECONDS)

    async def publish_for_ever(self, bus: Bus, clock: Clock, service: str, replica: str) -> None:
        """Publish each beginning and each end as an event, in this order, until it is stored.

        What lasts is published again with its ID: a failure of a process that died has no end.
        """
        due = clock.monotonic() + AGAIN_SECONDS
        while True:
            try:
                while event := self._pending or self._next(clock.now(), service, replica):
                    self._pending = event
                    await publish_event(bus, event)
                    self._settle(event)
            except BusError:
                await clock.sleep(RETRY_FIRST_SECONDS)
                continue
            self._changed.clear()
            self._flushed.set()
            await race(self._changed.wait(), clock.sleep(max(due - clock.monotonic(), 0.0)))
            if clock.monotonic() >= due:
                due = clock.monotonic() + AGAIN_SECONDS
                await self._publish_again(bus)

    def _next(self, now: datetime, service: str, replica: str) -> ServiceFailure | None:
        """The first beginning or end that is no event yet."""
        for key in [*self._published, *self._now]:
            before, current = self._published.get(key), self._now.get(key)
            shown = current or before
            if shown is None or (before is None) == (current is None):
                continue
            return ServiceFailure(
                id=f"failure-{replica}-{self._number}",
                time=now,
                status="failing" if current else "recovered",
                service=service,
                **{name: getattr(shown, name) for name in CurrentFailure.__struct_fields__},
            )
        return None

    def _settle(self, event: ServiceFailure) -> None:
        """Take note that an event is stored."""
        self._pending = None
        self._number += 1
        key = (event.failure, event.about)
        if event.status == "failing":
            self._published[key] = event
        else:
            del self._published[key]

    async def flushed(self) -> None:
        """Wait until every beginning and every end is an event."""
        await self._flushed.wait()

    async def _publish_again(self, bus: Bus) -> None:
        for event in list(self._published.values()):
            try:
                await publish_event(bus, event)
            except BusError as error:
                log.info("what fails is not published again: %s", error)
                return

    def endpoint(self) -> Endpoint:
        """Answer what fails now."""

        async def answer(_: bytes, __: Headers) -> bytes:
            return msgspec.json.encode(self.current)

        return answer


def unreadable(error: UnreadableRecord) -> CurrentFailure:
    """A record that cannot be read, with the commands that show and remove it."""
    bucket, key = error.bucket, error.key
    return CurrentFailure(
        failure="record-unreadable",
        about=f"{bucket} {key}",
        reason=f"the record cannot be read: {error.reason}",
        remedy=(
            f"look at it with `nats kv get {bucket} {key}`, restore it from a backup or remove it "
            f"with `nats kv del {bucket} {key}`; what needs it waits until then"
        ),
    )


def unwritable(refused: tuple[str, str]) -> CurrentFailure:
    """A stream, and why the server stores nothing in it."""
    stream, reason = refused
    cause = refusal_cause(reason)
    return CurrentFailure(
        failure="store-unwritable",
        about=f"stream {stream}",
        reason=f"nats-server stores nothing in {stream}: {reason}",
        remedy=REMEDIES[cause],
        store_cause=cause,
    )


def flooded(durable: str, senders: Iterable[str], equal: int, most: int) -> CurrentFailure:
    """Senders whose messages are withheld from a durable's consumer, those with most first."""
    first, *others = senders
    named = ", ".join([first, *others[: FLOODERS_NAMED_MAX - 1]])
    more = max(len(others) + 1 - FLOODERS_NAMED_MAX, 0)
    node = first.rpartition(".")[2]
    return CurrentFailure(
        failure="message-flood",
        about=durable,
        reason=(
            f"more than {equal} equal messages, or {most} in all, come within a minute from "
            f"{named}{f' and {more} others' if more else ''}; what is beyond is counted, and "
            "evaluated only where it is more serious"
        ),
        remedy=(
            f"look at what is sent with `navarch events --node {node} --since 10m`; where the "
            f"agent is at fault, stop it, or replace the node with `navarch replace {node}`"
        ),
    )
