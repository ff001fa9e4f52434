"""GET: what happened, as it is stored."""

from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Final

from litestar import get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import HeaderParameter, Parameter, QueryParameter
from litestar.response import Stream
from msgspec.structs import replace

from schemas.duration import TEXT_PATTERN
from schemas.topology import EVENTS
from services.bus.port import Stored
from services.fleet_client.fleet_client import (
    event_filters,
    stored_batches,
)
from services.fleet_client.since_time import time_since
from services.gateway.event_streams import EventStreams, event_filter
from services.gateway.fleet_routes import Caller, Fleet, Labels, Now, labelled_pools
from services.gateway.problems import PROBLEMS, ROOT, ProblemError
from services.gateway.views import STREAM_TYPE, EventPage, event_view

SINCE: Final = "1h"
BATCHES_MAX: Final = 20
"""Read for one page: events of a rare kind may be far apart."""
SEQUENCE_MAX: Final = 2**53 - 1
"""Which JSON's numbers hold exactly in every language."""

Since = Annotated[
    str,
    Parameter(
        description="`10m`, `2h`, or a time.",
        schema_extra={"anyOf": [{"pattern": TEXT_PATTERN}, {"format": "date-time"}]},
    ),
]
PoolName = Annotated[str, Parameter(description="Only this pool's.")]
NodeName = Annotated[str, Parameter(description="Only about this node.")]
Kinds = Annotated[
    tuple[str, ...],
    QueryParameter(
        name="type", description="Only these kinds: `verdict`, `cordoned`, `saga-opened`."
    ),
]


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
    limit: Annotated[int, Parameter(ge=1, le=1_000)] = 100,
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


After = Annotated[
    int | None, Parameter(ge=0, le=SEQUENCE_MAX, description="`sequence` of the last one seen.")
]
LastEventId = Annotated[int | None, HeaderParameter(name="Last-Event-ID", ge=0, le=SEQUENCE_MAX)]
SSE_HEADERS: Final = {"X-Accel-Buffering": "no"}
"""nginx would collect events before it sends them."""


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


EVENT_ROUTES: Final[Sequence[HTTPRouteHandler]] = (list_events, stream_events)


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


def start_of(since: str, now: datetime) -> datetime:
    """The time that a caller names; a problem where it is none."""
    try:
        found = time_since(since, now)
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"since: {error}", "write ?since=2h") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)
