"""`get`, `events`, `timeline`, `why`: what one thing is, and what happened."""

import sys
from typing import Annotated

import typer

from services.cli import console
from services.cli.command_options import Node, Output, Pool, Since, start_time
from services.cli.console import Format
from services.cli.fleet_access import FleetAccess
from services.cli.fleet_connection import everyday_command
from services.cli.live_names import complete_any, complete_node
from services.cli.node_names import find_node, full_name
from services.cli.text import tables
from services.fleet_client.why_text import why_page
from services.primitives.errors import NavarchError


@everyday_command
async def get(fleet: FleetAccess, node: Node, output: Output = Format.TABLE) -> None:
    """Show one node with its GPUs and its latest faults."""
    view, data = await find_node(fleet, node)
    if output.is_data:
        console.write_data(output, data)
    else:
        console.write(tables.node_page(view, colour=console.colour()))


@everyday_command
async def events(
    fleet: FleetAccess,
    pool: Pool = "",
    node: Annotated[
        str, typer.Option("--node", help="Only this node.", autocompletion=complete_node)
    ] = "",
    since: Since = "",
    count: Annotated[
        int, typer.Option("--count", min=0, help="Stop after this many events; 0: never.")
    ] = 0,
    output: Output = Format.TABLE,
) -> None:
    """Print events as they happen, one per line."""
    start = start_time(since)
    await fleet.check_pool(pool)
    if not since and sys.stderr.isatty():
        sys.stderr.write("Waiting for events; press Ctrl-C to stop.\n")
    await console.write_stream(
        fleet.follow_events(pool=pool, node=node, since=start), output, count=count
    )


@everyday_command
async def timeline(fleet: FleetAccess, node: Node, output: Output = Format.TABLE) -> None:
    """Show everything that happened to a node, with milliseconds."""
    rows = await fleet.timeline(node)
    if not rows:
        rows = await fleet.timeline(await full_name(fleet, node, terminated=True))
    if output.is_data:
        console.write_data(output, rows)
    elif rows:
        console.write(tables.timeline(rows, colour=console.colour()))
    if not rows:
        raise NavarchError(f"no events about a node {node!r}: `navarch list --all` lists the nodes")


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
    output: Output = Format.TABLE,
) -> None:
    """Explain the state of a node, pool or saga.

    What was observed, decided, tried and refused, and what it waits for.
    """
    answer = await fleet.why(name)
    if output.is_data:
        console.write_data(output, answer)
    else:
        console.write(why_page(answer))
