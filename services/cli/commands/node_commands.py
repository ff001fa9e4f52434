"""Requests about nodes: `cordon`, `drain`, `replace`, `reboot`, `hold` and the like."""

from collections.abc import Callable
from typing import Annotated

import typer

from schemas.duration import parse_duration
from schemas.operations import CHANGE
from schemas.operator_requests import DrainRequest, HoldRequest, NodeRequest
from services.cli.batch_orders import Selection, order_nodes
from services.cli.command_options import (
    AtMost,
    DryRun,
    FromFile,
    Mode,
    Nodes,
    Output,
    Reason,
    Selector,
    SomeNodes,
    Timeout,
    Wait,
    WaitTimeout,
    Yes,
    drain_request,
)
from services.cli.console import Format
from services.cli.fleet_connection import FleetAccess, everyday_command
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


def _node_command(verb: str) -> Callable[..., None]:
    async def command(
        fleet: FleetAccess,
        nodes: SomeNodes = None,
        reason: Reason = "",
        *,
        selector: Selector = None,
        from_file: FromFile = "",
        at_most: AtMost = 0,
        dry_run: DryRun = False,
        yes: Yes = False,
        wait: Wait = False,
        wait_timeout: WaitTimeout = "",
        output: Output = Format.TABLE,
    ) -> None:
        def request(node: str) -> NodeRequest:
            return NodeRequest(node=node, reason=reason)

        await order_nodes(
            *(fleet, verb, Selection(nodes or (), selector or (), from_file, at_most), request),
            output,
            dry_run=dry_run,
            yes=yes,
            wait=wait,
            wait_timeout=wait_timeout,
        )

    command.__doc__ = CHANGE[verb].help
    return everyday_command(command)


def _drain_command(verb: str) -> Callable[..., None]:
    async def command(
        fleet: FleetAccess,
        nodes: SomeNodes = None,
        reason: Reason = "",
        *,
        selector: Selector = None,
        from_file: FromFile = "",
        at_most: AtMost = 0,
        mode: Mode = "",
        drain_timeout: Timeout = "",
        dry_run: DryRun = False,
        yes: Yes = False,
        wait: Wait = False,
        wait_timeout: WaitTimeout = "",
        output: Output = Format.TABLE,
    ) -> None:
        def request(node: str) -> DrainRequest:
            return drain_request(node, reason, mode, drain_timeout)

        await order_nodes(
            *(fleet, verb, Selection(nodes or (), selector or (), from_file, at_most), request),
            output,
            dry_run=dry_run,
            yes=yes,
            wait=wait,
            wait_timeout=wait_timeout,
        )

    command.__doc__ = CHANGE[verb].help
    return everyday_command(command)


cordon, uncordon = map(_node_command, ("cordon", "uncordon"))
drain, replace, reset_gpu, reboot, terminate = map(
    _drain_command, ("drain", "replace", "reset-gpu", "reboot", "terminate")
)
