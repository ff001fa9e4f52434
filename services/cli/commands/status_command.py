"""`navarch status`: the pools, the open sagas, and what fails."""

from typing import Final

import typer

from services.cli import console, fleet_view
from services.cli.command_options import Output, Watch
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.text import instances_text, tables

OPEN_BUS: Final = (
    "The bus is open: every client that reaches it controls the fleet (docs/security.md)."
)
FAILING: Final = 3
"""Exit code of `status` where something of the services fails."""


@everyday_command
async def status(
    fleet: FleetAccess, *, watch: Watch = False, output: Output = console.Format.TABLE
) -> None:
    """Show the pools and the open sagas."""
    failing = False

    async def view() -> None:
        nonlocal failing
        failing = await _write(fleet, output)

    await fleet_view.show(fleet, view, watch=watch)
    if failing:
        raise typer.Exit(FAILING)


async def _write(fleet: FleetAccess, output: console.Format) -> bool:
    """Write it all; whether something fails."""
    found = await fleet.status()
    if output.is_data:
        shown = ("pools", "sagas", "failures", "expiries")
        console.write_data(output, {each: getattr(found, each) for each in shown})
        return bool(found.failures)
    views = sorted(found.pools, key=lambda each: each.name)
    rows = tables.pool_rows(views)
    console.write_table(tables.POOL_HEADERS, rows)
    if not rows:
        console.write("No pool is configured.")
    for lines in (tables.warnings, tables.advice_lines, tables.renewal_lines):
        if found_lines := lines(views):
            console.write("\n" + "\n".join(found_lines))
    if found.sagas:
        console.write("\n" + tables.open_sagas_text(found.sagas, colour=console.colour()))
        for line in found.remaining_work:
            console.write(line)
    if found.orphans:
        console.write("\n" + instances_text.orphans_note(found.orphans))
    if found.expiries:
        ends = [(each.what, each.at) for each in found.expiries]
        console.write(f"\n{tables.expiry_line(ends)}")
    if found.bus_is_open:
        console.write(f"\n{OPEN_BUS}")
    for each in found.failures:
        console.write(f"\n{tables.failure_line(each)}")
    return bool(found.failures)
