"""Streams of events for callers: which events, how many streams, and signs of life between."""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Final

import msgspec
from litestar.response.sse import ServerSentEventMessage
from prometheus_client import CollectorRegistry, Gauge

from schemas import subjects
from schemas.metric_catalogue import HTTP_STREAMS
from schemas.names import TOKEN
from services.bus.port import Stored
from services.fleet_client.fleet_client import is_about
from services.gateway.access_tokens import Principal
from services.gateway.event_relay import EventRelay, StreamReset, with_pauses
from services.gateway.problems import ROOT, ProblemError

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


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events a caller asks for, of those that it may see."""

    principal: Principal
    pool: str = ""
    node: str = ""
    kinds: frozenset[str] = frozenset()
    pools: frozenset[str] | None = None
    """Those with the labels that are asked for; None: any."""

    def matches(self, stored: Stored) -> bool:
        """Whether an event is one of those."""
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
        self._admit(wanted.principal.name)
        return self._messages(wanted, after)

    def carry(
        self, principal: Principal, source: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """A stream of other messages, within the same limits, to their end."""
        self._admit(principal.name)
        return self._carried(principal, source)

    def _admit(self, name: str) -> None:
        own_max = max(1, self._max // SHARE_MAX)
        if self._open.total() >= self._max or self._open[name] >= own_max:
            raise ProblemError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{self._open[name]} streams of {name} are open, and {self._open.total()} in all",
                f"close some: {own_max} may be open, and {self._max} in all (gateway.streams_max)",
            )

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        self._open[name] += 1
        self._gauge.set(self._open.total())
        try:
            yield
        finally:
            self._open[name] -= 1
            self._gauge.set(self._open.total())

    def _is_over(self, principal: Principal) -> bool:
        return principal.expires is not None and principal.expires <= self._now()

    async def _carried(
        self, principal: Principal, source: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        with self._counted(principal.name):
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
        self, wanted: EventFilter, after: int | None
    ) -> AsyncGenerator[bytes, None]:
        principal = wanted.principal
        with self._counted(principal.name):
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
