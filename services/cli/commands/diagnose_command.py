"""`navarch diagnose`: has a node's agent test its host, and prints what it found."""

from typing import Annotated

import msgspec
import typer

from schemas.agent_commands import DiagnoseRequest
from schemas.duration import parse_duration
from services.cli import console
from services.cli.command_options import Node, Output
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.node_names import find_node
from services.primitives.errors import NavarchError

HEADERS = ("check", "", "what was found")
FAILED = 3
"""Exit code where a test failed."""


@everyday_command
async def diagnose(
    fleet: FleetAccess,
    node: Node,
    *,
    checks: Annotated[
        list[str] | None,
        typer.Option(
            "--check",
            help="boot, nvidia-smi, memory, dcgm, nvbandwidth, nccl, burn or a plugin's; may be "
            "repeated. Default: boot.",
        ),
    ] = None,
    level: Annotated[
        int, typer.Option(min=1, max=4, help="Of dcgm; from 2 on it needs the GPUs exclusively.")
    ] = 1,
    seconds: Annotated[int, typer.Option(min=1, max=86_400, help="Of burn: how long.")] = 60,
    wait: Annotated[
        str, typer.Option("--timeout", metavar="10m", help="How long to wait for the answer.")
    ] = "10m",
    output: Output = console.Format.TABLE,
) -> None:
    """Test a node's host and GPUs now.

    Exit code 3: a test failed. A test that needs the GPUs is refused while a job has them.
    """
    try:
        seconds_max = parse_duration(wait)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--timeout") from error
    view, _ = await find_node(fleet, node)
    if view.status == "terminated":
        raise NavarchError(f"{view.id} is terminated: it has no agent")
    request = DiagnoseRequest(checks=tuple(checks or ("boot",)), level=level, seconds=seconds)
    found = await fleet.diagnose(view, request, seconds_max)
    if output.is_data:
        console.write_data(output, msgspec.json.encode(found))
    else:
        rows = [
            (each.name, "ok" if each.ok else "failed", each.detail or "-") for each in found.checks
        ]
        console.write_table(HEADERS, rows, f"{view.id}: no test was run.")
    if not found.ok:
        raise typer.Exit(FAILED)
