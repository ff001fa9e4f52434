"""`navarch pool list|status|history`: pools, one in numbers, and what happened to it."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

from schemas import subjects
from schemas.fleet_queries import Query
from schemas.topology import EVENTS
from services.cli import console
from services.cli.command_options import Output, Since, start_time
from services.cli.console import Format
from services.cli.fleet_connection import fleet_command
from services.cli.live_names import complete_pool
from services.cli.text import tables
from services.fleet_client.fleet_client import FleetClient, decode_nodes, decode_pools
from services.fleet_client.fleet_use import total
from services.fleet_client.node_timeline import timeline_rows
from services.fleet_client.saga_progress import progress
from services.fleet_client.stored_history import open_sagas
from services.fleet_client.use_reader import read_use
from services.gateway.views import pool_status
from services.operator_text.event_text import describe_stored

commands = typer.Typer(
    name="pool",
    help="Show pools, one in numbers, and its history.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

PoolName = Annotated[
    str,
    typer.Argument(
        metavar="POOL", help="The pool.", show_default=False, autocompletion=complete_pool
    ),
]


@commands.command("list")
@fleet_command
async def list_pools(fleet: FleetClient, output: Output = Format.TABLE) -> None:
    """List the pools."""
    items = await fleet.pages("pools", Query())
    if output.is_data:
        console.write_data(output, items)
        return
    views = sorted(decode_pools(items), key=lambda each: each.name)
    console.write_table(tables.POOL_HEADERS, tables.pool_rows(views), "No pool is configured.")


@commands.command("status")
@fleet_command
async def status(fleet: FleetClient, pool: PoolName, output: Output = Format.TABLE) -> None:
    """Show a pool in numbers.

    They are those of the HTTP API, at /api/v1/pools/POOL/status.
    """
    await fleet.check_pool(pool)
    pools, nodes, sagas, (use, _) = await asyncio.gather(
        fleet.pages("pools", Query(pool=pool)),
        fleet.pages("nodes", Query(pool=pool)),
        open_sagas(fleet.bus, pool),
        read_use(fleet.bus, pool, datetime.now(UTC)),
    )
    [view] = decode_pools(pools)
    found = pool_status(
        view, decode_nodes(nodes), map(progress, sagas), total(use.rows()).utilization_percent
    )
    if output.is_data:
        console.write_data(output, found)
        return
    fields = msgspec.structs.asdict(found).items()
    rows = [(name.replace("_", " "), _cell(value)) for name, value in fields]
    console.write(tables.columns(("pool", pool), rows[1:], colour=console.colour()))


@commands.command("history")
@fleet_command
async def history(
    fleet: FleetClient, pool: PoolName, since: Since = "7d", output: Output = Format.TABLE
) -> None:
    """Show what was requested of a pool and decided for it."""
    await fleet.check_pool(pool)
    stored = await fleet.bus.read(EVENTS.name, subjects.pool_events_of(pool))
    start = start_time(since)
    found = [each for each in stored if start is None or each.time >= start]
    if output.is_data:
        console.write_data(output, timeline_rows(found))
        return
    colour = console.colour()
    lines = [tables.event_line(each.time, describe_stored(each), colour=colour) for each in found]
    console.write("\n".join(lines) or f"Nothing happened to {pool} in that time.")


def _cell(value: object) -> str:
    if value is None:
        return "not known"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
