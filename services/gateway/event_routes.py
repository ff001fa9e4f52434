"""GET: what happened, as it is stored."""

from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter, QueryParameter

from schemas import subjects
from schemas.names import TOKEN
from schemas.topology import EVENTS
from services.bus.port import Stored
from services.fleet_client.fleet_client import (
    event_filters,
    is_about,
    stored_batches,
)
from services.fleet_client.since_time import time_since
from services.gateway.access_tokens import Principal
from services.gateway.fleet_routes import ROOT, Caller, Fleet
from services.gateway.problems import PROBLEMS, ProblemError
from services.gateway.views import EventPage, event_view

SINCE: Final = "1h"
BATCHES_MAX: Final = 20
"""Read for one page: events of a rare kind may be far apart."""
SEQUENCE_MAX: Final = 2**62

Now = NamedDependency[datetime]
PoolName = Annotated[str, Parameter(description="Only this pool's.")]
NodeName = Annotated[str, Parameter(description="Only about this node.")]
Kinds = Annotated[
    list[str] | None,
    QueryParameter(
        name="type", description="Only these kinds: `verdict`, `cordoned`, `saga-opened`."
    ),
]


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events a caller asks for, of those that it may see."""

    principal: Principal
    pool: str = ""
    node: str = ""
    kinds: frozenset[str] = frozenset()

    def matches(self, stored: Stored) -> bool:
        """Whether an event is one of those."""
        node = subjects.parse_node(stored.subject)
        pool = node or subjects.parse_pool_event(stored.subject)
        name = pool.pool if pool else ""
        return (
            self.principal.sees(name)
            and (not self.pool or name == self.pool)
            and (not self.kinds or stored.subject.rpartition(".")[2] in self.kinds)
            and (not (self.pool or self.node) or bool(name))
            and (not self.node or (node.node == self.node if node else is_about(stored, self.node)))
        )


def event_filter(
    principal: Principal, pool: str, node: str, kinds: Sequence[str] | None
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
    return EventFilter(principal=principal, pool=pool, node=node, kinds=frozenset(kinds or ()))


@get(f"{ROOT}/events", tags=["events"], responses=PROBLEMS)
async def list_events(
    fleet: Fleet,
    principal: Caller,
    now: Now,
    since: Annotated[str, Parameter(description="`10m`, `2h`, or a time.")] = SINCE,
    after: Annotated[
        int, Parameter(ge=0, le=SEQUENCE_MAX, description="`next` of the page before; 0: `since`.")
    ] = 0,
    pool: PoolName = "",
    node: NodeName = "",
    kinds: Kinds = None,
    limit: Annotated[int, Parameter(ge=1, le=1_000)] = 100,
) -> EventPage:
    """List stored events, oldest first. They are kept for 30 days."""
    wanted = event_filter(principal, pool, node, kinds)
    start = after or _start(since, now)
    batches = stored_batches(fleet.bus, EVENTS.name, event_filters(pool, node), start)
    return await _page(batches, wanted.matches, after, limit)


EVENT_ROUTES: Final[Sequence[HTTPRouteHandler]] = (list_events,)


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


def _start(since: str, now: datetime) -> datetime:
    try:
        found = time_since(since, now)
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"since: {error}", "write ?since=2h") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)
