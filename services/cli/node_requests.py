"""Sends a request about each of several nodes, prints the answers, and waits for the end."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

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
) -> None:
    """Send a request about each node to its pool. Nothing is sent unless every node is found."""
    await request_each(fleet, verb, await find_nodes(fleet, nodes), make, output)


async def request_each(
    fleet: FleetAccess,
    verb: str,
    views: Sequence[NodeView],
    make: Callable[[str], NodeRequests],
    output: console.Format,
    *,
    wait: bool = False,
    wait_timeout: str = "",
    batch: str = "",
    at_most: int = 0,
) -> None:
    """Send a request about each node in turn; `wait`: until the sagas have ended.

    A refusal keeps no other request back. `batch`: begins the IDs of all of them. `at_most`: only
    until so many were accepted.
    """
    if verb == "uncordon":
        for text in (text for view in views for text in still_held(view)):
            console.note(text)
    asked = Asked([], [])
    try:
        await _ask(fleet, verb, views, make, output, asked, batch, at_most)
    finally:
        # What was accepted is said, also where the bus is lost before the rest is sent.
        if output.is_data:
            _write(asked.answers, output, several=_is_several(views, batch))
    refused = list(map(str, asked.refusals))
    if batch:
        left = len(views) - len(asked.answers) - len(refused)
        console.note(f"{len(asked.answers)} accepted, {len(refused)} refused, {left} not asked for")
        refused = [f"{len(refused)} of {len(views)} were refused"] if refused else []
    sagas = [saga for each in asked.answers if (saga := getattr(each, "saga", ""))] if wait else []
    async with waiting(wait_timeout, sagas[0] if sagas else ""):
        ends = await asyncio.gather(*(saga_end(fleet, saga, output) for saga in sagas))
    failed = [*refused, *filter(None, ends)]
    for text in failed[:-1]:
        console.note(text)
    if failed:
        raise NavarchError(failed[-1])


class Asked(NamedTuple):
    """Holds what was answered so far."""

    answers: list[PoolEvent]
    refusals: list[AnswerError]


def _is_several(views: Sequence[NodeView], batch: str) -> bool:
    return len(views) > 1 or bool(batch)


async def _ask(
    fleet: FleetAccess,
    verb: str,
    views: Sequence[NodeView],
    make: Callable[[str], NodeRequests],
    output: console.Format,
    asked: Asked,
    batch: str,
    at_most: int,
) -> None:
    for number, view in enumerate(views):
        if at_most and len(asked.answers) == at_most:
            return
        own = f"{batch}-{number}" if batch else ""
        try:
            request = replace(make(view.id), request=own)
            answer = require_accepted(await fleet.request(view.pool, verb, request))
        except AnswerError as error:
            if not _is_several(views, batch):
                raise
            asked.refusals.append(AnswerError(f"{view.id}: {error}"))
            if batch:
                console.note(str(asked.refusals[-1]))
            continue
        asked.answers.append(answer)
        if not output.is_data:
            console.write_message(answer, output)


def still_held(node: NodeView) -> list[str]:
    """Return what an uncordon does not change: it is judged again at once."""
    return [
        f"{node.id}: {condition_line(each)}; it is judged again at once"
        for each in node.conditions
        if not each.unknown
    ]


def _write(answers: Sequence[PoolEvent], output: console.Format, *, several: bool) -> None:
    if several:
        console.write_data(output, [msgspec.Raw(encode(each)) for each in answers])
    elif answers:
        console.write_data(output, encode(answers[0]))
