"""`navarch list` and `status`: views of the fleet, shown once or whenever something happens."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Annotated, Final, get_args

import msgspec
import typer

from schemas.alert_records import OpenAlertRecord
from schemas.enums import HealthStatus, NodeState
from schemas.fleet_queries import NodeView, Query
from schemas.stops import StopsAnswer
from services.cli import console
from services.cli.command_options import Check, ListOutput, Output, Pool, Watch
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.text import instances_text, status_text, tables
from services.fleet_client.fleet_client import PAGE_NODES
from services.fleet_client.node_filter import NodeFilter
from services.gateway.views import FleetStatus
from services.operator_text import stop_text
from services.primitives.errors import NavarchError
from services.primitives.race import race

INTERVAL_SECONDS_MIN: Final = 1.0
"""However much happens, the fleet is not asked more often."""
RETRY_SECONDS: Final = 5.0
"""A view that failed is tried again, even if nothing happens."""
CLEAR: Final = "\x1b[H\x1b[2J"
OPEN_BUS: Final = (
    "The bus is open: every client that reaches it controls the fleet (docs/security.md)."
)
FAILING: Final = 3
"""Exit code of `status` where something of the services fails."""


async def show_view(
    fleet: FleetAccess, view: Callable[[], Awaitable[None]], *, watch: bool
) -> None:
    """Print the view; `watch`: again after each event, until the command is interrupted."""
    if not watch:
        await view()
        return
    # Before the first view, so that nothing falls between it and what is followed.
    after = await fleet.last_event()
    happened = asyncio.Event()
    for task in await race(_listen(fleet, after, happened), _show_again(view, happened)):
        if not task.cancelled():
            task.result()


async def _show_again(view: Callable[[], Awaitable[None]], happened: asyncio.Event) -> None:
    while True:
        happened.clear()
        again_seconds = await _view(view)
        with suppress(TimeoutError):
            await asyncio.wait_for(happened.wait(), again_seconds)
        await asyncio.sleep(INTERVAL_SECONDS_MIN)


async def _view(view: Callable[[], Awaitable[None]]) -> float | None:
    """Print the view, or why there is none; after how many seconds it is to be tried again."""
    if console.colour():
        sys.stdout.write(CLEAR)
    try:
        await view()
    except NavarchError as error:
        console.note(str(error))
        return RETRY_SECONDS
    return None


async def _listen(fleet: FleetAccess, after: int, happened: asyncio.Event) -> None:
    async with aclosing(fleet.follow_events(pool="", node="", since=after)) as events:
        async for _ in events:
            happened.set()


@everyday_command
async def status(
    fleet: FleetAccess,
    *,
    check: Check = False,
    watch: Watch = False,
    output: Output = console.Format.TABLE,
) -> None:
    """Show what is wrong, the pools and the open sagas.

    Exit code 3: something of the services fails; with --check: anything is wrong.
    """
    failing = False

    async def view() -> None:
        nonlocal failing
        found, alerts = await asyncio.gather(fleet.status(), fleet.alerts())
        wrong = status_text.problems(found, alerts) if check else []
        failing = bool(wrong or found.failures)
        if output.is_data:
            shown = ("stops", "pools", "sagas", "failures", "expiries")
            document = {each: getattr(found, each) for each in shown}
            console.write_data(output, {**document, "alerts": alerts})
        elif not check:
            _write_status(found, alerts, output)
        elif wrong:
            console.write(status_text.in_red(wrong, colour=console.colour()))

    await show_view(fleet, view, watch=watch)
    if failing:
        raise typer.Exit(FAILING)


def _write_status(
    found: FleetStatus, alerts: Sequence[OpenAlertRecord], output: console.Format
) -> None:
    """Write what is wrong, and then all there is."""
    colour, width, now = console.colour(), console.room(output), datetime.now(UTC)
    _write_stops(found.stops)
    if text := status_text.alerts_text(alerts, now, colour=colour, width=width):
        console.write(f"{text}\n")
    views = sorted(found.pools, key=lambda each: each.name)
    console.write_table(tables.POOL_HEADERS, tables.pool_rows(views), output=output)
    if not views:
        console.write("No pool is configured.")
    if lines := tables.warnings(views):
        console.write("\n" + status_text.in_red(lines, colour=colour))
    for about in (tables.advice_lines, tables.renewal_lines):
        if lines := about(views):
            console.write("\n" + "\n".join(lines))
    if found.sagas:
        sagas = tables.open_sagas_text(found.sagas, now, colour=colour, width=width)
        console.write("\n".join(("", sagas, *found.remaining_work)))
    if found.orphans:
        console.write("\n" + instances_text.orphans_note(found.orphans))
    if found.expiries:
        ends = [(each.what, each.at) for each in found.expiries]
        console.write(f"\n{tables.expiry_line(ends)}")
    if found.bus_is_open:
        console.write(f"\n{OPEN_BUS}")
    for each in found.failures:
        console.write("\n" + status_text.in_red([tables.failure_line(each)], colour=colour))


def _write_stops(found: StopsAnswer) -> None:
    for line in stop_text.stop_lines(found):
        console.write(f"{line}\n")


def _known(option: str, words: tuple[str, ...]) -> typer.models.OptionInfo:
    def check(word: str) -> str:
        if word and word not in words:
            raise typer.BadParameter(f"{word!r} is none of {', '.join(words)}")
        return word

    found: typer.models.OptionInfo = typer.Option(
        option, callback=check, metavar="|".join(words), help="Only these nodes."
    )
    return found


Status = Annotated[str, _known("--status", get_args(NodeState))]
Health = Annotated[str, _known("--health", get_args(HealthStatus))]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label", "-l", metavar="KEY=VALUE", help="Only pools with this label; may be repeated."
    ),
]
Provider = Annotated[str, typer.Option("--provider", help="Only this provider.")]
Region = Annotated[str, typer.Option("--region", help="Only this region.")]
Zone = Annotated[str, typer.Option("--zone", help="Only this zone.")]
Job = Annotated[
    str,
    typer.Option(
        "--job", help="Only where this job runs: its ID or name in Slurm, Kubernetes or Ray."
    ),
]


@everyday_command
async def list_nodes(
    fleet: FleetAccess,
    pool: Pool = "",
    label: Labels = None,
    provider: Provider = "",
    region: Region = "",
    zone: Zone = "",
    status: Status = "",
    health: Health = "",
    job: Job = "",
    *,
    terminated: Annotated[bool, typer.Option("--all", help="Include terminated nodes.")] = False,
    watch: Watch = False,
    output: ListOutput = console.LISTING,
) -> None:
    """List the nodes."""
    try:
        pools = await fleet.pools_labelled(label) if label else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--label") from error
    wanted = NodeFilter(
        pool=pool,
        provider=provider,
        region=region,
        zone=zone,
        status=status,
        health=health,
        pools=pools,
    )
    includes_ended = terminated or status == "terminated"
    query = Query(pool=pool, terminated=includes_ended, limit=PAGE_NODES, gpus=output.is_data)

    async def view() -> None:
        nodes, kept = await fleet.nodes(query), wanted
        if job:
            where = await fleet.job_nodes(job, pool)
            for each in where.unknown:
                console.note(f"not known: {each}")
            kept = msgspec.structs.replace(wanted, nodes=frozenset(where.nodes))
        found = [each for each in nodes if kept.matches(each)]
        if output.is_data:
            console.write_data(output, found)
            return
        _write(found, output, selected=kept.selects_some and bool(nodes))

    await show_view(fleet, view, watch=watch)


def _write(nodes: list[NodeView], output: console.Listing, *, selected: bool) -> None:
    now = datetime.now(UTC)
    empty = "No nodes. `navarch why POOL` explains what a pool waits for."
    if selected:
        empty = "No node is like that; `navarch list` shows all."
    if output.is_wide:
        rows = tables.wide_node_rows(nodes, now)
        console.write_table(tables.WIDE_NODE_HEADERS, rows, empty, output)
    else:
        console.write_table(tables.NODE_HEADERS, tables.node_rows(nodes, now), empty, output)
