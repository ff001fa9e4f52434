"""`navarch hold` and `navarch release`: keep automation off a node for a limited time."""

from typing import Annotated

import typer

from schemas.duration import parse_duration
from schemas.operator_requests import HoldRequest, NodeRequest
from services.cli.command_options import Nodes, Output
from services.cli.console import Format
from services.cli.fleet_access import FleetAccess
from services.cli.fleet_connection import everyday_command
from services.cli.node_requests import request_nodes


@everyday_command
async def hold(
    fleet: FleetAccess,
    nodes: Nodes,
    for_: Annotated[
        str, typer.Option("--for", help="How long: 30m, 2h, at most 168h.", show_default=False)
    ],
    reason: Annotated[
        str, typer.Option("--reason", help="Why; shown to other operators.", show_default=False)
    ],
    output: Output = Format.TABLE,
) -> None:
    """Keep all automation off a node until a time.

    The hold then ends without further action.
    """
    try:
        seconds = parse_duration(for_)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--for") from error

    def request(node: str) -> HoldRequest:
        return HoldRequest(node=node, for_=seconds, reason=reason)

    await request_nodes(fleet, "hold", nodes, request, output)


@everyday_command
async def release(
    fleet: FleetAccess,
    nodes: Nodes,
    reason: Annotated[str, typer.Option("--reason", help="Why; shown in the events.")] = "",
    output: Output = Format.TABLE,
) -> None:
    """End a hold early."""

    def request(node: str) -> NodeRequest:
        return NodeRequest(node=node, reason=reason)

    await request_nodes(fleet, "release", nodes, request, output)
