"""`navarch report`: what sick nodes have cost a pool, by what was wrong, over a span of time.

It reads the events `repaired` alone, so it answers when no service runs.
"""

import asyncio
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from services.cli import console
from services.cli.command_options import Config, NatsUrl, Output, moment
from services.cli.console import Format
from services.operator_text.quantities import elapsed, gpu_hours, local_time

if TYPE_CHECKING:
    from schemas.node_events import Repaired
    from schemas.node_records import NodeRecord
    from services.bus.port import Stored

HEADERS: Final = (
    *("pool", "fault", "count", "gpu-hours lost"),
    *("repaired in: median", "p95", "longest", "the longest was"),
)
NAMED_MAX: Final = 20


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One pool's nodes with one fault."""

    pool: str
    fault: str
    count: int
    lost_gpu_hours: float
    repair_seconds_median: float
    repair_seconds_p95: float
    repair_seconds_longest: float
    longest: str
    """The node that was out for the longest."""


class Out(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is out of service now."""

    pool: str
    node: str
    why: str
    since: datetime | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report."""

    since: datetime
    until: datetime
    rows: tuple[Row, ...]
    out: tuple[Out, ...]


def report(
    since: Annotated[
        str, typer.Option("--since", help="From when on: 24h, 7d, 2026-11-21T01:35:00Z.")
    ] = "7d",
    pool: Annotated[str, typer.Option("--pool", help="Of one pool only.")] = "",
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Count sick nodes and GPU-hours lost, by pool and fault.

    With the median and the 95th percentile of the time from falling ill to the place being filled.
    """
    start = moment(since)
    if start is None:
        raise typer.BadParameter("say from when on: --since 7d")

    async def work() -> None:
        from schemas import subjects  # noqa: PLC0415
        from schemas.messages import decoder  # noqa: PLC0415
        from schemas.node_events import FACTS, Repaired  # noqa: PLC0415
        from schemas.node_records import NodeRecord  # noqa: PLC0415
        from schemas.topology import EVENTS, NODES  # noqa: PLC0415
        from services.cli.bus_client import connected  # noqa: PLC0415
        from services.cli.fleet_discovery import find_bus  # noqa: PLC0415

        nodes = decoder(NodeRecord)
        async with connected(find_bus(nats_url, config)) as fleet:
            await fleet.check_pool(pool)
            stored, entries = await asyncio.gather(
                fleet.bus.read(EVENTS.name, subjects.node_event_wildcard(FACTS[Repaired])),
                fleet.bus.entries(NODES, f"{pool or '*'}.*"),
            )
        told = Report(
            since=start,
            until=datetime.now(UTC),
            rows=rows(ended(stored, start, pool)),
            out=out(nodes.decode(each.value) for each in entries),
        )
        if output is Format.JSON:
            console.write_json(told)
        else:
            console.write(page(told))

    asyncio.run(work())


def ended(stored: "Iterable[Stored]", start: datetime, pool: str) -> "list[Repaired]":
    """What ended since a moment."""
    from schemas.node_events import Repaired, node_codec  # noqa: PLC0415

    found = (node_codec.decode(each.data) for each in stored if each.time >= start)
    return [each for each in found if isinstance(each, Repaired) and pool in ("", each.pool)]


def rows(repaired: "Iterable[Repaired]") -> tuple[Row, ...]:
    """One row a pool and fault, the most expensive first."""
    groups: dict[tuple[str, str], list[Repaired]] = {}
    for each in repaired:
        groups.setdefault((each.pool, each.fault_signature), []).append(each)
    found = [_row(pool, fault, group) for (pool, fault), group in groups.items()]
    return tuple(sorted(found, key=lambda row: (-row.lost_gpu_hours, row.pool, row.fault)))


def _row(pool: str, fault: str, group: "Sequence[Repaired]") -> Row:
    took = sorted(
        ((each.restored_at - each.unhealthy_at).total_seconds(), each.node) for each in group
    )
    seconds = [each for each, _ in took]
    return Row(
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


def out(nodes: "Iterable[NodeRecord]") -> tuple[Out, ...]:
    """Nodes that are out of service now; what they cost is counted when they are back."""
    found = []
    for node in nodes:
        if node.state == "terminated" or node.spare:
            continue
        if node.health == "unhealthy":
            since, why = node.health_at, node.health_reason or "unhealthy"
        elif node.lost:
            since, why = node.lost_at, "silent"
        elif node.cordoned:
            since, why = node.changed_at, node.reason or "cordoned"
        else:
            continue
        found.append(Out(pool=node.pool, node=node.node, why=why, since=since))
    return tuple(found)


def page(told: Report) -> str:
    """The report as people read and paste it."""
    from services.cli.text import tables  # noqa: PLC0415

    count = sum(row.count for row in told.rows)
    lost = gpu_hours(sum(row.lost_gpu_hours for row in told.rows))
    times = "once" if count == 1 else f"{count} times"
    head = f"Nodes went out of service and came back or were replaced: {times}"
    span_ = f"from {local_time(told.since)} to {local_time(told.until)}"
    parts = [f"{head}, {span_}; {lost} GPU-hours lost."]
    if told.rows:
        parts.append(tables.columns(HEADERS, [_cells(row) for row in told.rows], colour=False))
    if told.out:
        lines = [f"Out of service now, and not counted yet: {len(told.out)}"]
        lines += [
            f"  {each.node} ({each.pool}), since {local_time(each.since) if each.since else '-'}: "
            f"{each.why}"
            for each in told.out[:NAMED_MAX]
        ]
        if len(told.out) > NAMED_MAX:
            lines.append(f"  … {len(told.out) - NAMED_MAX} more: navarch list")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _cells(row: Row) -> tuple[str, ...]:

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
