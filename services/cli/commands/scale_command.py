"""Implements `navarch scale`, which sets a pool's desired size."""

from typing import Annotated

import typer

from schemas.operator_requests import ScaleRequest
from services.cli import console, dry_run_output, progress_board
from services.cli.command_options import DryRun, Output, PoolName, Wait, WaitTimeout
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.node_requests import waiting
from services.fleet_client.fleet_client import require_accepted


@everyday_command
async def scale(
    fleet: FleetAccess,
    pool: PoolName,
    nodes: Annotated[int, typer.Argument(min=0, help="The desired size.", show_default=False)],
    *,
    dry_run: DryRun = False,
    wait: Wait = False,
    wait_timeout: WaitTimeout = "",
    output: Output = console.Format.TABLE,
) -> None:
    """Set the desired size of a pool."""
    if dry_run:
        requests = [(pool, ScaleRequest(nodes=nodes))]
        await dry_run_output.dry_runs(fleet, "scale", requests, output)
        return
    answer = await fleet.request(pool, "scale", ScaleRequest(nodes=nodes))
    console.write_message(require_accepted(answer), output)
    if wait:
        async with waiting(wait_timeout, pool):
            await progress_board.show_resize(fleet, pool, nodes, quiet=output.is_data)
