"""GET: what happened, from the oldest or from the newest on, and as it is stored."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Annotated, Final

from litestar import get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter, QueryParameter
from litestar.response import Stream
from msgspec.structs import replace

from schemas.event_texts import Tone
from schemas.topology import EVENTS
from services.bus.port import Stored
from services.fleet_client.stored_events import event_filters, newest_spans, stored_batches
from services.gateway.event_streams import EventFilter, EventStreams, event_filter
from services.gateway.fleet_routes import Caller, Fleet, Labels, Now, labelled_pools
from services.gateway.history_routes import (
    SEQUENCE_MAX,
    SSE_HEADERS,
    After,
    LastEventId,
    Since,
    start_of,
)
from services.gateway.problems import PROBLEMS, ROOT
from services.gateway.views import STREAM_TYPE, EventPage, EventView, event_view

SINCE: Final = "1h"
BATCHES_MAX: Final = 20
"""Read for one page: events of a rare kind may be far apart."""

PoolName = Annotated[str, Parameter(description="Only this pool's.")]
NodeName = Annotated[str, Parameter(description="Only about this node.")]
Kinds = Annotated[
    tuple[str, ...],
    QueryParameter(
        name="type", description="Only these kinds: `verdict`, `cordoned`, `saga-opened`."
    ),
]
Tones = Annotated[
    tuple[Tone, ...],
    QueryParameter(
        name="tone", description="Only what is `bad`, as faults are, `good` or `plain`."
    ),
]
Limit = Annotated[int, Parameter(ge=1, le=1_000)]


@get(f"{ROOT}/events", tags=["events"], responses=PROBLEMS)
async def list_events(
    fleet: Fleet,
    principal: Caller,
    now: Now,
    since: Since = SINCE,
    after: Annotated[
        int, Parameter(ge=0, le=SEQUENCE_MAX, description="`next` of the page before; 0: `since`.")
    ] = 0,
    pool: PoolName = "",
    node: NodeName = "",
    kinds: Kinds = (),
    labels: Labels = (),
    limit: Limit = 100,
) -> EventPage:
    """List stored events, oldest first. They are kept for 30 days."""
    labelled = await labelled_pools(fleet, labels)
    wanted = event_filter(principal, pool, node, kinds, labelled)
    # Read in any case: a mistake in it is one, although `after` comes first.
    begin = start_of(since, now)
    start = after or begin
    newest = await fleet.bus.last_sequence(EVENTS.name)
    batches = stored_batches(fleet.bus, EVENTS.name, event_filters(pool, node), start)
    page = await _page(batches, wanted.matches, after, limit)
    return page if page.more else replace(page, next=max(page.next, newest))


@get(f"{ROOT}/events/newest", tags=["events"], responses=PROBLEMS)
async def list_newest_events(
    fleet: Fleet,
    principal: Caller,
    now: Now,
    since: Since = SINCE,
    until: Annotated[str, Parameter(description="A time; none: until now.")] = "",
    before: Annotated[
        int, Parameter(ge=0, le=SEQUENCE_MAX, description="`next` of the page before; 0: newest.")
    ] = 0,
    pool: PoolName = "",
    node: NodeName = "",
    kinds: Kinds = (),
    tones: Tones = (),
    limit: Limit = 100,
) -> EventPage:
    """List stored events, newest first, between two times.

    A page may have fewer events than `limit`, or none, and `more` all the same: `next` goes on.
    """
    wanted = event_filter(principal, pool, node, kinds)
    spans = newest_spans(
        fleet.bus,
        EVENTS.name,
        event_filters(pool, node, kinds),
        since=start_of(since, now),
        until=start_of(until, now) if until else None,
        before=before,
    )
    found: list[EventView] = []
    number, first = 0, before
    async with aclosing(spans):
        async for events, first, is_last in spans:
            number += 1
            for each in _shown(events, wanted, tones):
                found.append(each)
                if len(found) == limit:
                    return EventPage(items=tuple(found), next=each.sequence, more=True)
            if number == BATCHES_MAX and not is_last:
                return EventPage(items=tuple(found), next=first, more=True)
    return EventPage(items=tuple(found), next=first)


def _shown(
    events: Sequence[Stored], wanted: EventFilter, tones: Sequence[Tone]
) -> Iterator[EventView]:
    for each in events:
        if wanted.matches(each):
            view = event_view(each)
            if not tones or view.tone in tones:
                yield view


@get(f"{ROOT}/events/stream", tags=["events"], responses=PROBLEMS, media_type=STREAM_TYPE)
async def stream_events(
    fleet: Fleet,
    streams: NamedDependency[EventStreams],
    principal: Caller,
    after: After = None,
    last_event_id: LastEventId = None,
    pool: PoolName = "",
    node: NodeName = "",
    kinds: Kinds = (),
    labels: Labels = (),
) -> Stream:
    """Stream events as they are stored, as server-sent events; `Last-Event-ID` resumes it."""
    labelled = await labelled_pools(fleet, labels)
    wanted = event_filter(principal, pool, node, kinds, labelled)
    start = last_event_id if last_event_id is not None else after
    return Stream(streams.open(wanted, start), media_type=STREAM_TYPE, headers=SSE_HEADERS)


EVENT_ROUTES: Final[Sequence[HTTPRouteHandler]] = (list_events, list_newest_events, stream_events)


async def _page(
    batches: AsyncGenerator[list[Stored], None],
    matches: Callable[[Stored], bool],
    after: int,
    limit: int,
) -> EventPage:
    found: list[Stored] = []
    number = 0
    async for batch in batches:
        number += 1
        for each in batch:
            after = each.sequence
            if matches(each):
                found.append(each)
            if len(found) == limit:
                return EventPage(items=tuple(map(event_view, found)), next=after, more=True)
        if number == BATCHES_MAX:
            return EventPage(items=tuple(map(event_view, found)), next=after, more=True)
    return EventPage(items=tuple(map(event_view, found)), next=after)
