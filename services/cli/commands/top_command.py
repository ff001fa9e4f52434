"""`navarch top`: the nodes or GPUs by use, again as samples arrive."""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Final, get_args

import typer

from schemas.topology import NODES, TELEMETRY
from services.bus.port import Entry
from services.cli import console
from services.cli.command_options import Output, Pool
from services.cli.commands.view_commands import CLEAR, INTERVAL_SECONDS_MIN
from services.cli.fleet_connection import FleetAccess, bus_of, everyday_command
from services.fleet_client.fleet_client import FleetClient, as_generator
from services.fleet_client.fleet_use import FleetUse, UseOrder, UseRow, UseTotal, ordered, total
from services.fleet_client.use_reader import (
    SAMPLE_SECONDS,
    nodes_decoder,
    read_use,
    telemetry_filter,
)
from services.operator_text.quantities import elapsed
from services.primitives.race import race

NODE_HEADERS: Final = (
    *("node", "pool", "status", "health", "gpus"),
    *("use", "memory", "power", "hottest", "sampled"),
)
GPU_HEADERS: Final = (
    *("node", "pool", "status", "health", "gpu"),
    *("use", "memory", "power", "temperature", "sampled"),
)
KILOWATT: Final = 1000.0
COUNT_MAX: Final = 100_000
COUNT_WITHOUT_TERMINAL: Final = 50
HEAD_LINES: Final = 4


def use_rows(rows: Sequence[UseRow], now: datetime) -> list[tuple[str, ...]]:
    """Return a table with one row per node or GPU."""
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


def _known_order(word: str) -> str:
    if word not in get_args(UseOrder):
        raise typer.BadParameter(f"{word!r} is none of {', '.join(get_args(UseOrder))}")
    return word


Sort = Annotated[
    str,
    typer.Option(
        "--sort", callback=_known_order, metavar="|".join(get_args(UseOrder)), help="The order."
    ),
]


@everyday_command
async def top(
    fleet: FleetAccess,
    pool: Pool = "",
    sort: Sort = "use",
    *,
    gpus: Annotated[bool, typer.Option("--gpus", help="A row per GPU, not per node.")] = False,
    count: Annotated[
        int, typer.Option(min=0, max=COUNT_MAX, help="Rows; 0: what the terminal has room for.")
    ] = 0,
    once: Annotated[bool, typer.Option("--once", help="Show it once.")] = False,
    output: Output = console.Format.TABLE,
) -> None:
    """Show the most used nodes or GPUs, again as their samples arrive.

    Without a terminal, and as JSON or YAML, it is shown once.
    """
    shown = _Shown(sort, count, of_gpus=gpus, output=output)
    if once or output.is_data or not console.colour():
        shown.write(await fleet.use(pool, of_gpus=gpus))
        return
    over_bus = bus_of(fleet, "top without --once")
    use, after = await read_use(over_bus.bus, pool, datetime.now(UTC))
    await _follow(over_bus, pool, use, after, lambda: shown.write(use.rows(of_gpus=gpus)))


class _Shown:
    """What of it is printed, and how."""

    def __init__(self, order: Any, count: int, *, of_gpus: bool, output: console.Format) -> None:
        self._order: UseOrder = order
        self._count = count
        self._of_gpus = of_gpus
        self._output = output

    def write(self, found_rows: Sequence[UseRow]) -> None:
        """Print it."""
        rows = ordered(found_rows, self._order)
        if self._output.is_data:
            found = rows[: self._count or COUNT_MAX]
            console.write_data(self._output, {"total": total(rows), "rows": found})
            return
        room = COUNT_WITHOUT_TERMINAL
        if console.colour():
            room = max(shutil.get_terminal_size().lines - HEAD_LINES, 1)
            sys.stdout.write(CLEAR)
        found = rows[: self._count or room]
        headers = GPU_HEADERS if self._of_gpus else NODE_HEADERS
        table = console.table(headers, use_rows(found, datetime.now(UTC)), self._output)
        line = total_line(total(rows), len(found), len(rows))
        console.write(f"{line}\n\n{table}" if rows else "No node has sent a sample of its GPUs.")


async def _follow(
    fleet: FleetClient, pool: str, use: FleetUse, after: int, show: Callable[[], None]
) -> None:
    """Show it, and again when something new has come, but not more often than once a second."""
    changed = asyncio.Event()

    def take_node(entry: Entry) -> None:
        use.take_node(entry.key, None if entry.removed else nodes_decoder.decode(entry.value))

    async def take_all(source: AsyncIterator[Any], take: Callable[[Any], None]) -> None:
        async with aclosing(as_generator(source)) as items:
            async for item in items:
                take(item)
                changed.set()

    async def draw() -> None:
        while True:
            changed.clear()
            show()
            # The ages of the samples grow even if none comes.
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), SAMPLE_SECONDS)
            await asyncio.sleep(INTERVAL_SECONDS_MIN)

    samples = fleet.bus.follow(TELEMETRY.name, [telemetry_filter(pool)], "new", after=after)
    nodes = fleet.bus.watch(NODES, f"{pool or '*'}.*")
    for task in await race(draw(), take_all(samples, use.take_sample), take_all(nodes, take_node)):
        if not task.cancelled():
            task.result()
