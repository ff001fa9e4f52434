"""`navarch instances`, `leaked` and `sweep`: the instances that cost money, and those that leaked.

All three query the provisioner.
"""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
import typer

from schemas.enums import FORGOTTEN
from schemas.node_disconnections import ReadmitRequest
from schemas.operations import PLAN_SWEEP, READMIT, SWEEP
from schemas.sweeps import SweepRequest
from services.cli import console
from services.cli.command_options import ListOutput, Node, Output, Pool
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.fleet_names import find_node
from services.cli.text import instances_text
from services.operator_text.safe_text import escape_line
from services.primitives.errors import NavarchError

REMOVABLE: Final = ("terminate", "orphan", "note")
"""Lines of a sweep's plan that a command to terminate may name."""
LOST_STATES: Final = ("leaked", "orphaned")


@everyday_command
async def instances(
    fleet: FleetAccess,
    pool: Pool = "",
    *,
    terminated: Annotated[bool, typer.Option("--all", help="Include terminated ones.")] = False,
    output: ListOutput = console.LISTING,
) -> None:
    """List every instance: its state, age and price."""
    records = await fleet.instances(pool, terminated=terminated)
    if output.is_data:
        console.write_data(output, records)
        return
    if rows := instances_text.instance_rows(records, datetime.now(UTC)):
        console.write_table(instances_text.INSTANCE_HEADERS, rows, output=output)
    if not output.is_bare:
        console.write(instances_text.instances_summary(records))


@everyday_command
async def leaked(fleet: FleetAccess, pool: Pool = "", output: ListOutput = console.LISTING) -> None:
    """List leaked and orphaned instances.

    Since when, why, and what they cost.
    """
    records = await fleet.instances(pool, terminated=False)
    leaks = [each for each in records if each.state in LOST_STATES]
    if output.is_data:
        console.write_data(output, leaks)
        return
    now = datetime.now(UTC)
    if rows := instances_text.leaked_rows(leaks, now):
        console.write_table(instances_text.LEAKED_HEADERS, rows, output=output)
    if output.is_bare:
        return
    console.write(instances_text.leaks_summary(records, now))
    with suppress(NavarchError):  # a provisioner that does not answer hides no leak
        plan = await fleet.perform(PLAN_SWEEP, SweepRequest())
        if held := instances_text.held_lines(plan):
            rows = instances_text.sweep_rows(msgspec.structs.replace(plan, lines=held))
            console.write_table(instances_text.SWEEP_HEADERS, rows, output=output)
            console.write(escape_line(instances_text.held_note(held)))


@everyday_command
async def sweep(
    fleet: FleetAccess,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what a sweep would do, and change nothing.")
    ] = False,
    adopt: Annotated[
        list[str] | None,
        typer.Option("--adopt", help="Make this orphan, or a forgotten node, one of its pool."),
    ] = None,
    terminate: Annotated[
        list[str] | None, typer.Option("--terminate", help="Terminate this orphan.")
    ] = None,
    output: Output = console.Format.TABLE,
) -> None:
    """Resolve differences between providers and records now.

    The provisioner also sweeps every half minute by itself.
    """
    request = SweepRequest(adopt=tuple(adopt or ()), terminate=tuple(terminate or ()))
    await _check_orphans(fleet, set(request.adopt), set(request.terminate))
    answer = await fleet.perform(PLAN_SWEEP if dry_run else SWEEP, request)
    if output.is_data:
        console.write_data(output, answer)
        return
    if rows := instances_text.sweep_rows(answer):
        console.write_table(instances_text.SWEEP_HEADERS, rows, output=output)
    for line in instances_text.sweep_notes(answer):
        console.write(escape_line(line))


@everyday_command
async def readmit(
    fleet: FleetAccess,
    node: Node,
    output: Output = console.Format.TABLE,
) -> None:
    """Have a disconnected node's credentials accepted again."""
    view, _ = await find_node(fleet, node)
    answer = await fleet.perform(READMIT, ReadmitRequest(pool=view.pool, node=view.id))
    if output.is_data:
        console.write_data(output, answer)
        return
    console.write(
        f"{view.id}: its credentials are accepted again. Its agent connects within seconds, or "
        "within fifteen minutes where they have expired; if it stays silent, it is replaced after "
        "twenty."
    )


async def _check_orphans(fleet: FleetAccess, adopt: set[str], terminate: set[str]) -> None:
    """Refuse names that no orphan has, nor what else a command may remove."""
    if not adopt | terminate:
        return
    found = await fleet.instances("", terminated=True)
    forgotten = {each.instance for each in found if each.error == FORGOTTEN}
    orphans = {each.instance for each in found if each.state == "orphaned"}
    unknown = (adopt - forgotten - orphans) | (terminate - orphans)
    if unknown and not unknown & adopt:
        plan = await fleet.perform(PLAN_SWEEP, SweepRequest())
        shown = [each for each in plan.lines if each.verb in REMOVABLE]
        unknown -= {name for each in shown for name in (each.instance, each.provider_id)}
    if unknown:
        raise NavarchError(f"there is no orphan {min(unknown)!r}; see navarch leaked")
