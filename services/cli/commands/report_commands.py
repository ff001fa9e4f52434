"""`navarch report` and `cost`: what unhealthy nodes, and all instances, cost over a period."""

from typing import Annotated, Final

import typer

from services.cli import console
from services.cli.command_options import Output, Pool, Since, start_time
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.fleet_client.cost_report import CostReport
from services.fleet_client.repair_report import RepairReport, RepairRow
from services.operator_text.quantities import elapsed, gpu_hours, local_time
from services.operator_text.safe_text import escape_line

HEADERS: Final = (
    *("pool", "count", "gpu-hours lost"),
    *("repaired in: median", "p95", "longest", "the longest was", "fault"),
)
NAMED_MAX: Final = 20


@everyday_command
async def report(
    fleet: FleetAccess,
    since: Since = "7d",
    pool: Pool = "",
    output: Output = console.Format.TABLE,
) -> None:
    """Count unhealthy nodes and lost GPU-hours, by pool and fault.

    With the median and the 95th percentile of the time until the node or its replacement served.
    """
    start = start_time(since)
    if start is None:
        raise typer.BadParameter("give a start time: --since 7d")
    found = await fleet.report(start, pool)
    if output.is_data:
        console.write_data(output, found)
    else:
        console.write(report_text(found, output))


def report_text(report: RepairReport, output: console.Format = console.Format.TABLE) -> str:
    """Return the report as text."""
    count = sum(row.count for row in report.rows)
    lost = gpu_hours(sum(row.lost_gpu_hours for row in report.rows))
    times = "once" if count == 1 else f"{count} times"
    head = f"Nodes that went out of service and returned or were replaced: {times}"
    span_ = f"from {local_time(report.since)} to {local_time(report.until)}"
    parts = [f"{head}, {span_}; {lost} GPU-hours lost."]
    if report.rows:
        parts.append(
            console.table(HEADERS, [_cells(row) for row in report.rows], output, painted=False)
        )
    if report.out:
        lines = [f"Out of service now, and not counted yet: {len(report.out)}"]
        lines += [
            f"  {each.node} ({each.pool}), since {local_time(each.since) if each.since else '-'}: "
            f"{escape_line(each.why)}"
            for each in report.out[:NAMED_MAX]
        ]
        if len(report.out) > NAMED_MAX:
            lines.append(f"  … {len(report.out) - NAMED_MAX} more: navarch list")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _cells(row: RepairRow) -> tuple[str, ...]:
    return (
        row.pool,
        str(row.count),
        gpu_hours(row.lost_gpu_hours),
        elapsed(row.repair_seconds_median),
        elapsed(row.repair_seconds_p95),
        elapsed(row.repair_seconds_longest),
        row.longest,
        row.fault,
    )


@everyday_command
async def cost(
    fleet: FleetAccess,
    since: Since = "7d",
    pool: Pool = "",
    label: Annotated[
        str, typer.Option("--label", metavar="KEY", help="Also by this label of the nodes.")
    ] = "",
    output: Output = console.Format.TABLE,
) -> None:
    """Sum what instances cost, by day and pool.

    Seven days back at most: that is how long terminated instances are recorded.
    """
    start = start_time(since)
    if start is None:
        raise typer.BadParameter("give a start time: --since 7d")
    found = await fleet.cost(pool, start, label)
    if output.is_data:
        console.write_data(output, found)
    else:
        console.write(cost_text(found, output))


def cost_text(report: CostReport, output: console.Format = console.Format.TABLE) -> str:
    """Return the report as text."""
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
    return f"{head}\n\n{console.table(headers, rows, output, painted=False)}"
