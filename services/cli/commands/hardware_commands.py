"""`navarch hardware list|add|forget`: the denylist of GPUs and hosts."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

from schemas.hardware_denylist import HardwareAdd, HardwareForget, HardwareRecord
from schemas.operations import ADD_HARDWARE, FORGET_HARDWARE
from services.cli import console
from services.cli.command_options import ListOutput, Output, command_group, node_option
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.fleet_names import A_NODE, Kind, complete, find_node
from services.operator_text.quantities import age_since, local_time
from services.primitives.errors import NavarchError

commands = command_group("The denylist: GPUs and hosts that are not admitted again.")
HEADERS = ("kind", "identity", "age", "since", "node", "reported by", "reason")
KIND_HELP = "gpu: a UUID; serial: a serial number; host: PROVIDER/IDENTITY."
LISTED_NODE = Kind("nodes", "no hardware is listed of a node", "navarch hardware list")
HardwareKind = Literal["gpu", "serial", "host"]
KindArgument = Annotated[HardwareKind, typer.Argument(help=KIND_HELP)]
Value = Annotated[str, typer.Argument(metavar="IDENTITY", show_default=False)]


@commands.command("list")
@everyday_command
async def list_hardware(fleet: FleetAccess, output: ListOutput = console.LISTING) -> None:
    """List the denylist: since when, by whose report, and why."""
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
    node: Annotated[str, node_option("All that the reports of this node's agent made.")] = "",
    of: Annotated[str, node_option("All of this node, by operators too.", "--of")] = "",
    output: Output = console.Format.TABLE,
) -> None:
    """Remove a GPU or a host from the denylist, or all of a node's.

    It was repaired, or was not the cause. `--node` undoes what a node's agent has had listed, also
    of machines that it does not have; `--of` removes what was listed as hardware of a node, also
    by operators, and what the node has now.
    """
    if sum((bool(node), bool(of), bool(kind and value))) != 1:
        raise typer.BadParameter("name KIND and IDENTITY, --node NODE or --of NODE")
    forgotten: list[HardwareRecord] = []
    for request in await _chosen(fleet, kind, value, node, of):
        found = await fleet.perform(FORGET_HARDWARE, request)
        forgotten += found
    _write(forgotten, output)


async def _chosen(
    fleet: FleetAccess, kind: HardwareKind | None, value: str, node: str, of: str
) -> list[HardwareForget]:
    if kind is not None:
        return [HardwareForget(kind=kind, value=value)]
    listed = await fleet.hardware()
    if node:
        name = complete(node, (each.reporter for each in listed), LISTED_NODE)
        chosen = [each for each in listed if each.reporter == name]
    else:
        chosen = await _of_node(fleet, listed, of)
    return [HardwareForget(kind=each.kind, value=each.value) for each in chosen]


async def _of_node(
    fleet: FleetAccess, listed: list[HardwareRecord], node: str
) -> list[HardwareRecord]:
    """Return what is listed of a node: under its name, or of the GPUs that it has."""
    has: set[str] = set()
    with suppress(NavarchError):
        view, _ = await find_node(fleet, node)
        node, has = view.id, {text for gpu in view.gpus for text in (gpu.uuid, gpu.serial)}
    found = [each for each in listed if each.value in has]
    if not found:
        node = complete(node, (each.node for each in listed), LISTED_NODE)
    return [each for each in listed if each in found or each.node == node]


def _write(found: list[HardwareRecord], output: console.Format) -> None:
    if output.is_data:
        console.write_data(output, found)
        return
    now = datetime.now(UTC)
    rows = [
        (
            *(each.kind, each.value, age_since(each.since, now), local_time(each.since)),
            each.node or "-",
            *(each.by or f"agent of {each.node}", each.reason),
        )
        for each in found
    ]
    console.write_table(HEADERS, rows, "No hardware is on the denylist.", output)
