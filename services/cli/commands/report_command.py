"""`navarch report`: what unhealthy nodes cost a pool, by fault, over a period."""

from typing import Final

import typer

from services.cli import console
from services.cli.command_options import Output, Pool, Since, start_time
from services.cli.console import Format
from services.cli.fleet_access import FleetAccess
from services.cli.fleet_connection import everyday_command
from services.cli.text import tables
from services.fleet_client.repair_report import RepairReport, RepairRow
from services.operator_text.quantities import elapsed, gpu_hours, local_time
from services.operator_text.safe_text import escape_line

HEADERS: Final = (
    *("pool", "fault", "count", "gpu-hours lost"),
    *("repaired in: median", "p95", "longest", "the longest was"),
)
NAMED_MAX: Final = 20


@everyday_command
async def report(
    fleet: FleetAccess,
    since: Since = "7d",
    pool: Pool = "",
    output: Output = Format.TABLE,
) -> None:
    """Count unhealthy nodes and lost GPU-hours, by pool and fault.

    With the median and the 95th percentile of the time until the node or its replacement served.
    """
    start = start_time(since)
    if start is None:
        raise typer.BadParameter("give a start time: --since 7d")
    await fleet.check_pool(pool)
    found = await fleet.report(start, pool)
    if output.is_data:
        console.write_data(output, found)
    else:
        console.write(report_text(found))


def report_text(report: RepairReport) -> str:
    """The report as text."""
    count = sum(row.count for row in report.rows)
    lost = gpu_hours(sum(row.lost_gpu_hours for row in report.rows))
    times = "once" if count == 1 else f"{count} times"
    head = f"Nodes that went out of service and returned or were replaced: {times}"
    span_ = f"from {local_time(report.since)} to {local_time(report.until)}"
    parts = [f"{head}, {span_}; {lost} GPU-hours lost."]
    if report.rows:
        parts.append(tables.columns(HEADERS, [_cells(row) for row in report.rows], colour=False))
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
        row.fault,
        str(row.count),
        gpu_hours(row.lost_gpu_hours),
        elapsed(row.repair_seconds_median),
        elapsed(row.repair_seconds_p95),
        elapsed(row.repair_seconds_longest),
        row.longest,
    )
