"""`navarch hold` and `navarch release`: keep automation off a node for a while.

Both are requests like any other, and the pool-manager answers them.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli import console
from services.cli.command_options import Config, NatsUrl, Output
from services.cli.console import Format

if TYPE_CHECKING:
    from services.cli.bus_client import Request

Node = Annotated[str, typer.Argument(help="The node's name.", show_default=False)]


def hold(
    node: Node,
    for_: Annotated[
        str, typer.Option("--for", help="How long: 30m, 2h, at most 168h.", show_default=False)
    ],
    reason: Annotated[
        str, typer.Option("--reason", help="Why; shown to whoever finds it.", show_default=False)
    ],
    *,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Keep everything automatic off a node for a while.

    It ends by itself.
    """
    from schemas.duration import parse_duration  # noqa: PLC0415
    from schemas.operator_requests import HoldRequest  # noqa: PLC0415

    try:
        span = parse_duration(for_)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--for") from error
    request = HoldRequest(node=node, for_=span, reason=reason)
    asyncio.run(_ask("hold", node, request, nats_url, config, output))


def release(
    node: Node,
    reason: Annotated[str, typer.Option("--reason", help="Why; it stands in the events.")] = "",
    *,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """End a hold before its time."""
    from schemas.operator_requests import NodeRequest  # noqa: PLC0415

    request = NodeRequest(node=node, reason=reason)
    asyncio.run(_ask("release", node, request, nats_url, config, output))


async def _ask(
    verb: str, node: str, request: "Request", nats_url: str, config: Path | None, output: Format
) -> None:
    from services.cli.bus_client import accepted, connected  # noqa: PLC0415
    from services.cli.fleet_discovery import find_bus  # noqa: PLC0415

    async with connected(find_bus(nats_url, config)) as fleet:
        view, _ = await fleet.node(node)
        console.write_message(accepted(await fleet.request(view.pool, verb, request)), output)
