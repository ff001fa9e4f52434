"""`navarch pool list|status|history`: pools, one in numbers, and what happened to it."""

import msgspec

from schemas.fleet_queries import Query
from services.cli import console
from services.cli.command_options import (
    ListOutput,
    Output,
    PoolName,
    Since,
    command_group,
    start_time,
)
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.text import tables
from services.fleet_client.node_timeline import timeline_rows
from services.fleet_client.query_answers import decode_pools
from services.operator_text.event_text import describe_stored

commands = command_group("Show pools, one in numbers, and its history.")


@commands.command("list")
@everyday_command
async def list_pools(fleet: FleetAccess, output: ListOutput = console.LISTING) -> None:
    """List the pools."""
    items = await fleet.pages("pools", Query())
    if output.is_data:
        console.write_data(output, items)
        return
    views = sorted(decode_pools(items), key=lambda each: each.name)
    empty = "No pool is configured."
    console.write_table(tables.POOL_HEADERS, tables.pool_rows(views), empty, output)


@commands.command("status")
@everyday_command
async def status(fleet: FleetAccess, pool: PoolName, output: Output = console.Format.TABLE) -> None:
    """Show a pool in numbers.

    They are those of the HTTP API, at /api/v1/pools/POOL/status.
    """
    found = await fleet.pool_status(pool)
    if output.is_data:
        console.write_data(output, found)
        return
    fields = msgspec.structs.asdict(found).items()
    rows = [(name.replace("_", " "), _cell(value)) for name, value in fields]
    console.write(console.table(("pool", pool), rows[1:]))


@commands.command("history")
@everyday_command
async def history(
    fleet: FleetAccess, pool: PoolName, since: Since = "7d", output: Output = console.Format.TABLE
) -> None:
    """Show what was requested of a pool and decided for it."""
    found = await fleet.pool_events(pool, start_time(since))
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
