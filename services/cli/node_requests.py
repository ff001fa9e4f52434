"""Sends a request about each of several nodes, prints the answers, and waits for the end."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager

import msgspec

from schemas.duration import parse_duration
from schemas.fleet_queries import NodeView
from schemas.messages import encode
from schemas.pool_events import PoolEvent
from schemas.saga_log_entries import SagaDone, SagaUnwound
from schemas.stored_messages import decode_stored
from services.bus.port import Stored
from services.cli import console
from services.cli.fleet_connection import FleetAccess, NodeAccess
from services.cli.fleet_names import find_nodes
from services.cli.text.styles import INDENT
from services.fleet_client.fleet_client import NodeRequests, require_accepted
from services.fleet_client.saga_progress import progress
from services.operator_text.condition_text import condition_line
from services.operator_text.quantities import local_time
from services.operator_text.safe_text import escape_line
from services.primitives.errors import AnswerError, NavarchError
from services.saga.saga_log import fold_stored
from services.saga.saga_state import SagaState


@asynccontextmanager
async def waiting(text: str, what: str) -> AsyncIterator[None]:
    """Bound a wait by `--wait-timeout`; NavarchError when the time is over. Empty: no bound."""
    try:
        async with asyncio.timeout(parse_duration(text) if text else None):
            yield
    except TimeoutError as error:
        raise NavarchError(f"not done within {text}; it goes on: navarch why {what}") from error


async def saga_end(
    fleet: NodeAccess,
    saga: str,
    output: console.Format,
    *,
    after: int | None = None,
    cancelled: bool = False,
) -> str:
    """Print a saga's steps until it has ended; why that is no success, or nothing.

    `cancelled`: success is that it was unwound.
    """
    following = fleet.follow_saga(saga, after=after)
    if not output.is_data:
        following = _with_waits(following)
    stored = await console.write_stream(following, output)
    last = decode_stored(stored) if stored else None
    if isinstance(last, SagaUnwound if cancelled else SagaDone):
        return ""
    if isinstance(last, SagaDone):
        return f"{saga} was done before it could be cancelled"
    return f"{saga} ended without success: {escape_line(getattr(last, 'reason', ''))}"


async def _with_waits(
    batches: AsyncGenerator[Sequence[Stored], None],
) -> AsyncGenerator[Sequence[Stored], None]:
    """Pass the entries of a saga on; after each of a step, print what it waits for."""
    state: SagaState | None = None
    said = ""
    async with aclosing(batches):
        async for batch in batches:
            yield batch
            for stored in batch:
                state = fold_stored(state, stored)
            if state is None or state.ended:
                continue
            where = progress(state)
            if state.step(where.step).status != "started":
                continue  # the pool-manager goes on at once
            until = f", until {local_time(where.deadline)} at the latest" if where.deadline else ""
            if where.waiting_for and said != (said := where.waiting_for):
                console.write(escape_line(f"{INDENT}waits for {where.waiting_for}{until}"))


async def request_nodes(
    fleet: FleetAccess,
    verb: str,
    nodes: Sequence[str],
    make: Callable[[str], NodeRequests],
    output: console.Format,
    *,
    wait: bool = False,
    wait_timeout: str = "",
) -> None:
    """Send a request about each node to its pool; `wait`: until the sagas have ended.

    Nothing is sent unless every node is found. A refusal keeps no other request back.
    """
    views = await find_nodes(fleet, nodes)
    if verb == "uncordon":
        for text in (text for view in views for text in still_held(view)):
            console.note(text)
    answers: list[PoolEvent] = []
    refusals: list[AnswerError] = []
    for view in views:
        try:
            answers.append(require_accepted(await fleet.request(view.pool, verb, make(view.id))))
        except AnswerError as error:
            if len(views) == 1:
                raise
            refusals.append(AnswerError(f"{view.id}: {error}"))
    _write(answers, output, several=len(views) > 1)
    sagas = [saga for each in answers if (saga := getattr(each, "saga", ""))] if wait else []
    async with waiting(wait_timeout, sagas[0] if sagas else ""):
        ends = await asyncio.gather(*(saga_end(fleet, saga, output) for saga in sagas))
    failed = [*map(str, refusals), *filter(None, ends)]
    for text in failed[:-1]:
        console.note(text)
    if failed:
        raise NavarchError(failed[-1])


def still_held(node: NodeView) -> list[str]:
    """Return what an uncordon does not change: it is judged again at once."""
    return [
        f"{node.id}: {condition_line(each)}; it is judged again at once"
        for each in node.conditions
        if not each.unknown
    ]


def _write(answers: Sequence[PoolEvent], output: console.Format, *, several: bool) -> None:
    if several and output.is_data:
        console.write_data(output, [msgspec.Raw(encode(each)) for each in answers])
        return
    for each in answers:
        console.write_message(each, output)
