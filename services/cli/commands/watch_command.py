"""Implements `navarch watch`: follows one node, pool or saga until it settles."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

import typer

from schemas.fleet_queries import Query
from services.cli import console
from services.cli.command_options import duration_option
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.fleet_names import explain
from services.cli.live_names import complete_any
from services.cli.node_requests import waiting
from services.fleet_client.query_answers import decode_pools
from services.fleet_client.saga_progress import Progress
from services.fleet_client.watch_endings import WatchEnding, node_ending, pool_ending, saga_ending
from services.fleet_client.why_answer import WhyAnswer
from services.operator_text.quantities import local_time
from services.operator_text.safe_text import escape_line
from services.primitives.errors import NavarchError

POLL_SECONDS: Final = 1.0
"""Steps of sagas are no events of the fleet, and a person reads no faster."""

Look = Callable[[], Awaitable[WatchEnding | None]]


@everyday_command
async def watch(
    fleet: FleetAccess,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NODE|POOL|SAGA",
            help="What to follow, or the beginning of its name.",
            show_default=False,
            autocompletion=complete_any,
        ),
    ],
    limit: Annotated[
        str, duration_option("--timeout", "Stop after so long, with exit code 1; default: never.")
    ] = "",
) -> None:
    """Follow a node, pool or saga until it settles.

    It prints what is done, and what it waits for. A saga settles with its end; a node when no saga
    is about it and it is healthy or gone; a pool when it has its size. Exit code 1: it ended
    otherwise than it was meant to.
    """
    answer = await explain(fleet, name)
    async with waiting(limit, answer.about):
        ending = await follow(fleet, answer, POLL_SECONDS)
    if not ending.ok:
        raise NavarchError(escape_line(ending.text))
    console.write(escape_line(f"{ending.text}."))


async def follow(fleet: FleetAccess, answer: WhyAnswer, poll_seconds: float) -> WatchEnding:
    """Print what is new about one thing, until it has settled."""
    look = {"node": _node, "pool": _pool, "saga": _saga}[answer.kind](fleet, answer.about)
    shown, said = _Shown(), ""
    shown.write(answer)
    while True:
        try:
            if (ending := await look()) is not None:
                shown.write(await fleet.why(answer.about))
                return ending
            await asyncio.sleep(poll_seconds)
            shown.write(await fleet.why(answer.about))
            said = ""
        except NavarchError as error:
            if said != (said := str(error)):
                console.note(f"{said}; it is asked again")
            await asyncio.sleep(poll_seconds)


class _Shown:
    """Prints each line of an explanation once, and what is waited for when that changes."""

    def __init__(self) -> None:
        self._lines: set[str] = set()
        self._now: tuple[str, ...] = ()

    def write(self, answer: WhyAnswer) -> None:
        """Print what is new."""
        found = [
            escape_line(f"  {local_time(each.at)}  {each.topic:<9}  {each.text}")
            for each in answer.lines
        ]
        new = [each for each in found if each not in self._lines]
        self._lines = set(found)
        if answer.now != self._now:
            self._now = answer.now
            new += [escape_line(f"Now:   {each}") for each in answer.now]
        if new:
            console.write("\n".join(new))


def _saga(fleet: FleetAccess, name: str) -> Look:
    async def look() -> WatchEnding | None:
        found, _ = await fleet.saga(name)
        return saga_ending(found)

    return look


def _node(fleet: FleetAccess, name: str) -> Look:
    last = ""

    async def look() -> WatchEnding | None:
        nonlocal last
        view, _ = await fleet.node(name)
        last = view.saga or last
        saga: Progress | None = (await fleet.saga(last))[0] if last else None
        return node_ending(view, saga)

    return look


def _pool(fleet: FleetAccess, name: str) -> Look:
    async def look() -> WatchEnding | None:
        items, sagas = await asyncio.gather(
            fleet.pages("pools", Query(pool=name)), fleet.open_sagas(name)
        )
        views = decode_pools(items)
        if not views:
            return WatchEnding(text=f"{name} is removed")
        return pool_ending(views[0], sagas)

    return look
