"""Implements `navarch watch`: follows one node, pool or saga until it settles."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Final, NamedTuple

import typer

from schemas.fleet_queries import Query
from services.cli import console
from services.cli.change_signal import Source, change_signal
from services.cli.command_options import duration_option
from services.cli.commands.view_commands import INTERVAL_SECONDS_MIN, RETRY_SECONDS
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

AGAIN_SECONDS: Final = 15.0
"""What is waited for may change without an event: a time that passes, or a lost one."""

Look = Callable[[], Awaitable[WatchEnding | None]]
"""Looks whether the thing has settled."""


class Subject(NamedTuple):
    """Names what is followed: how to look at it, and the streams that say when."""

    look: Look
    sources: Callable[[], Mapping[str, Source]]
    """By name; more come as sagas begin."""


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
        ending = await follow(fleet, answer)
    if not ending.ok:
        raise NavarchError(escape_line(ending.text))
    console.write(escape_line(f"{ending.text}."))


async def follow(
    fleet: FleetAccess,
    answer: WhyAnswer,
    *,
    interval_seconds: float = INTERVAL_SECONDS_MIN,
    again_seconds: float = AGAIN_SECONDS,
) -> WatchEnding:
    """Print what is new about one thing as it happens, until it has settled."""
    make = {"node": _node, "pool": _pool, "saga": _saga}[answer.kind]
    # Before the first look, so that nothing falls between it and what is followed.
    subject = make(fleet, answer.about, await fleet.last_event())
    shown, said = _Shown(), ""
    shown.write(answer)
    async with change_signal(interval_seconds) as signal:
        while True:
            try:
                ending = await subject.look()
                for name, source in subject.sources().items():
                    signal.listen(name, source)
                shown.write(await fleet.why(answer.about))
                if ending is not None:
                    return ending
                said = ""
            except NavarchError as error:
                if said != (said := str(error)):
                    console.note(f"{said}; it is asked again")
            await signal.wait(RETRY_SECONDS if said else again_seconds)


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


def _saga(fleet: FleetAccess, name: str, after: int) -> Subject:
    place = ("", "")

    async def look() -> WatchEnding | None:
        nonlocal place
        found, _ = await fleet.saga(name)
        place = found.pool, found.node or found.new_node
        return saga_ending(found)

    return Subject(look, lambda: {**_entries(fleet, name), **_events(fleet, *place, after)})


def _node(fleet: FleetAccess, name: str, after: int) -> Subject:
    last, pool = "", ""

    async def look() -> WatchEnding | None:
        nonlocal last, pool
        view, _ = await fleet.node(name)
        last, pool = view.saga or last, view.pool
        saga: Progress | None = (await fleet.saga(last))[0] if last else None
        return node_ending(view, saga)

    def sources() -> Mapping[str, Source]:
        entries = _entries(fleet, last) if last else {}
        return {**entries, **_events(fleet, pool, name, after)}

    return Subject(look, sources)


def _pool(fleet: FleetAccess, name: str, after: int) -> Subject:
    async def look() -> WatchEnding | None:
        items, sagas = await asyncio.gather(
            fleet.pages("pools", Query(pool=name)), fleet.open_sagas(name)
        )
        views = decode_pools(items)
        if not views:
            return WatchEnding(text=f"{name} is removed")
        return pool_ending(views[0], sagas)

    def sources() -> Mapping[str, Source]:
        changes: Mapping[str, Source] = {"pool": lambda: fleet.follow_pool(name)}
        return {**changes, **_events(fleet, name, "", after)}

    return Subject(look, sources)


def _entries(fleet: FleetAccess, saga: str) -> Mapping[str, Source]:
    """Follow a saga's log: its first entries come again, so that none is missed."""
    return {f"saga {saga}": lambda: fleet.follow_saga(saga)}


def _events(fleet: FleetAccess, pool: str, node: str, after: int) -> Mapping[str, Source]:
    return {"events": lambda: fleet.follow_events(pool=pool, node=node, since=after)}
