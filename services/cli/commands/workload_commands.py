"""`navarch workload check` and `done`: a pool's workload system, and its callback."""

from typing import Annotated, Final

import typer

from schemas.permissions import WORK_DONE
from schemas.work_done import WorkDone, WorkDoneAccepted
from schemas.workload_checks import WorkloadCheckAnswer, WorkloadCheckRequest
from services.cli import console
from services.cli.command_options import Output
from services.cli.console import Format
from services.cli.fleet_connection import fleet_command
from services.fleet_client.fleet_client import FleetClient, decode_answer
from services.fleet_client.local_user import requester

commands = typer.Typer(
    name="workload",
    help="The workload systems: Slurm, Kubernetes, webhooks.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
FAILED: Final = 1
CHECK_SECONDS_MAX: Final = 60.0


@commands.command("check")
@fleet_command
async def check(
    fleet: FleetClient,
    pool: Annotated[str, typer.Argument(metavar="POOL", show_default=False)],
    node: Annotated[
        str, typer.Option("--node", help="Also cordon this node and uncordon it at once.")
    ] = "",
    output: Output = Format.TABLE,
) -> None:
    """Try a pool's workload system, and the rights there.

    Ends with exit code 1 if anything fails.
    """
    await fleet.check_pool(pool)
    request = WorkloadCheckRequest(pool=pool, node=node or None, by=requester())
    data = await fleet.query(
        "workload-check", request, timeout_seconds=CHECK_SECONDS_MAX, who="notifier"
    )
    answer = decode_answer(WorkloadCheckAnswer, data, "workload-check", "notifier")
    if output.is_data:
        console.write_data(output, data)
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
@fleet_command
async def done(
    fleet: FleetClient,
    node: Annotated[str, typer.Argument(metavar="NODE", show_default=False)],
    saga: Annotated[
        str,
        typer.Option(
            "--saga", help="The saga in the drain's order; without it, the node's current one."
        ),
    ] = "",
    output: Output = Format.TABLE,
) -> None:
    """Say that the work has left a node that is being drained.

    For workload systems: the drain asks at once instead of at its next interval. It changes nothing
    unless that saga waits for the node. It may be repeated.
    """
    data = await fleet.order(WORK_DONE, WorkDone(node=node, saga=saga), who="notifier")
    answer = decode_answer(WorkDoneAccepted, data, WORK_DONE, "notifier")
    if output.is_data:
        console.write_data(output, data)
    else:
        console.write(f"{answer.node}: work has left; {answer.saga} goes on once it is confirmed")
