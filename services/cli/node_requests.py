"""Sends a request about each of some nodes, prints the answers, and waits for their sagas."""

import asyncio
import sys
from collections.abc import Callable, Sequence

import msgspec

from schemas.messages import encode
from schemas.pool_events import PoolEvent
from schemas.saga_log_entries import SagaDone
from schemas.stored_messages import decode_stored
from services.cli import console
from services.cli.console import Format
from services.cli.node_names import find_nodes
from services.fleet_client.fleet_client import FleetClient, NodeRequests, require_accepted
from services.operator_text.safe_text import escape, escape_line
from services.primitives.errors import AnswerError, NavarchError


async def request_nodes(
    fleet: FleetClient,
    verb: str,
    nodes: Sequence[str],
    make: Callable[[str], NodeRequests],
    output: Format,
    *,
    wait: bool = False,
) -> None:
    """Send a request about each node to its pool; `wait`: until the sagas have ended.

    Nothing is sent unless every node is found. A refusal keeps no other request back.
    """
    views = await find_nodes(fleet, nodes)
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
    ends = await asyncio.gather(*(_end(fleet, saga, output) for saga in sagas))
    failed = [*map(str, refusals), *filter(None, ends)]
    for text in failed[:-1]:
        sys.stderr.write(f"navarch: {escape(text)}\n")
    if failed:
        raise NavarchError(failed[-1])


def _write(answers: Sequence[PoolEvent], output: Format, *, several: bool) -> None:
    if several and output.is_data:
        console.write_data(output, [msgspec.Raw(encode(each)) for each in answers])
        return
    for each in answers:
        console.write_message(each, output)


async def _end(fleet: FleetClient, saga: str, output: Format) -> str:
    """Print a saga's steps; why it failed, or nothing."""
    stored = await console.write_stream(fleet.follow_saga(saga), output)
    last = decode_stored(stored) if stored else None
    if isinstance(last, SagaDone):
        return ""
    return f"{saga} ended without success: {escape_line(getattr(last, 'reason', ''))}"
