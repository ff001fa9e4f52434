"""`get`, `events`, `timeline`, `why`, `audit`: what one thing is, and what happened."""

import sys
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from schemas.stored_messages import decode_stored
from services.cli import console
from services.cli.command_options import (
    Follow,
    ListOutput,
    Node,
    NodeOption,
    Output,
    Pool,
    Since,
    start_time,
)
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.fleet_names import GONE, explain, find_node, named, node_names
from services.cli.live_names import complete_any
from services.cli.text import tables
from services.fleet_client.node_timeline import TimelineRow, audit_rows
from services.fleet_client.why_text import why_page
from services.operator_text.quantities import local_time
from services.primitives.errors import NavarchError

EVENTS_SINCE: Final = "15m"
HEADERS: Final = ("time", "by", "from", "change", "about", "outcome", "saga", "reason")


@everyday_command
async def audit(
    fleet: FleetAccess,
    pool: Pool = "",
    by: Annotated[str, typer.Option("--by", help="Only what this user changed.")] = "",
    since: Since = "24h",
    output: ListOutput = console.LISTING,
) -> None:
    """Show who requested which change, from where, and its outcome.

    Requests by command, HTTP and bus; changes that Navarch decides by itself are events.
    """
    stored = await fleet.audited_events(start_time(since))
    rows = audit_rows(map(decode_stored, stored), pool=pool, by=by)
    if output.is_data:
        console.write_data(output, rows)
        return
    cells = [
        (
            local_time(each.time),
            each.by or "-",
            each.where,
            each.change,
            each.about or "-",
            each.outcome,
            each.saga or "-",
            each.reason or "-",
        )
        for each in rows
    ]
    console.write_table(HEADERS, cells, f"Nothing was requested since {since}.", output)


@everyday_command
async def get(fleet: FleetAccess, node: Node, output: Output = console.Format.TABLE) -> None:
    """Show one node with its GPUs and its latest faults."""
    view, data = await find_node(fleet, node)
    if output.is_data:
        console.write_data(output, data)
    else:
        now, room = datetime.now(UTC), console.room(output)
        console.write(tables.node_page(view, now, colour=console.colour(), width=room))


@everyday_command
async def events(
    fleet: FleetAccess,
    pool: Pool = "",
    node: NodeOption = "",
    since: Since = "",
    *,
    follow: Follow = False,
    count: Annotated[
        int,
        typer.Option("--count", min=0, help="Follow until so many were printed; 0: no limit."),
    ] = 0,
    output: Output = console.Format.TABLE,
) -> None:
    """Print the events of the last 15 minutes, one per line.

    With --follow those from now on, with --since also those since then.
    """
    follows = follow or count > 0
    if follows and not since and sys.stderr.isatty():
        sys.stderr.write("Waiting for events; press Ctrl-C to stop.\n")
    start = start_time(since or ("" if follows else EVENTS_SINCE))
    found = fleet.follow_events(pool=pool, node=node, since=start, follow=follows)
    last = await console.write_stream(found, output, count=count)
    if follows:
        return
    if last is None and not output.is_data:
        console.write(f"Nothing happened since {since or EVENTS_SINCE}.")
    if sys.stdout.isatty():
        console.note("these are the events until now; --follow goes on")


@everyday_command
async def timeline(fleet: FleetAccess, node: Node, output: Output = console.Format.TABLE) -> None:
    """Show everything that happened to a node, with milliseconds."""

    async def ask(name: str) -> tuple[TimelineRow, ...]:
        if rows := await fleet.timeline(name):
            return rows
        raise NavarchError(f"no events about a node {name!r}: `navarch list --all` lists the nodes")

    rows = await named(node, ask, lambda: node_names(fleet, terminated=True), GONE)
    if output.is_data:
        console.write_data(output, rows)
    else:
        console.write(tables.timeline(rows, colour=console.colour()))


@everyday_command
async def why(
    fleet: FleetAccess,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NODE|POOL|SAGA",
            help="What to explain.",
            show_default=False,
            autocompletion=complete_any,
        ),
    ],
    output: Output = console.Format.TABLE,
) -> None:
    """Explain the state of a node, pool or saga.

    What was observed, decided, tried and refused, and what it waits for.
    """
    answer = await explain(fleet, name)
    if output.is_data:
        console.write_data(output, answer)
    else:
        console.write(why_page(answer))
