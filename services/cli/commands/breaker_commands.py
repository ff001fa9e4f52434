"""`navarch breaker show|open|close`: whether sick nodes are acted on, and a person's word on it.

`open` and `close` are requests like any other, one to each pool asked for, and the pool-manager
answers them.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from services.cli import console
from services.cli.command_options import Config, NatsUrl, Output
from services.cli.console import Format
from services.operator_text.quantities import local_time
from services.primitives.errors import NavarchError

if TYPE_CHECKING:
    from schemas.fleet_queries import FleetBudgetView, PoolView
    from services.cli.bus_client import Fleet

commands = typer.Typer(
    name="breaker",
    help="Whether sick nodes are repaired: see, stop, go on.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Reason = Annotated[
    str, typer.Option("--reason", help="Why; shown to whoever looks next.", show_default=False)
]
PoolName = Annotated[str, typer.Argument(metavar="[POOL]", help="The pool's name.")]
Everywhere = Annotated[bool, typer.Option("--fleet", help="Every pool there is.")]
HEADERS: Final = (
    "pool",
    "breaker",
    "since",
    "out of service",
    "begun",
    "resets",
    "sick, waiting",
    "why",
)


@commands.command("show")
def show(
    pool: PoolName = "",
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Show each pool's breaker and its budget, and the fleet's."""

    async def work() -> None:
        from schemas.fleet_queries import Query  # noqa: PLC0415
        from services.cli import bus_client  # noqa: PLC0415
        from services.cli.fleet_discovery import find_bus  # noqa: PLC0415
        from services.cli.text import tables  # noqa: PLC0415

        async with bus_client.connected(find_bus(nats_url, config)) as fleet:
            await fleet.check_pool(pool)
            items = await fleet.pages("pools", Query(pool=pool))
            budget = await fleet.budget()
        if output is Format.JSON:
            console.write_json({"pools": items, "fleet": budget})
            return
        views = sorted(bus_client.pool_views(items), key=lambda each: each.name)
        rows = [row(each) for each in views]
        console.write(tables.columns(HEADERS, rows, colour=console.colour()))
        console.write("\n" + fleet_line(budget))
        for each in views:
            if each.breaker != "closed":
                console.write(next_line(each))

    asyncio.run(work())


def row(pool: "PoolView") -> tuple[str, ...]:
    """One row a pool."""
    from services.cli.text.tables import begun, use  # noqa: PLC0415

    state = pool.breaker
    if pool.breaker_forced:
        state += ", by hand"
    elif state == "closed" and pool.ramp:
        state += f", {pool.ramp} at once"
    why = pool.breaker_reason if state != "closed" else ""
    by = f"{pool.breaker_by}: " if pool.breaker_by and why else ""
    return (
        pool.name,
        state,
        _moment(pool.breaker_since) if state != "closed" else "-",
        use(pool.unavailable, pool.unavailable_limit),
        begun(pool.disruptions, pool.disruptions_limit, pool.window_seconds),
        use(pool.resets, pool.resets_limit),
        str(pool.sick or "-"),
        f"{by}{why}" or "-",
    )


def fleet_line(budget: "FleetBudgetView") -> str:
    """The fleet's budget, and what of it is used."""
    from services.cli.text.tables import begun, use  # noqa: PLC0415

    if budget.lifted:
        return "The fleet's budget is lifted: each pool's own decides."
    return (
        f"Of the fleet ({budget.desired} nodes): "
        f"{use(budget.unavailable, budget.unavailable_limit)} out of service, "
        f"{begun(budget.disruptions, budget.disruptions_limit, budget.window_seconds)} begun, "
        f"{use(budget.resets, budget.resets_limit)} resets and reboots."
    )


def next_line(pool: "PoolView") -> str:
    """What happens next, and what a person may do."""
    if pool.breaker_forced:
        then = "it stays open until somebody closes it"
    elif pool.breaker == "half-open":
        then = f"{pool.breaker_probe} is tried first; if it is done, the others follow"
    elif pool.breaker_probe_at:
        then = f"one repair is tried at {_moment(pool.breaker_probe_at)} at the earliest"
    else:
        then = "when that is over one repair is tried, and if it is done the others follow"
    if pool.breaker_cause.endswith("rate"):
        on = "Closing it lifts no budget. By hand, one node: navarch replace NODE"
    else:
        on = f"To go on now: navarch breaker close {pool.name} --reason …"
    return f"{pool.name}: {then}. {on}"


def _moment(text: str) -> str:
    from datetime import datetime  # noqa: PLC0415

    return local_time(datetime.fromisoformat(text)) if text else "-"


@commands.command("open")
def open_(
    reason: Reason,
    pool: PoolName = "",
    *,
    fleet: Everywhere = False,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Act on no sick node until somebody closes it.

    What is under way goes on.
    """
    asyncio.run(_ask("breaker-open", pool, reason, nats_url, config, output, fleet=fleet))


@commands.command("close")
def close(
    reason: Reason,
    pool: PoolName = "",
    *,
    fleet: Everywhere = False,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Act on sick nodes again, whatever had opened it.

    Slowly at first, and within the budget.
    """
    asyncio.run(_ask("breaker-close", pool, reason, nats_url, config, output, fleet=fleet))


async def _ask(
    verb: str,
    pool: str,
    reason: str,
    nats_url: str,
    config: Path | None,
    output: Format,
    *,
    fleet: bool,
) -> None:
    from schemas.operator_requests import BreakerRequest  # noqa: PLC0415
    from services.cli.bus_client import accepted, connected  # noqa: PLC0415
    from services.cli.fleet_discovery import find_bus  # noqa: PLC0415

    if bool(pool) == fleet:
        raise NavarchError("name one pool, or say --fleet for every pool")
    try:
        request = msgspec.convert({"reason": reason}, BreakerRequest)
    except msgspec.ValidationError as error:
        raise NavarchError(f"--reason: {error}") from error
    async with connected(find_bus(nats_url, config)) as asked:
        for name in [pool] if pool else await _pools(asked):
            console.write_message(accepted(await asked.request(name, verb, request)), output)


async def _pools(fleet: "Fleet") -> list[str]:
    from schemas.fleet_queries import Query  # noqa: PLC0415
    from services.cli.bus_client import pool_views  # noqa: PLC0415

    return sorted(each.name for each in pool_views(await fleet.pages("pools", Query())))
