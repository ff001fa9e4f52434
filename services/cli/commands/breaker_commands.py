"""`navarch breaker show|open|close`: whether unhealthy nodes are remediated."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
import typer

from schemas.fleet_queries import FleetBudgetView, PoolView, Query
from schemas.operator_requests import BreakerRequest
from services.cli import console
from services.cli.command_options import ListOutput, Output, command_group
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.fleet_names import A_POOL
from services.cli.live_names import complete_pool
from services.cli.text.tables import rate_text, usage_text
from services.fleet_client.fleet_client import require_accepted
from services.fleet_client.query_answers import decode_pools
from services.operator_text.quantities import age_since_text, local_time_text
from services.operator_text.safe_text import escape_line
from services.primitives.errors import NavarchError

commands = command_group("Show, stop and resume the remediation of unhealthy nodes.")

Reason = Annotated[
    str, typer.Option("--reason", help="Why; shown to other operators.", show_default=False)
]
PoolName = Annotated[
    str,
    typer.Argument(metavar="[POOL]", help="The pool's name.", autocompletion=complete_pool),
    A_POOL,
]
Everywhere = Annotated[bool, typer.Option("--fleet", help="All pools.")]
HEADERS: Final = (
    "pool",
    "breaker",
    "age",
    "since",
    "out of service",
    "disruptions",
    "resets",
    "unhealthy, waiting",
    "why",
)


@commands.command("show")
@everyday_command
async def show(
    fleet: FleetAccess, pool: PoolName = "", output: ListOutput = console.LISTING
) -> None:
    """Show each pool's breaker and its budget, and the fleet's."""
    items = await fleet.pages("pools", Query(pool=pool))
    budget = await fleet.budget()
    views = sorted(decode_pools(items), key=lambda each: each.name)
    if output.is_data:
        console.write_data(output, {"pools": items, "fleet": budget})
        return
    now = datetime.now(UTC)
    console.write_table(HEADERS, [row(each, now) for each in views], output=output)
    if output.is_bare:
        return
    console.write("\n" + fleet_line(budget))
    for each in views:
        if each.breaker != "closed":
            console.write(escape_line(next_line(each)))


def row(pool: PoolView, now: datetime) -> tuple[str, ...]:
    """Return a table with one row per pool."""
    state = pool.breaker
    if pool.breaker_forced:
        state += ", by hand"
    elif state == "closed" and pool.ramp:
        state += f", {pool.ramp} at once"
    since = pool.breaker_since
    why = pool.breaker_reason if state != "closed" else ""
    by = f"{pool.breaker_by}: " if pool.breaker_by and why else ""
    return (
        pool.name,
        state,
        *((age_since_text(since, now), _time(since)) if state != "closed" else ("-", "-")),
        usage_text(pool.unavailable, pool.unavailable_limit),
        rate_text(pool.disruptions, pool.disruptions_limit, pool.window_seconds),
        usage_text(pool.resets, pool.resets_limit),
        str(pool.awaiting_remediation or "-"),
        f"{by}{why}" or "-",
    )


def fleet_line(budget: FleetBudgetView) -> str:
    """The fleet's budget and how much of it is used."""
    if budget.lifted:
        return "The fleet's budget is unlimited; the budget of each pool applies."
    rate = rate_text(budget.disruptions, budget.disruptions_limit, budget.window_seconds)
    return (
        f"Of the fleet ({budget.desired} nodes): "
        f"{usage_text(budget.unavailable, budget.unavailable_limit)} out of service, "
        f"{rate} disruptions, {usage_text(budget.resets, budget.resets_limit)} resets and reboots."
    )


def next_line(pool: PoolView) -> str:
    """Return what happens next, and what an operator can do."""
    if pool.breaker_forced:
        then = "it stays open until an operator closes it"
    elif pool.breaker == "half-open":
        then = f"{pool.breaker_probe} is the probe; if it succeeds, others follow"
    elif pool.breaker_cause == "wave":
        then = "only nodes that another source confirms are remediated, one at a time"
    elif pool.breaker_probe_at:
        then = f"one probe is tried at {_time(pool.breaker_probe_at)} at the earliest"
    else:
        then = "when that has passed, one probe is tried, and if it succeeds others follow"
    if pool.breaker_cause.endswith("rate"):
        on = "Closing it does not raise the budget. One node by hand: navarch replace NODE"
    else:
        on = f"To resume now: navarch breaker close {pool.name} --reason …"
    return f"{pool.name}: {then}. {on}"


def _time(text: str) -> str:
    return local_time_text(text) if text else "-"


def _request_command(verb: str) -> Callable[..., None]:
    async def command(
        connection: FleetAccess,
        reason: Reason,
        pool: PoolName = "",
        *,
        fleet: Everywhere = False,
        output: Output = console.Format.TABLE,
    ) -> None:
        if bool(pool) == fleet:
            raise NavarchError("name one pool, or give --fleet for all pools")
        try:
            request = msgspec.convert({"reason": reason}, BreakerRequest)
        except msgspec.ValidationError as error:
            raise NavarchError(f"--reason: {error}") from error
        views = [] if pool else decode_pools(await connection.pages("pools", Query()))
        for name in [pool] if pool else sorted(each.name for each in views):
            answer = await connection.request(name, verb, request)
            console.write_message(require_accepted(answer), output)

    return everyday_command(command)


for _verb, _help in (
    ("open", "Start no remediation until the breaker is closed. Open sagas continue."),
    ("close", "Allow remediation again: slowly at first, and within the budget."),
):
    commands.command(_verb, help=_help)(_request_command(f"breaker-{_verb}"))
