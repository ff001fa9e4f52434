"""Sums what unhealthy nodes cost a pool, by fault, over a period.

It reads only `repaired` events and the nodes' records, so it needs no running service.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from statistics import median

import msgspec

from schemas import subjects
from schemas.messages import decoder
from schemas.node_events import FACTS, Repaired
from schemas.node_records import NodeRecord
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, NODES
from services.bus.port import Bus, Stored

_nodes = decoder(NodeRecord)


class RepairRow(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the repairs of one fault in one pool."""

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
    """Holds the rows and totals of the whole report."""

    since: datetime
    until: datetime
    rows: tuple[RepairRow, ...]
    out: tuple[OutOfService, ...]


async def repair_report(bus: Bus, start: datetime, until: datetime, pool: str) -> RepairReport:
    """Read the report of one pool, or of all."""
    stored, entries = await asyncio.gather(
        bus.read(EVENTS.name, subjects.node_event_wildcard(FACTS[Repaired])),
        bus.entries(NODES, f"{pool or '*'}.*"),
    )
    return RepairReport(
        since=start,
        until=until,
        rows=rows(repairs_since(stored, start, pool)),
        out=out_of_service(_nodes.decode(each.value) for each in entries),
    )


def repairs_since(stored: Iterable[Stored], start: datetime, pool: str) -> list[Repaired]:
    """Outages that ended after a time."""
    found = (decode_stored(each) for each in stored if each.time >= start)
    return [each for each in found if isinstance(each, Repaired) and pool in ("", each.pool)]


def seen_report(report: RepairReport, sees: Callable[[str], bool]) -> RepairReport:
    """The part of it about some pools."""
    return msgspec.structs.replace(
        report,
        rows=tuple(each for each in report.rows if sees(each.pool)),
        out=tuple(each for each in report.out if sees(each.pool)),
    )


def rows(repaired: Iterable[Repaired]) -> tuple[RepairRow, ...]:
    """Return one row per pool and fault, the most GPU-hours first."""
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
    """Return whether a node leaves because the pool needs fewer, and is healthy."""
    return node.saga.startswith("scale-down-") and node.health != "unhealthy" and not node.lost
