"""Implements `navarch workload check` and `done`: a pool's workload system, and its callback."""

from collections.abc import Awaitable
from typing import Annotated, Final

import typer

from schemas.operations import CHECK_WORKLOAD, REPORT_WORK_DONE
from schemas.work_done import WorkDone, WorkDoneAccepted
from schemas.workload_checks import WorkloadCheckRequest
from services.cli import console
from services.cli.command_options import Node, Output, PoolName, command_group, node_option
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.fleet_names import A_NODE, GONE, named, node_names
from services.cli.live_names import complete_saga
from services.fleet_client.local_user import requester

commands = command_group("The workload systems: Slurm, Kubernetes, webhooks.")
FAILED: Final = 1


@commands.command("check")
@everyday_command
async def check(
    fleet: FleetAccess,
    pool: PoolName,
    node: Annotated[
        str, node_option("Also cordon this node and uncordon it at once."), A_NODE
    ] = "",
    output: Output = console.Format.TABLE,
) -> None:
    """Try a pool's workload system, and the rights there.

    Ends with exit code 1 if anything fails.
    """
    request = WorkloadCheckRequest(pool=pool, node=node or None, by=requester())
    answer = await fleet.perform(CHECK_WORKLOAD, request)
    if output.is_data:
        console.write_data(output, answer)
    else:
        console.write(f"notifier: {answer.notifier}")
        for each in answer.checks:
            console.write(
                f"{'ok  ' if each.passed else 'FAIL'}  {each.what}: {each.detail or 'ok'}"
            )
            if each.remedy:
                console.write(f"      {each.remedy}")
    if not all(each.passed for each in answer.checks):
        raise typer.Exit(FAILED)


@commands.command("done")
@everyday_command
async def done(
    fleet: FleetAccess,
    node: Node,
    saga: Annotated[
        str,
        typer.Option(
            "--saga",
            help="The saga in the drain's order; without it, the node's current one.",
            autocompletion=complete_saga,
        ),
    ] = "",
    output: Output = console.Format.TABLE,
) -> None:
    """Say that the work has left a node that is being drained.

    For workload systems: the drain asks at once instead of at its next interval. It changes nothing
    unless that saga waits for the node. It may be repeated.
    """

    def ask(name: str) -> Awaitable[WorkDoneAccepted]:
        return fleet.perform(REPORT_WORK_DONE, WorkDone(node=name, saga=saga))

    answer = await named(node, ask, lambda: node_names(fleet), GONE)
    if output.is_data:
        console.write_data(output, answer)
    else:
        console.write(f"{answer.node}: work has left; {answer.saga} goes on once it is confirmed")
