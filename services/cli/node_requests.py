"""Sends a request about each of some nodes, prints the answers, and waits for their sagas."""

import asyncio
import sys
from collections.abc import Callable, Sequence

import msgspec

from schemas.messages import encode
from schemas.pool_events import PoolEvent
from services.cli import console
from services.cli.change_waits import saga_end, waiting
from services.cli.console import Format
from services.cli.fleet_access import FleetAccess
from services.cli.node_names import find_nodes
from services.fleet_client.fleet_client import NodeRequests, require_accepted
from services.operator_text.safe_text import escape
from services.primitives.errors import AnswerError, NavarchError


async def request_nodes(
    fleet: FleetAccess,
    verb: str,
    nodes: Sequence[str],
    make: Callable[[str], NodeRequests],
    output: Format,
    *,
    wait: bool = False,
    wait_timeout: str = "",
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
    async with waiting(wait_timeout, sagas[0] if sagas else ""):
        ends = await asyncio.gather(*(saga_end(fleet, saga, output) for saga in sagas))
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
