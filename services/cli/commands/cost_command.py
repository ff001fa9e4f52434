"""`navarch cost`: what instances cost, by day, pool and a label."""

from typing import Annotated

import typer

from services.cli import console
from services.cli.command_options import Output, Pool, Since, start_time
from services.cli.console import Format
from services.cli.fleet_access import FleetAccess
from services.cli.fleet_connection import everyday_command
from services.cli.text import tables
from services.fleet_client.cost_report import CostReport
from services.operator_text.quantities import local_time


@everyday_command
async def cost(
    fleet: FleetAccess,
    since: Since = "7d",
    pool: Pool = "",
    label: Annotated[
        str, typer.Option("--label", metavar="KEY", help="Also by this label of the nodes.")
    ] = "",
    output: Output = Format.TABLE,
) -> None:
    """Sum what instances cost, by day and pool.

    Seven days back at most: that is how long terminated instances are recorded.
    """
    start = start_time(since)
    if start is None:
        raise typer.BadParameter("give a start time: --since 7d")
    await fleet.check_pool(pool)
    found = await fleet.cost(pool, start, label)
    if output.is_data:
        console.write_data(output, found)
    else:
        console.write(cost_text(found))


def cost_text(report: CostReport) -> str:
    """The report as text."""
    span = f"from {local_time(report.since)} to {local_time(report.until)}"
    head = f"Instances cost ${report.dollars:,.2f} for {report.instance_hours:,.1f} hours, {span}."
    if report.unpriced_hours:
        head += (
            f" The price of {report.unpriced_hours:,.1f} of these hours is not known: give the "
            "type a dollars_per_hour under instance_types."
        )
    if not report.rows:
        return head
    named = (report.label,) if report.label else ()
    headers = ("day (UTC)", "pool", *named, "instance-hours", "dollars")
    rows = [
        (
            *(each.day, each.pool),
            *([each.label or "-"] if report.label else []),
            *(f"{each.instance_hours:,.1f}", f"{each.dollars:,.2f}"),
        )
        for each in report.rows
    ]
    return f"{head}\n\n{tables.columns(headers, rows, colour=False)}"
