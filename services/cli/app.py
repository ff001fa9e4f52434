"""The commands of `navarch` and their options.

The simulator, the server, health policies and the bus's client are imported by the commands that
need them, so that `navarch --help` is quick.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from schemas.fleet_queries import Query
from schemas.operator_requests import NodeRequest, ScaleRequest
from services.cli import console, dry_run_output
from services.cli.command_options import (
    Config,
    DryRun,
    Mode,
    Output,
    Pool,
    Timeout,
    checked_time,
    drain_request,
    start_time,
)
from services.cli.commands import (
    alert_commands,
    breaker_commands,
    config_commands,
    evidence_command,
    gateway_commands,
    hardware_commands,
    hold_commands,
    instance_commands,
    nats_config_commands,
    offerings_command,
    policy_commands,
    report_command,
    saga_commands,
    slurm_power_commands,
    ssh_command,
    up_command,
    workload_commands,
)
from services.cli.commands.simulator import simulator_commands
from services.cli.console import Format
from services.cli.fleet_connection import fleet_command
from services.cli.node_requests import request_node
from services.cli.text import tables
from services.fleet_client import fleet_client, stored_history
from services.fleet_client.fleet_client import FleetClient, require_accepted
from services.fleet_client.node_timeline import timeline_rows
from services.fleet_client.why_text import why_page
from services.primitives.errors import NavarchError

OPEN_BUS: Final = (
    "The bus is open: every client that reaches it controls the fleet (docs/security.md)."
)
FAILING: Final = 3
"""Exit code of `status` where something of the services fails."""

app = typer.Typer(
    name="navarch",
    help="Keeps a GPU fleet healthy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
for group, module in (
    ("alerts", alert_commands),
    ("policy", policy_commands),
    ("config", config_commands),
    ("saga", saga_commands),
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


Node = Annotated[str, typer.Argument(help="The node's name.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", help="Why; shown in the events.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is done, and print each step.")]


# --- queries -------------------------------------------------------------------------------------


@app.command("status")
@fleet_command
async def status(fleet: FleetClient, output: Output = Format.TABLE) -> None:
    """Show the pools and the open sagas."""
    pools, sagas, failures = await asyncio.gather(
        fleet.pages("pools", Query()), fleet.pages("sagas", Query()), fleet.failures()
    )
    views = sorted(fleet_client.decode_pools(pools), key=lambda each: each.name)
    if output is Format.JSON:
        found = {"pools": pools, "sagas": sagas, "failures": failures}
        console.write_json(found | {"expiries": fleet.expiries})
        raise typer.Exit(FAILING if failures else 0)
    rows = tables.pool_rows(views)
    console.write_table(tables.POOL_HEADERS, rows)
    if not rows:
        console.write("No pool is configured.")
    if warnings := tables.warnings(views):
        console.write("\n" + "\n".join(warnings))
    if advice := tables.advice_lines(views):
        console.write("\n" + "\n".join(advice))
    if sagas:
        opened = [fleet_client.decode_answer(dict[str, Any], each, "sagas") for each in sagas]
        console.write("\n" + tables.open_sagas_text(opened, colour=console.colour()))
        for line in await fleet.remaining_work(opened[: tables.SAGAS_SHOWN_MAX]):
            console.write(line)
    await instance_commands.write_orphans(fleet)
    if fleet.expiries:
        shown = [(each.what, each.at) for each in fleet.expiries]
        console.write(f"\n{tables.expiry_line(shown)}")
    if fleet.bus.is_open:
        console.write(f"\n{OPEN_BUS}")
    for each in failures:
        console.write(f"\n{tables.failure_line(each)}")
    if failures:
        raise typer.Exit(FAILING)


@app.command("list")
@fleet_command
async def list_nodes(
    fleet: FleetClient,
    pool: Pool = "",
    *,
    terminated: Annotated[bool, typer.Option("--all", help="Include terminated nodes.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """List the nodes."""
    await fleet.check_pool(pool)
    query = Query(pool=pool, terminated=terminated, limit=fleet_client.PAGE_NODES)
    items = await fleet.pages("nodes", query)
    views = fleet_client.decode_nodes(items)
    if output is Format.JSON:
        console.write_json(items)
        return
    rows = tables.node_rows(views)
    console.write_table(tables.NODE_HEADERS, rows)
    if not rows:
        console.write("No nodes. `navarch why POOL` explains what a pool waits for.")


@app.command("get")
@fleet_command
async def get(fleet: FleetClient, node: Node, output: Output = Format.TABLE) -> None:
    """Show one node with its GPUs and its latest faults."""
    view, data = await fleet.node(node)
    if output is Format.JSON:
        console.write_json(data)
    else:
        console.write(tables.node_page(view, colour=console.colour()))


@app.command("events")
@fleet_command
async def events(
    fleet: FleetClient,
    pool: Pool = "",
    node: Annotated[str, typer.Option("--node", help="Only this node.")] = "",
    since: Annotated[
        str,
        typer.Option(
            "--since",
            callback=checked_time,
            help="Start in the past: 10m, 2h, 2026-11-21T01:35:00Z.",
        ),
    ] = "",
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
@fleet_command
async def timeline(fleet: FleetClient, node: Node, output: Output = Format.TABLE) -> None:
    """Show everything that happened to a node, with milliseconds."""
    rows = timeline_rows(await fleet.node_history(node))
    if output is Format.JSON:
        console.write_json(rows)
    elif rows:
        console.write(tables.timeline(rows, colour=console.colour()))
    if not rows:
        raise NavarchError(f"no events about a node {node!r}: `navarch list --all` lists the nodes")


@app.command("why")
@fleet_command
async def why(
    fleet: FleetClient,
    name: Annotated[
        str, typer.Argument(metavar="NODE|POOL|SAGA", help="What to explain.", show_default=False)
    ],
    output: Output = Format.TABLE,
) -> None:
    """Explain the state of a node, pool or saga.

    What was observed, decided, tried and refused, and what it waits for.
    """
    answer = await stored_history.why(fleet, name)
    if output is Format.JSON:
        console.write_json(answer)
    else:
        console.write(why_page(answer))


app.command("instances")(instance_commands.instances)
app.command("leaked")(instance_commands.leaked)
app.command("evidence")(evidence_command.evidence)
app.command("report")(report_command.report)
app.command("offerings")(offerings_command.offerings)


# --- requests ------------------------------------------------------------------------------------


def _node_command(verb: str) -> Callable[..., None]:
    async def command(
        fleet: FleetClient,
        node: Node,
        reason: Reason = "",
        *,
        wait: Wait = False,
        output: Output = Format.TABLE,
    ) -> None:
        request = NodeRequest(node=node, reason=reason)
        await request_node(fleet, verb, request, output, wait=wait)

    return fleet_command(command)


def _drain_command(verb: str) -> Callable[..., None]:
    async def command(
        fleet: FleetClient,
        node: Node,
        reason: Reason = "",
        *,
        mode: Mode = "",
        drain_timeout: Timeout = "",
        dry_run: DryRun = False,
        wait: Wait = False,
        output: Output = Format.TABLE,
    ) -> None:
        request = drain_request(node, reason, mode, drain_timeout)
        if dry_run:
            await dry_run_output.dry_run(fleet, verb, request, output)
        else:
            await request_node(fleet, verb, request, output, wait=wait)

    return fleet_command(command)


for _verb, _make, _help in (
    ("cordon", _node_command, "Stop placing new work on a node."),
    ("uncordon", _node_command, "Allow new work on a node again; its health is judged again."),
    ("drain", _drain_command, "Cordon a node and let its work leave."),
    ("replace", _drain_command, "Drain and terminate a node, and launch another."),
    ("reset-gpu", _drain_command, "Drain a node, reset its GPUs, and test it."),
    ("reboot", _drain_command, "Drain a node, reboot it, and test it."),
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
@fleet_command
async def scale(
    fleet: FleetClient,
    pool: Annotated[str, typer.Argument(help="The pool's name.", show_default=False)],
    nodes: Annotated[int, typer.Argument(min=0, help="The desired size.", show_default=False)],
    output: Output = Format.TABLE,
) -> None:
    """Set the desired size of a pool."""
    answer = await fleet.request(pool, "scale", ScaleRequest(nodes=nodes))
    console.write_message(require_accepted(answer), output)


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


@app.command("demo")
def demo() -> None:
    """Run a small fleet here, break a GPU, replace the node."""
    from services.cli.commands.demo_command import demo as run  # noqa: PLC0415

    raise typer.Exit(run())
