"""GET: what a saga and a pool do, as it happens, for those who wait for a change."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from litestar import get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Stream
from litestar.response.sse import ServerSentEventMessage

from schemas.messages import encode
from schemas.saga_log_entries import WHOLE
from schemas.topology import SAGAS
from services.bus.port import Stored
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.pool_watch import pool_changes
from services.gateway.event_routes import SSE_HEADERS, After, LastEventId
from services.gateway.event_streams import RESET, RESET_DATA, EventStreams
from services.gateway.fleet_routes import Caller, Fleet, visible_pool, visible_saga
from services.gateway.problems import PROBLEMS, ROOT
from services.gateway.views import STREAM_TYPE, pool_change_view, saga_entry_view

OVER: Final = tuple(f".{WHOLE}.{status}" for status in ("done", "unwound"))
"""How the subjects of the entries end that nothing follows."""
Streams = NamedDependency[EventStreams]


@get(
    f"{ROOT}/sagas/{{saga:str}}/stream",
    tags=["sagas"],
    responses=PROBLEMS,
    media_type=STREAM_TYPE,
)
async def stream_saga(
    fleet: Fleet,
    streams: Streams,
    principal: Caller,
    saga: FromPath[str],
    after: After = None,
    last_event_id: LastEventId = None,
) -> Stream:
    """Stream a saga's entries until it has ended, as server-sent events; it can be resumed."""
    found = await visible_saga(fleet, principal, saga)
    start = (last_event_id if last_event_id is not None else after) or 0
    last = found.stored[-1]
    is_over = last.subject.endswith(OVER) and last.sequence <= start
    messages = _saga_messages(fleet, found.saga.saga, start, is_over=is_over)
    return Stream(streams.carry(principal, messages), media_type=STREAM_TYPE, headers=SSE_HEADERS)


@get(
    f"{ROOT}/pools/{{name:str}}/stream",
    tags=["pools"],
    responses=PROBLEMS,
    media_type=STREAM_TYPE,
)
async def stream_pool(
    fleet: Fleet, streams: Streams, principal: Caller, name: FromPath[str]
) -> Stream:
    """Stream a pool's nodes and the logs of its sagas until it is removed, as server-sent events.

    Each connection begins with the whole.
    """
    pool = await visible_pool(fleet, principal, name)
    messages = _pool_messages(fleet, pool.name)
    return Stream(streams.carry(principal, messages), media_type=STREAM_TYPE, headers=SSE_HEADERS)


STREAM_ROUTES: Final[Sequence[HTTPRouteHandler]] = (stream_saga, stream_pool)


async def _saga_messages(
    fleet: FleetClient, saga: str, after: int, *, is_over: bool
) -> AsyncGenerator[bytes, None]:
    if after > await fleet.bus.last_sequence(SAGAS.name):
        yield ServerSentEventMessage(RESET_DATA, event=RESET).encode()
        after = 0
    elif is_over:
        return
    async with aclosing(fleet.follow_saga(saga, after=after)) as batches:
        async for batch in batches:
            for stored in batch:
                yield _entry_message(stored)


def _entry_message(stored: Stored) -> bytes:
    kind = stored.subject.rpartition(".")[2]
    data = encode(saga_entry_view(stored))
    return ServerSentEventMessage(data=data, event=kind, id=stored.sequence).encode()


async def _pool_messages(fleet: FleetClient, pool: str) -> AsyncGenerator[bytes, None]:
    async with aclosing(pool_changes(fleet.bus, pool)) as changes:
        async for change in changes:
            data = encode(pool_change_view(change))
            yield ServerSentEventMessage(data=data, event="change").encode()
