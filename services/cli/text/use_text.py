"""`navarch top` as a table."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from services.fleet_client.fleet_use import UseRow, UseTotal
from services.operator_text.quantities import elapsed

NODE_HEADERS: Final = (
    *("node", "pool", "status", "health", "gpus"),
    *("use", "memory", "power", "hottest", "sampled"),
)
GPU_HEADERS: Final = (
    *("node", "pool", "status", "health", "gpu"),
    *("use", "memory", "power", "temperature", "sampled"),
)
KILOWATT: Final = 1000.0


def use_rows(rows: Sequence[UseRow], now: datetime) -> list[tuple[str, ...]]:
    """One row per node or GPU."""
    return [
        (
            row.node,
            row.pool,
            row.status,
            row.health,
            str(row.gpus if row.gpu is None else row.gpu),
            percent(row.utilization_percent),
            percent(row.memory_percent),
            watts(row.power_watts),
            "-" if row.temperature_celsius is None else f"{row.temperature_celsius} °C",
            f"{elapsed(max((now - row.sampled_at).total_seconds(), 0.0))} ago",
        )
        for row in rows
    ]


def total_line(found: UseTotal, shown: int, rows: int) -> str:
    """The whole in one line, and how much of it is shown."""
    more = "" if shown >= rows else f"; the first {shown} of {rows} rows"
    nodes = "1 node" if found.nodes == 1 else f"{found.nodes:,} nodes"
    return (
        f"{nodes} with {found.gpus:,} GPUs, used {percent(found.utilization_percent)}"
        f", {watts(found.power_watts)}{more}"
    )


def percent(value: float | None) -> str:
    """A share; `-`: not known."""
    return "-" if value is None else f"{value:.0f} %"


def watts(value: float | None) -> str:
    """A power; `-`: not known."""
    if value is None:
        return "-"
    return f"{value:.0f} W" if value < KILOWATT else f"{value / KILOWATT:,.1f} kW"
