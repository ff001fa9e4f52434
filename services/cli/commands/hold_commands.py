"""`navarch hold` and `navarch release`: keep automation off a node for a limited time."""

from typing import Annotated

import typer

from schemas.duration import parse_duration
from schemas.operator_requests import HoldRequest, NodeRequest
from services.cli.command_options import Output
from services.cli.console import Format
from services.cli.fleet_connection import fleet_command
from services.cli.node_requests import request_node
from services.fleet_client.fleet_client import FleetClient

Node = Annotated[str, typer.Argument(help="The node's name.", show_default=False)]


@fleet_command
async def hold(
    fleet: FleetClient,
    node: Node,
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
    request = HoldRequest(node=node, for_=seconds, reason=reason)
    await request_node(fleet, "hold", request, output)


@fleet_command
async def release(
    fleet: FleetClient,
    node: Node,
    reason: Annotated[str, typer.Option("--reason", help="Why; shown in the events.")] = "",
    output: Output = Format.TABLE,
) -> None:
    """End a hold early."""
    await request_node(fleet, "release", NodeRequest(node=node, reason=reason), output)
