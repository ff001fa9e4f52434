"""`navarch identity accept`: what a node's agent reports becomes the node's identity."""

from typing import Annotated

import typer

from schemas.identity_orders import IdentityAccept
from schemas.operations import ACCEPT_IDENTITY
from services.cli import console
from services.cli.command_options import Node, Output, command_group
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.fleet_names import find_node
from services.operator_text.safe_text import escape_line
from services.primitives.errors import NavarchError

commands = command_group("The identity of a node's machine, which is fixed at admission.")


@commands.command("accept")
@everyday_command
async def accept(
    fleet: FleetAccess,
    node: Node,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the difference, and accept nothing.")
    ] = False,
    output: Output = console.Format.TABLE,
) -> None:
    """Accept the GPUs, rack and machine that a node's agent reports now.

    After a repair or a move that Navarch has not ordered. The difference is shown.
    """
    view, _ = await find_node(fleet, node)
    same = f"{view.id} reports the identity that it was admitted with"
    if not view.identity_claim and not dry_run:
        raise NavarchError(same)
    difference = escape_line(view.identity_difference)
    if dry_run:
        if output.is_data:
            console.write_data(output, {"node": view.id, "difference": view.identity_difference})
        else:
            console.write(f"{view.id} reports {difference}; not accepted" if difference else same)
        return
    request = IdentityAccept(pool=view.pool, node=view.id, claim=view.identity_claim)
    answer = await fleet.perform(ACCEPT_IDENTITY, request)
    if output.is_data:
        console.write_data(output, answer)
        return
    console.write(f"{view.id}: accepted {difference}")
