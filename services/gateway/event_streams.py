"""Streams of events for callers, from the newest events of the fleet, which are in memory."""

import asyncio
import weakref
from asyncio import FIRST_COMPLETED
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from functools import cached_property
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec
from litestar.response.sse import ServerSentEventMessage
from prometheus_client import CollectorRegistry, Gauge

from schemas import subjects
from schemas.messages import encode
from schemas.metric_catalogue import HTTP_STREAMS
from schemas.names import TOKEN
from schemas.topology import EVENTS
from services.bus.port import Bus, Stored
from services.fleet_client.fleet_client import as_generator
from services.fleet_client.stored_events import is_about
from services.gateway.access_tokens import Principal
from services.gateway.problems import ROOT, ProblemError
from services.gateway.views import event_view
from services.primitives.clock import Clock
from services.primitives.errors import BusError

T = TypeVar("T")

KEPT_MAX: Final = 4_096
"""Events in memory; few have more than a kilobyte."""
KEPT_BYTES_MAX: Final = 16 * 1_048_576
"""Bytes of them as they are stored: an agent may make each event as long as its messages may be."""
BATCH_MAX: Final = 64
"""Events in one write: a stream that catches up does not make the others wait."""
BATCH_BYTES_MAX: Final = 131_072
"""Bytes of them, beyond the first event: a caller that reads nothing holds one write in memory."""
RETRY_SECONDS: Final = 0.5
FILTERS: Final = (subjects.NODE_EVENTS, subjects.POOL_EVENTS, subjects.FLEET_EVENTS)
HEARTBEAT_SECONDS: Final = 15.0
"""Between two signs of life: proxies end a connection that is silent for a minute."""
RETRY_MS: Final = 1_000
SHARE_MAX: Final = 4
"""One token may have one in so many of the streams."""
RESET: Final = "reset"
END: Final = "end"
"""Event of a stream that is complete, unlike one whose connection is lost."""
RESET_DATA: Final = (
    '{"detail": "the events were set back, as a restored store is: read the fleet again"}'
)


class RelayedEvent:
    """A stored event, and its form in a stream, which is made once for all streams."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored

    @cached_property
    def encoded(self) -> bytes:
        """Return the item as a server-sent event."""
        view = event_view(self.stored)
        return ServerSentEventMessage(
            data=encode(view), event=view.kind, id=self.stored.sequence
        ).encode()


class StreamReset(msgspec.Struct, frozen=True):
    """The events were set back (a restored store): what follows may repeat sequences."""


class EventRelay:
    """Follows the events, and passes them on in order.

    One follower reads the bus for all. A stream is a position: what it lacks and memory has no
    longer is read from the bus. So a slow caller costs nothing but its connection, and none loses
    an event.
    """

    def __init__(self, bus: Bus, clock: Clock, kept_max: int = KEPT_MAX) -> None:
        """Keep at most `kept_max` events."""
        self._bus = bus
        self._clock = clock
        self._kept: list[RelayedEvent] = []
        self._kept_max = kept_max
        self.kept_bytes = 0
        self._base = 0
        """Everything stored after this sequence, up to the newest, is in memory."""
        self._newest = 0
        self._resets = 0
        self._news = asyncio.Event()
        self._started = asyncio.Event()
        self.closed = asyncio.Event()
        """Set: every stream ends."""

    async def run(self) -> None:
        """Follow the events until cancelled."""
        while not self._started.is_set():
            try:
                self._base = self._newest = await self._bus.last_sequence(EVENTS.name)
            except BusError:
                await self._clock.sleep(RETRY_SECONDS)
            else:
                self._started.set()
        following = self._bus.follow(EVENTS.name, FILTERS, "new", after=self._base)
        async for stored in following:
            self._keep(stored)

    def close(self) -> None:
        """End every stream, so that the callers go elsewhere."""
        self.closed.set()
        self._wake()

    def _keep(self, stored: Stored) -> None:
        if stored.sequence <= self._newest:
            self._kept.clear()
            self.kept_bytes = 0
            self._base = stored.sequence - 1
            self._resets += 1
        self._kept.append(RelayedEvent(stored))
        self.kept_bytes += len(stored.data)
        while len(self._kept) > self._kept_max or self.kept_bytes > KEPT_BYTES_MAX:
            dropped = self._kept.pop(0).stored
            self._base, self.kept_bytes = dropped.sequence, self.kept_bytes - len(dropped.data)
        self._newest = stored.sequence
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def newest(self) -> int:
        """Return the sequence of the newest event."""
        await self._started.wait()
        return self._newest

    async def stream(
        self, after: int | None, pause_seconds: float
    ) -> AsyncGenerator[Sequence[RelayedEvent] | StreamReset, None]:
        """Every event stored after a sequence (None: from now on), in order, as it is stored.

        They come in batches, which are empty where none was stored for so long. A batch is all
        that a stream waits for, without a task of its own: 1,000 streams wait for each event.
        """
        await self._started.wait()
        position, resets = self._newest if after is None else after, self._resets
        if position > self._newest and position > await self._bus.last_sequence(EVENTS.name):
            yield StreamReset()
            position = self._newest
        while not self.closed.is_set():
            if resets != self._resets:
                yield StreamReset()
                position, resets = self._base, self._resets
            if position < self._base:
                missed = with_pauses(self._from_bus(position), pause_seconds, self.closed)
                async with aclosing(missed):
                    async for event in missed:
                        position = event.stored.sequence if event else position
                        yield (event,) if event else ()
                continue
            news, due = self._news, self._after(position)
            if due:
                position = due[-1].stored.sequence
                yield due
                continue
            try:
                async with asyncio.timeout(pause_seconds):
                    await news.wait()
            except TimeoutError:
                yield ()

    def _after(self, position: int) -> list[RelayedEvent]:
        """What memory has after a position, as far as it is written at once."""
        start = bisect_right(self._kept, position, key=_sequence)
        found, size = list[RelayedEvent](), 0
        for each in self._kept[start : start + BATCH_MAX]:
            size += len(each.stored.data)
            if found and size > BATCH_BYTES_MAX:
                break
            found.append(each)
        return found

    async def _from_bus(self, position: int) -> AsyncGenerator[RelayedEvent, None]:
        """What is stored after a position, until memory has what follows."""
        following = as_generator(self._bus.follow(EVENTS.name, FILTERS, "new", after=position))
        async with aclosing(following):
            async for stored in following:
                yield RelayedEvent(stored)
                if stored.sequence >= self._base:
                    return


def _sequence(event: RelayedEvent) -> int:
    return event.stored.sequence


async def with_pauses(
    source: AsyncGenerator[T, None], seconds: float, closed: asyncio.Event | None = None
) -> AsyncGenerator[T | None, None]:
    """The same items until `closed`, and None whenever none came for so long."""
    waiting: asyncio.Task[T] | None = None
    ending = {asyncio.ensure_future(closed.wait())} if closed is not None else set()
    try:
        while not (closed is not None and closed.is_set()):
            waiting = waiting or asyncio.ensure_future(_next(source))
            await asyncio.wait({waiting, *ending}, timeout=seconds, return_when=FIRST_COMPLETED)
            if not waiting.done():
                yield None
                continue
            try:
                found = waiting.result()
            except StopAsyncIteration:
                return
            finally:
                waiting = None
            yield found
    finally:
        for each in ending:
            each.cancel()
        if waiting is not None:
            waiting.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await waiting
        await source.aclose()


async def _next(source: AsyncGenerator[T, None]) -> T:
    return await anext(source)


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects which events a caller asks for, of those that it may see."""

    principal: Principal
    pool: str = ""
    node: str = ""
    kinds: frozenset[str] = frozenset()
    pools: frozenset[str] | None = None
    """Those with the labels that are asked for; None: any."""

    def matches(self, stored: Stored) -> bool:
        """Return whether the filter selects an event."""
        node = subjects.parse_node(stored.subject)
        pool = node or subjects.parse_pool_event(stored.subject)
        name = pool.pool if pool else ""
        return (
            self.principal.sees(name)
            and (not self.pool or name == self.pool)
            and (self.pools is None or name in self.pools)
            and (not self.kinds or stored.subject.rpartition(".")[2] in self.kinds)
            and (not (self.pool or self.node) or bool(name))
            and (not self.node or (node.node == self.node if node else is_about(stored, self.node)))
        )


def event_filter(
    principal: Principal,
    pool: str,
    node: str,
    kinds: Sequence[str] | None,
    labelled: frozenset[str] | None = None,
) -> EventFilter:
    """Check what a caller asks for."""
    for name in (pool, node):
        if name and not TOKEN.match(name):
            raise ProblemError(
                HTTPStatus.BAD_REQUEST,
                f"{name!r} is no name of a pool or a node",
                f"GET {ROOT}/pools and {ROOT}/nodes list them",
            )
    if pool and not principal.sees(pool):
        raise ProblemError(
            HTTPStatus.FORBIDDEN,
            f"{principal.name} may not see pool {pool}",
            "use a token of that pool",
        )
    return EventFilter(
        principal=principal, pool=pool, node=node, kinds=frozenset(kinds or ()), pools=labelled
    )


class StreamPlace:
    """Holds the place of an open stream until the stream ends, or is dropped before it began."""

    def __init__(self, release: Callable[[], None]) -> None:
        """`release`: is called once."""
        self._release = weakref.finalize(self, release)

    def __enter__(self) -> None:
        """Begin the stream."""

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._release()


class EventStreams:
    """Opens streams, within limits."""

    def __init__(
        self,
        relay: EventRelay,
        streams_max: int,
        now: Callable[[], datetime],
        registry: CollectorRegistry,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        """Pass on what `relay` brings, to `streams_max` callers at once."""
        self._relay = relay
        self._max = streams_max
        self._now = now
        self._heartbeat_seconds = heartbeat_seconds
        self._open: Counter[str] = Counter()
        self._gauge = Gauge(*HTTP_STREAMS.declared, registry=registry)

    def open(self, wanted: EventFilter, after: int | None) -> AsyncGenerator[bytes, None]:
        """A stream from a position on; ProblemError where there are too many."""
        place = self._admit(wanted.principal.name)
        return self._messages(wanted, after, place)

    def carry(
        self, principal: Principal, source: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """A stream of other messages, within the same limits, to their end."""
        place = self._admit(principal.name)
        return self._carried(principal, source, place)

    def _admit(self, name: str) -> StreamPlace:
        """Count a stream from now on: many may be opened before the first of them begins."""
        own_max = max(1, self._max // SHARE_MAX)
        if self._open.total() >= self._max or self._open[name] >= own_max:
            raise ProblemError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{self._open[name]} streams of {name} are open, and {self._open.total()} in all",
                f"close some: {own_max} may be open, and {self._max} in all (gateway.streams_max)",
            )

        self._count(name, 1)
        return StreamPlace(lambda: self._count(name, -1))

    def _count(self, name: str, change: int) -> None:
        self._open[name] += change
        self._gauge.set(self._open.total())

    def _is_over(self, principal: Principal) -> bool:
        return principal.expires is not None and principal.expires <= self._now()

    async def _carried(
        self, principal: Principal, source: AsyncGenerator[bytes, None], place: StreamPlace
    ) -> AsyncGenerator[bytes, None]:
        with place:
            yield ServerSentEventMessage(None, comment="connected", retry=RETRY_MS).encode()
            messages = with_pauses(source, self._heartbeat_seconds, self._relay.closed)
            async with aclosing(messages):
                async for each in messages:
                    if self._is_over(principal):
                        return
                    yield each or ServerSentEventMessage(None, comment="alive").encode()
            if not self._relay.closed.is_set():
                yield ServerSentEventMessage("{}", event=END).encode()

    async def _messages(
        self, wanted: EventFilter, after: int | None, place: StreamPlace
    ) -> AsyncGenerator[bytes, None]:
        principal = wanted.principal
        with place:
            position = await self._relay.newest() if after is None else after
            # With the position, so that a caller that loses the connection now resumes from here.
            begin = ServerSentEventMessage(None, comment="connected", id=position, retry=RETRY_MS)
            yield begin.encode()
            batches = self._relay.stream(position, self._heartbeat_seconds)
            written_at = self._now()
            async with aclosing(batches):
                async for batch in batches:
                    if self._is_over(principal):
                        return
                    if isinstance(batch, StreamReset):
                        yield ServerSentEventMessage(RESET_DATA, event=RESET).encode()
                        continue
                    position = batch[-1].stored.sequence if batch else position
                    found = b"".join(
                        [each.encoded for each in batch if wanted.matches(each.stored)]
                    )
                    silent = (self._now() - written_at).total_seconds()
                    if batch and not found and silent < self._heartbeat_seconds:
                        continue
                    written_at = self._now()
                    # With the position, so that a caller of rare events resumes near the end.
                    alive = ServerSentEventMessage(None, comment="alive", id=position)
                    yield found or alive.encode()
