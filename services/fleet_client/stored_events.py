"""Reads stored messages under several subjects, from the oldest or from the newest on."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Final, NamedTuple

from schemas import subjects
from schemas.names import TOKEN
from schemas.stored_messages import decode_stored
from services.bus.port import Bus, Stored
from services.bus.protocol.ordered_pages import read_page
from services.fleet_client.node_timeline import mentions

SPAN_MIN: Final = 1_000
"""Sequences of the first span: about as many events are read at once."""
SPAN_MAX: Final = 32_000
"""Sequences of one span where few of them are under the filters."""
SPARSE: Final = 4
"""A span with fewer events than one in so many is followed by one of twice its size."""
KINDS_MAX: Final = 8
"""Kinds of events that are asked for by subject; of more, all are read."""


class EventSpan(NamedTuple):
    """Holds what is stored between two sequences."""

    events: list[Stored]
    """Newest first."""
    first: int
    """Sequence of the oldest message that was looked at: what follows is before it."""
    is_last: bool
    """No older one is asked for."""


def event_filters(pool: str, node: str, kinds: Sequence[str] = ()) -> list[str]:
    """Return the subjects under which events of one pool, one node, or all are stored.

    `kinds`: only those of some kinds. A kind that is no token is in no subject.
    """
    nodes, pools = subjects.NODE_EVENTS, subjects.POOL_EVENTS
    others = [] if pool or node else [subjects.FLEET_EVENTS]
    if pool:
        nodes, pools = subjects.node_events_in(pool), subjects.pool_events_of(pool)
    if node:
        nodes = subjects.node_events_of(pool, node) if pool else subjects.node_events_named(node)
    found = [nodes, pools, *others]
    if 0 < len(kinds) <= KINDS_MAX and all(map(TOKEN.match, kinds)):
        return [subjects.of_kind(each, kind) for each in found for kind in kinds]
    return found


def is_about(stored: Stored, node: str) -> bool:
    """Return whether an event of `event_filters` is about the node; empty: any is."""
    return not node or mentions(decode_stored(stored), node)


async def stored_batches(
    bus: Bus, stream: str, filters: Sequence[str], after: int | datetime
) -> AsyncGenerator[list[Stored], None]:
    """The messages stored under any of the filters, in order, after a sequence or from a time."""
    more = True
    while more:
        found, more = await read_page(bus, stream, filters, after)
        if found:
            after = found[-1].sequence
            yield found


async def newest_spans(
    bus: Bus,
    stream: str,
    filters: Sequence[str],
    *,
    since: datetime,
    until: datetime | None = None,
    before: int = 0,
) -> AsyncGenerator[EventSpan, None]:
    """Yield what is stored under any of the filters between two times, the newest span first.

    `before`: only what has a lower sequence; 0: everything until now.
    """
    ends = [bus.last_sequence(stream, each) for each in filters]
    start, stop, *newest = await asyncio.gather(
        _first_from(bus, stream, filters, since),
        _first_from(bus, stream, filters, until) if until is not None else _none(),
        *ends,
    )
    high = min(each for each in (before, stop, max(newest) + 1) if each)
    width = SPAN_MIN
    while start and start < high:
        low = max(high - width, start)
        found = await _between(bus, stream, filters, low, high)
        yield EventSpan(found[::-1], low, is_last=low == start)
        if len(found) < width // SPARSE:
            width = min(2 * width, SPAN_MAX)
        high = low


async def _between(
    bus: Bus, stream: str, filters: Sequence[str], low: int, high: int
) -> list[Stored]:
    """Return the events from one sequence on, and before another."""
    found: list[Stored] = []
    async with aclosing(stored_batches(bus, stream, filters, low - 1)) as batches:
        async for batch in batches:
            found += (each for each in batch if each.sequence < high)
            if batch[-1].sequence >= high - 1:
                break
    return found


async def _first_from(bus: Bus, stream: str, filters: Sequence[str], at: datetime) -> int:
    """Return the sequence of the first event from a time on; 0: there is none."""
    pages = await asyncio.gather(
        *(bus.read_batch(stream, each, after=at, count=1) for each in filters)
    )
    return min((page[0].sequence for page in pages if page), default=0)


async def _none() -> int:
    return 0
