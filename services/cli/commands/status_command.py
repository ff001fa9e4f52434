"""`navarch status`: the pools, the open sagas, and what fails."""

import asyncio
from typing import Any, Final

import typer

from schemas.fleet_queries import Query
from services.cli import console, fleet_view
from services.cli.command_options import Output, Watch
from services.cli.commands import instance_commands
from services.cli.console import Format
from services.cli.fleet_connection import fleet_command
from services.cli.text import tables
from services.fleet_client.fleet_client import FleetClient, decode_answer, decode_pools

OPEN_BUS: Final = (
    "The bus is open: every client that reaches it controls the fleet (docs/security.md)."
)
FAILING: Final = 3
"""Exit code of `status` where something of the services fails."""


@fleet_command
async def status(
    fleet: FleetClient, *, watch: Watch = False, output: Output = Format.TABLE
) -> None:
    """Show the pools and the open sagas."""
    failing = False

    async def view() -> None:
        nonlocal failing
        failing = await _write(fleet, output)

    await fleet_view.show(fleet, view, watch=watch)
    if failing:
        raise typer.Exit(FAILING)


async def _write(fleet: FleetClient, output: Format) -> bool:
    """Write it all; whether something fails."""
    pools, sagas, failures = await asyncio.gather(
        fleet.pages("pools", Query()), fleet.pages("sagas", Query()), fleet.failures()
    )
    if output.is_data:
        found = {"pools": pools, "sagas": sagas, "failures": failures}
        console.write_data(output, found | {"expiries": fleet.expiries})
        return bool(failures)
    views = sorted(decode_pools(pools), key=lambda each: each.name)
    rows = tables.pool_rows(views)
    console.write_table(tables.POOL_HEADERS, rows)
    if not rows:
        console.write("No pool is configured.")
    if warnings := tables.warnings(views):
        console.write("\n" + "\n".join(warnings))
    if advice := tables.advice_lines(views):
        console.write("\n" + "\n".join(advice))
    if renewals := tables.renewal_lines(views):
        console.write("\n" + "\n".join(renewals))
    if sagas:
        opened = [decode_answer(dict[str, Any], each, "sagas") for each in sagas]
        console.write("\n" + tables.open_sagas_text(opened, colour=console.colour()))
        for line in await fleet.remaining_work(opened[: tables.SAGAS_SHOWN_MAX]):
            console.write(line)
    await instance_commands.write_orphans(fleet)
    if fleet.expiries:
        shown = [(each.what, each.at) for each in fleet.expiries]
        console.write(f"\n{tables.expiry_line(shown)}")
    if fleet.bus.is_open:
        console.write(f"\n{OPEN_BUS}")
    for each in failures:
        console.write(f"\n{tables.failure_line(each)}")
    return bool(failures)
