"""`navarch report`: what unhealthy nodes cost a pool, by fault, over a period.

It reads only `repaired` events, so it needs no running service.
"""

import asyncio
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Final

import msgspec
import typer

from schemas import subjects
from schemas.messages import decoder
from schemas.node_events import FACTS, Repaired
from schemas.node_records import NodeRecord
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, NODES
from services.bus.port import Stored
from services.cli import console
from services.cli.command_options import Output, Pool, Since, start_time
from services.cli.console import Format
from services.cli.fleet_connection import fleet_command
from services.cli.text import tables
from services.fleet_client.fleet_client import FleetClient
from services.operator_text.quantities import elapsed, gpu_hours, local_time
from services.operator_text.safe_text import escape_line

HEADERS: Final = (
    *("pool", "fault", "count", "gpu-hours lost"),
    *("repaired in: median", "p95", "longest", "the longest was"),
)
NAMED_MAX: Final = 20


class RepairRow(msgspec.Struct, frozen=True, kw_only=True):
    """Repairs of one fault in one pool."""

    pool: str
    fault: str
    count: int
    lost_gpu_hours: float
    repair_seconds_median: float
    repair_seconds_p95: float
    repair_seconds_longest: float
    longest: str
    """The node that was out of service longest."""


class OutOfService(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is out of service now."""

    pool: str
    node: str
    why: str
    since: datetime | None = None


class RepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report."""

    since: datetime
    until: datetime
    rows: tuple[RepairRow, ...]
    out: tuple[OutOfService, ...]


@fleet_command
async def report(
    fleet: FleetClient,
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
    nodes = decoder(NodeRecord)
    await fleet.check_pool(pool)
    stored, entries = await asyncio.gather(
        fleet.bus.read(EVENTS.name, subjects.node_event_wildcard(FACTS[Repaired])),
        fleet.bus.entries(NODES, f"{pool or '*'}.*"),
    )
    found = RepairReport(
        since=start,
        until=datetime.now(UTC),
        rows=rows(repairs_since(stored, start, pool)),
        out=out_of_service(nodes.decode(each.value) for each in entries),
    )
    if output.is_data:
        console.write_data(output, found)
    else:
        console.write(report_text(found))


def repairs_since(stored: Iterable[Stored], start: datetime, pool: str) -> list[Repaired]:
    """Outages that ended after a time."""
    found = (decode_stored(each) for each in stored if each.time >= start)
    return [each for each in found if isinstance(each, Repaired) and pool in ("", each.pool)]


def rows(repaired: Iterable[Repaired]) -> tuple[RepairRow, ...]:
    """One row per pool and fault, the most GPU-hours first."""
    groups: dict[tuple[str, str], list[Repaired]] = {}
    for each in repaired:
        groups.setdefault((each.pool, each.fault_signature), []).append(each)
    found = [_row(pool, fault, group) for (pool, fault), group in groups.items()]
    return tuple(sorted(found, key=lambda row: (-row.lost_gpu_hours, row.pool, row.fault)))


def _row(pool: str, fault: str, group: Sequence[Repaired]) -> RepairRow:
    took = sorted(
        ((each.restored_at - each.unhealthy_at).total_seconds(), each.node) for each in group
    )
    seconds = [each for each, _ in took]
    return RepairRow(
        pool=pool,
        fault=fault,
        count=len(group),
        lost_gpu_hours=round(sum(each.lost_gpu_hours for each in group), 6),
        repair_seconds_median=round(median(seconds), 3),
        # The nearest rank: a time that a node really took.
        repair_seconds_p95=round(seconds[math.ceil(0.95 * len(seconds)) - 1], 3),
        repair_seconds_longest=round(seconds[-1], 3),
        longest=took[-1][1],
    )


def out_of_service(nodes: Iterable[NodeRecord]) -> tuple[OutOfService, ...]:
    """Nodes that are out of service now; their cost is counted when they return."""
    found = []
    for node in nodes:
        if node.state == "terminated" or node.spare or is_surplus(node):
            continue
        if node.health == "unhealthy":
            since, why = node.health_at, node.health_reason or "unhealthy"
        elif node.lost:
            since, why = node.lost_at, "silent"
        elif node.cordoned:
            since, why = node.cordoned_at, node.reason or "cordoned"
        else:
            continue
        found.append(OutOfService(pool=node.pool, node=node.node, why=why, since=since))
    return tuple(found)


def is_surplus(node: NodeRecord) -> bool:
    """Whether it leaves because the pool needs fewer nodes, and is healthy."""
    return node.saga.startswith("scale-down-") and node.health != "unhealthy" and not node.lost


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
