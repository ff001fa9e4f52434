"""`cordon`, `uncordon`, `drain`, `replace`, `reset-gpu`, `reboot`, `terminate`."""

from collections.abc import Callable

from schemas.operator_requests import DrainRequest, NodeRequest
from services.cli import dry_run_output
from services.cli.command_options import (
    DryRun,
    Mode,
    Nodes,
    Output,
    Reason,
    Timeout,
    Wait,
    WaitTimeout,
    drain_request,
)
from services.cli.console import Format
from services.cli.fleet_access import FleetAccess
from services.cli.fleet_connection import everyday_command
from services.cli.node_names import find_nodes
from services.cli.node_requests import request_nodes


def _node_command(verb: str, text: str) -> Callable[..., None]:
    async def command(
        fleet: FleetAccess,
        nodes: Nodes,
        reason: Reason = "",
        *,
        wait: Wait = False,
        wait_timeout: WaitTimeout = "",
        output: Output = Format.TABLE,
    ) -> None:
        def request(node: str) -> NodeRequest:
            return NodeRequest(node=node, reason=reason)

        await request_nodes(
            fleet, verb, nodes, request, output, wait=wait, wait_timeout=wait_timeout
        )

    command.__doc__ = text
    return everyday_command(command)


def _drain_command(verb: str, text: str) -> Callable[..., None]:
    async def command(
        fleet: FleetAccess,
        nodes: Nodes,
        reason: Reason = "",
        *,
        mode: Mode = "",
        drain_timeout: Timeout = "",
        dry_run: DryRun = False,
        wait: Wait = False,
        wait_timeout: WaitTimeout = "",
        output: Output = Format.TABLE,
    ) -> None:
        def request(node: str) -> DrainRequest:
            return drain_request(node, reason, mode, drain_timeout)

        if not dry_run:
            await request_nodes(
                fleet, verb, nodes, request, output, wait=wait, wait_timeout=wait_timeout
            )
            return
        requests = [request(each.id) for each in await find_nodes(fleet, nodes)]
        await dry_run_output.dry_runs(fleet, verb, requests, output)

    command.__doc__ = text
    return everyday_command(command)


cordon = _node_command("cordon", "Stop placing new work on a node.")
uncordon = _node_command("uncordon", "Allow new work on a node again; its health is judged again.")
drain = _drain_command("drain", "Cordon a node and let its work leave.")
replace = _drain_command("replace", "Drain and terminate a node, and launch another.")
reset_gpu = _drain_command("reset-gpu", "Drain a node, reset its GPUs, and test it.")
reboot = _drain_command("reboot", "Drain a node, reboot it, and test it.")
terminate = _drain_command("terminate", "Drain and terminate a node; its pool is one smaller.")
