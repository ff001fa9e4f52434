"""`navarch hold` and `navarch release`: keep automation off a node for a limited time."""

from typing import Annotated

import typer

from services.cli.command_options import Config, NatsUrl, Output
from services.cli.console import Format
from services.cli.node_requests import request_node

Node = Annotated[str, typer.Argument(help="The node's name.", show_default=False)]


def hold(
    node: Node,
    for_: Annotated[
        str, typer.Option("--for", help="How long: 30m, 2h, at most 168h.", show_default=False)
    ],
    reason: Annotated[
        str, typer.Option("--reason", help="Why; shown to other operators.", show_default=False)
    ],
    *,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Keep all automation off a node until a time.

    The hold then ends without further action.
    """
    from schemas.duration import parse_duration  # noqa: PLC0415
    from schemas.operator_requests import HoldRequest  # noqa: PLC0415

    try:
        seconds = parse_duration(for_)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--for") from error
    request = HoldRequest(node=node, for_=seconds, reason=reason)
    request_node("hold", node, request, nats_url, config, output)


def release(
    node: Node,
    reason: Annotated[str, typer.Option("--reason", help="Why; shown in the events.")] = "",
    *,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """End a hold early."""
    request_node("release", node, reason, nats_url, config, output)
