"""The commands of `navarch` and their options.

The simulator, the server, health policies and the bus's client are imported by the commands that
need them, so that `navarch --help` is quick.
"""

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from schemas.operator_requests import DrainRequest, NodeRequest, ScaleRequest
from services.cli import console, dry_run_output, progress_board
from services.cli.change_waits import waiting
from services.cli.command_groups import SectionedGroup
from services.cli.command_options import (
    Config,
    DryRun,
    Mode,
    Node,
    Nodes,
    Output,
    Pool,
    Since,
    Timeout,
    Wait,
    WaitTimeout,
    drain_request,
    start_time,
)
from services.cli.commands import (
    alert_commands,
    audit_command,
    backup_commands,
    breaker_commands,
    config_commands,
    diagnose_command,
    doctor_command,
    evidence_command,
    gateway_commands,
    hardware_commands,
    hold_commands,
    instance_commands,
    list_command,
    logs_command,
    mcp_command,
    nats_config_commands,
    offerings_command,
    policy_commands,
    pool_commands,
    report_command,
    saga_commands,
    slurm_power_commands,
    ssh_command,
    status_command,
    top_command,
    up_command,
    version_command,
    workload_commands,
)
from services.cli.commands.simulator import simulator_commands
from services.cli.console import Format
from services.cli.fleet_access import FleetAccess
from services.cli.fleet_connection import everyday_command
from services.cli.live_names import complete_any, complete_node, complete_pool
from services.cli.node_names import find_node, find_nodes, full_name
from services.cli.node_requests import request_nodes
from services.cli.text import tables
from services.fleet_client.fleet_client import require_accepted
from services.fleet_client.why_text import why_page
from services.primitives.errors import NavarchError

app = typer.Typer(
    name="navarch",
    help="Keeps a GPU fleet healthy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=SectionedGroup,
)
for group, module in (
    ("alerts", alert_commands),
    ("policy", policy_commands),
    ("config", config_commands),
    ("saga", saga_commands),
    ("pool", pool_commands),
    ("breaker", breaker_commands),
    ("hardware", hardware_commands),
    ("nats-config", nats_config_commands),
    ("gateway", gateway_commands),
    ("workload", workload_commands),
    ("slurm", slurm_power_commands),
    ("simulator", simulator_commands),
):
    app.add_typer(module.commands, name=group)


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version  # noqa: PLC0415

        console.write(f"navarch {version('navarch')}")
        raise typer.Exit


@app.callback()
def navarch(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Keeps a GPU fleet healthy."""


Reason = Annotated[str, typer.Option("--reason", help="Why; shown in the events.")]


# --- queries -------------------------------------------------------------------------------------


@app.command("get")
@everyday_command
async def get(fleet: FleetAccess, node: Node, output: Output = Format.TABLE) -> None:
    """Show one node with its GPUs and its latest faults."""
    view, data = await find_node(fleet, node)
    if output.is_data:
        console.write_data(output, data)
    else:
        console.write(tables.node_page(view, colour=console.colour()))


@app.command("events")
@everyday_command
async def events(
    fleet: FleetAccess,
    pool: Pool = "",
    node: Annotated[
        str, typer.Option("--node", help="Only this node.", autocompletion=complete_node)
    ] = "",
    since: Since = "",
    count: Annotated[
        int, typer.Option("--count", min=0, help="Stop after this many events; 0: never.")
    ] = 0,
    output: Output = Format.TABLE,
) -> None:
    """Print events as they happen, one per line."""
    start = start_time(since)
    await fleet.check_pool(pool)
    if not since and sys.stderr.isatty():
        sys.stderr.write("Waiting for events; press Ctrl-C to stop.\n")
    await console.write_stream(
        fleet.follow_events(pool=pool, node=node, since=start), output, count=count
    )


@app.command("timeline")
@everyday_command
async def timeline(fleet: FleetAccess, node: Node, output: Output = Format.TABLE) -> None:
    """Show everything that happened to a node, with milliseconds."""
    rows = await fleet.timeline(node)
    if not rows:
        rows = await fleet.timeline(await full_name(fleet, node, terminated=True))
    if output.is_data:
        console.write_data(output, rows)
    elif rows:
        console.write(tables.timeline(rows, colour=console.colour()))
    if not rows:
        raise NavarchError(f"no events about a node {node!r}: `navarch list --all` lists the nodes")


@app.command("why")
@everyday_command
async def why(
    fleet: FleetAccess,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NODE|POOL|SAGA",
            help="What to explain.",
            show_default=False,
            autocompletion=complete_any,
        ),
    ],
    output: Output = Format.TABLE,
) -> None:
    """Explain the state of a node, pool or saga.

    What was observed, decided, tried and refused, and what it waits for.
    """
    answer = await fleet.why(name)
    if output.is_data:
        console.write_data(output, answer)
    else:
        console.write(why_page(answer))


app.command("status")(status_command.status)
app.command("top")(top_command.top)
app.command("doctor")(doctor_command.doctor)
app.command("diagnose")(diagnose_command.diagnose)
app.command("logs")(logs_command.logs)
app.command("version")(version_command.version)
app.command("list")(list_command.list_nodes)
app.command("instances")(instance_commands.instances)
app.command("leaked")(instance_commands.leaked)
app.command("audit")(audit_command.audit)
app.command("evidence")(evidence_command.evidence)
app.command("report")(report_command.report)
app.command("offerings")(offerings_command.offerings)
app.command("mcp")(mcp_command.mcp)


# --- requests ------------------------------------------------------------------------------------


def _node_command(verb: str) -> Callable[..., None]:
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

    return everyday_command(command)


def _drain_command(verb: str) -> Callable[..., None]:
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

    return everyday_command(command)


for _verb, _make, _help in (
    ("cordon", _node_command, "Stop placing new work on a node."),
    ("uncordon", _node_command, "Allow new work on a node again; its health is judged again."),
    ("drain", _drain_command, "Cordon a node and let its work leave."),
    ("replace", _drain_command, "Drain and terminate a node, and launch another."),
    ("reset-gpu", _drain_command, "Drain a node, reset its GPUs, and test it."),
    ("reboot", _drain_command, "Drain a node, reboot it, and test it."),
    ("terminate", _drain_command, "Drain and terminate a node; its pool is one smaller."),
):
    app.command(_verb, help=_help)(_make(_verb))


app.command("sweep")(instance_commands.sweep)
app.command("up")(up_command.up)
app.command("down")(up_command.down)
app.command("ssh", context_settings={"ignore_unknown_options": True})(ssh_command.ssh)
app.command("hold")(hold_commands.hold)
app.command("release")(hold_commands.release)
app.command("readmit")(instance_commands.readmit)


@app.command("scale")
@everyday_command
async def scale(
    fleet: FleetAccess,
    pool: Annotated[
        str,
        typer.Argument(help="The pool's name.", show_default=False, autocompletion=complete_pool),
    ],
    nodes: Annotated[int, typer.Argument(min=0, help="The desired size.", show_default=False)],
    *,
    wait: Wait = False,
    wait_timeout: WaitTimeout = "",
    output: Output = Format.TABLE,
) -> None:
    """Set the desired size of a pool."""
    answer = await fleet.request(pool, "scale", ScaleRequest(nodes=nodes))
    console.write_message(require_accepted(answer), output)
    if wait:
        async with waiting(wait_timeout, pool):
            await progress_board.show_resize(fleet, pool, nodes, quiet=output.is_data)


# --- running -------------------------------------------------------------------------------------


@app.command("serve")
def serve(
    config: Config = None,
    *,
    replicas: Annotated[int, typer.Option(min=1, max=5, help="Replicas of each service.")] = 1,
    is_open: Annotated[
        bool, typer.Option("--open", help="Without credentials: every local user may do anything.")
    ] = False,
) -> None:
    """Run all services on this machine.

    It starts a nats-server, for this user alone, unless NAVARCH_NATS_URL names one.
    """
    from services.cli.commands.serve_command import serve as run  # noqa: PLC0415

    raise typer.Exit(run(config, replicas, is_open=is_open))


app.command("backup")(backup_commands.backup)
app.command("restore")(backup_commands.restore)


@app.command("demo")
def demo() -> None:
    """Run a small fleet here, break a GPU, replace the node."""
    from services.cli.commands.demo_command import demo as run  # noqa: PLC0415

    raise typer.Exit(run())
