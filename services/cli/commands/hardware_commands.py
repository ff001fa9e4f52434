"""`navarch hardware list|add|forget`: GPUs and hosts that are not admitted any more."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from services.cli import console
from services.cli.command_options import Config, NatsUrl, Output
from services.cli.console import Format
from services.operator_text.quantities import local_time

commands = typer.Typer(
    name="hardware",
    help="Hardware that is refused when a provider hands it back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
HEADERS = ("kind", "identity", "since", "node", "reason")
Kind = Annotated[
    Literal["gpu", "serial", "host"],
    typer.Argument(help="gpu: its UUID; serial: its serial; host: <provider>/<identity>."),
]
Value = Annotated[str, typer.Argument(metavar="IDENTITY", show_default=False)]


@commands.command("list")
def list_hardware(
    nats_url: NatsUrl = "", config: Config = None, output: Output = Format.TABLE
) -> None:
    """List what is known to be bad: since when, of which node, and why."""
    asyncio.run(_told("hardware", None, nats_url, config, output))


@commands.command("add")
def add(
    kind: Kind,
    value: Value,
    reason: Annotated[str, typer.Option("--reason", help="Why.", show_default=False)],
    node: Annotated[str, typer.Option("--node", help="The node that it was seen in.")] = "",
    *,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Refuse a GPU or a host from now on.

    Nodes in service stay as they are.
    """
    from schemas.hardware_denylist import HardwareAdd  # noqa: PLC0415
    from services.cli.bus_client import asker  # noqa: PLC0415

    asked = HardwareAdd(kind=kind, value=value, reason=reason, node=node, by=asker())
    asyncio.run(_told("hardware-add", asked, nats_url, config, output))


@commands.command("forget")
def forget(
    kind: Kind,
    value: Value,
    *,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Admit a GPU or a host again.

    Because it was mended, or was not the cause.
    """
    from schemas.hardware_denylist import HardwareForget  # noqa: PLC0415
    from services.cli.bus_client import asker  # noqa: PLC0415

    asked = HardwareForget(kind=kind, value=value, by=asker())
    asyncio.run(_told("hardware-forget", asked, nats_url, config, output))


def _told(
    name: str, asked: msgspec.Struct | None, nats_url: str, config: Path | None, output: Format
) -> Coroutine[Any, Any, None]:
    async def work() -> None:
        from schemas.fleet_queries import Query  # noqa: PLC0415
        from schemas.hardware_denylist import HardwareRecord  # noqa: PLC0415
        from services.cli.bus_client import connected  # noqa: PLC0415
        from services.cli.fleet_discovery import find_bus  # noqa: PLC0415

        async with connected(find_bus(nats_url, config)) as fleet:
            data = await fleet.ask(name, asked if asked is not None else Query())
        if output is Format.JSON:
            console.write_json(data)
            return
        found = msgspec.json.decode(data, type=list[HardwareRecord])
        rows = [
            (each.kind, each.value, local_time(each.since), each.node or "-", each.reason)
            for each in found
        ]
        console.write_table(HEADERS, rows, "No hardware is on the denylist.")

    return work()
