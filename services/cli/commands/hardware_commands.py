"""`navarch hardware list|add|forget`: the denylist of GPUs and hosts."""

from typing import Annotated, Literal

import typer

from schemas.hardware_denylist import HardwareAdd, HardwareForget, HardwareRecord
from schemas.operations import ADD_HARDWARE, FORGET_HARDWARE
from services.cli import console
from services.cli.command_options import ListOutput, Output, command_group, node_option
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.fleet_names import A_NODE, Kind, complete
from services.operator_text.quantities import local_time

commands = command_group("The denylist: GPUs and hosts that are not admitted again.")
HEADERS = ("kind", "identity", "since", "node", "reason")
KIND_HELP = "gpu: a UUID; serial: a serial number; host: PROVIDER/IDENTITY."
LISTED_NODE = Kind("nodes", "no hardware is listed of a node", "navarch hardware list")
HardwareKind = Literal["gpu", "serial", "host"]
KindArgument = Annotated[HardwareKind, typer.Argument(help=KIND_HELP)]
Value = Annotated[str, typer.Argument(metavar="IDENTITY", show_default=False)]


@commands.command("list")
@everyday_command
async def list_hardware(fleet: FleetAccess, output: ListOutput = console.LISTING) -> None:
    """List the denylist: since when, from which node, and why."""
    _write(await fleet.hardware(), output)


@commands.command("add")
@everyday_command
async def add(
    fleet: FleetAccess,
    kind: KindArgument,
    value: Value,
    reason: Annotated[str, typer.Option("--reason", help="Why.", show_default=False)],
    node: Annotated[str, node_option("The node that had it."), A_NODE] = "",
    output: Output = console.Format.TABLE,
) -> None:
    """Add a GPU or a host to the denylist.

    Nodes in service are not affected.
    """
    request = HardwareAdd(kind=kind, value=value, reason=reason, node=node)
    _write(await fleet.perform(ADD_HARDWARE, request), output)


@commands.command("forget")
@everyday_command
async def forget(
    fleet: FleetAccess,
    kind: Annotated[HardwareKind | None, typer.Argument(help=KIND_HELP, show_default=False)] = None,
    value: Annotated[str, typer.Argument(metavar="IDENTITY", show_default=False)] = "",
    node: Annotated[str, node_option("All that this node has left.")] = "",
    output: Output = console.Format.TABLE,
) -> None:
    """Remove a GPU or a host from the denylist, or all of a node's.

    It was repaired, or was not the cause.
    """
    if bool(node) == bool(kind and value):
        raise typer.BadParameter("name KIND and IDENTITY, or --node NODE")
    forgotten: list[HardwareRecord] = []
    for request in await _chosen(fleet, kind, value, node):
        found = await fleet.perform(FORGET_HARDWARE, request)
        forgotten += found
    _write(forgotten, output)


async def _chosen(
    fleet: FleetAccess, kind: HardwareKind | None, value: str, node: str
) -> list[HardwareForget]:
    if kind is not None:
        return [HardwareForget(kind=kind, value=value)]
    listed = await fleet.hardware()
    name = complete(node, (each.node for each in listed), LISTED_NODE)
    return [HardwareForget(kind=e.kind, value=e.value) for e in listed if e.node == name]


def _write(found: list[HardwareRecord], output: console.Format) -> None:
    if output.is_data:
        console.write_data(output, found)
        return
    rows = [
        (each.kind, each.value, local_time(each.since), each.node or "-", each.reason)
        for each in found
    ]
    console.write_table(HEADERS, rows, "No hardware is on the denylist.", output)
