"""The commands of `navarch`, and what each takes. What they do stands in the modules beside this.

Nothing heavy is imported before a command runs: `navarch --help` and completion must be quick.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from schemas.fleet_queries import Query
from schemas.operator_requests import ScaleRequest
from services.cli import console, dry_run_output
from services.cli.command_options import (
    Config,
    DryRun,
    Mode,
    NatsUrl,
    Output,
    Timeout,
    drain_request,
    moment,
)
from services.cli.commands import (
    breaker_commands,
    config_commands,
    evidence_command,
    hardware_commands,
    hold_commands,
    instance_commands,
    nats_config_command,
    offerings_command,
    policy_commands,
    report_command,
    saga_commands,
    ssh_command,
    up_command,
)
from services.cli.commands.simulator import simulator_commands
from services.cli.console import Format
from services.cli.node_requests import Where, ask_node
from services.primitives.errors import NavarchError

if TYPE_CHECKING:
    from services.cli.bus_client import Fleet

app = typer.Typer(
    name="navarch",
    help="Keeps a GPU fleet healthy: look at it, and ask things of it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
for group, module in (
    ("policy", policy_commands),
    ("config", config_commands),
    ("saga", saga_commands),
    ("breaker", breaker_commands),
    ("hardware", hardware_commands),
    ("simulator", simulator_commands),
):
    app.add_typer(module.commands, name=group)


def _version(asked: bool) -> None:
    if asked:
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
    """Keeps a GPU fleet healthy: look at it, and ask things of it."""


Node = Annotated[str, typer.Argument(help="The node's name.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", help="Why; it stands in the events.")]
Wait = Annotated[bool, typer.Option("--wait", help="Stay until it is done, showing each step.")]


def _fleet(nats_url: str, config: Path | None) -> "AbstractAsyncContextManager[Fleet]":
    from services.cli.bus_client import connected  # noqa: PLC0415
    from services.cli.fleet_discovery import find_bus  # noqa: PLC0415

    return connected(find_bus(nats_url, config))


def _run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


# --- looking -------------------------------------------------------------------------------------


@app.command("status")
def status(nats_url: NatsUrl = "", config: Config = None, output: Output = Format.TABLE) -> None:
    """Show the pools and what is under way."""

    async def work() -> None:
        from services.cli import bus_client  # noqa: PLC0415
        from services.cli.text import tables  # noqa: PLC0415

        async with _fleet(nats_url, config) as fleet:
            pools, sagas = await asyncio.gather(
                fleet.pages("pools", Query()), fleet.pages("sagas", Query())
            )
        if output is Format.JSON:
            console.write_json(
                b'{"pools":'
                + console.json_array(pools)
                + b',"sagas":'
                + console.json_array(sagas)
                + b"}"
            )
            return
        views = sorted(bus_client.pool_views(pools), key=lambda each: each.name)
        rows = tables.pool_rows(views)
        console.write(tables.columns(tables.POOL_HEADERS, rows, colour=console.colour()))
        if not rows:
            console.write("No pool is configured.")
        if kept := tables.unfollowed(views):
            console.write("\n" + "\n".join(kept))
        opened = [msgspec.json.decode(each) for each in sagas]
        if opened:
            console.write("\n" + tables.under_way(opened, colour=console.colour()))

    _run(work())


@app.command("list")
def list_nodes(
    pool: Annotated[str, typer.Option("--pool", help="Of one pool only.")] = "",
    *,
    terminated: Annotated[bool, typer.Option("--all", help="Also those that are gone.")] = False,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """List the nodes."""

    async def work() -> None:
        from services.cli import bus_client  # noqa: PLC0415
        from services.cli.text import tables  # noqa: PLC0415

        async with _fleet(nats_url, config) as fleet:
            await fleet.check_pool(pool)
            query = Query(pool=pool, terminated=terminated, limit=bus_client.PAGE_NODES)
            items = await fleet.pages("nodes", query)
        if output is Format.JSON:
            console.write_json(console.json_array(items))
            return
        rows = tables.node_rows(bus_client.views(items))
        console.write(tables.columns(tables.NODE_HEADERS, rows, colour=console.colour()))
        if not rows:
            console.write("There is no node: `navarch why POOL` says what a pool waits for.")

    _run(work())


@app.command("get")
def get(
    node: Node, nats_url: NatsUrl = "", config: Config = None, output: Output = Format.TABLE
) -> None:
    """Show one node with its GPUs and its latest faults."""

    async def work() -> None:
        from services.cli.text import tables  # noqa: PLC0415

        async with _fleet(nats_url, config) as fleet:
            view, data = await fleet.node(node)
        if output is Format.JSON:
            console.write_json(data)
        else:
            console.write(tables.node_page(view, colour=console.colour()))

    _run(work())


@app.command("events")
def events(
    pool: Annotated[str, typer.Option("--pool", help="About one pool only.")] = "",
    node: Annotated[str, typer.Option("--node", help="About one node only.")] = "",
    since: Annotated[
        str, typer.Option("--since", help="Begin in the past: 10m, 2h, 2026-11-21T01:35:00Z.")
    ] = "",
    count: Annotated[int, typer.Option("--count", min=0, help="Stop after so many; 0: never.")] = 0,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Show facts about nodes and pools as they happen, one a line."""
    start = moment(since)

    async def work() -> None:
        async with _fleet(nats_url, config) as fleet:
            await fleet.check_pool(pool)
            if not since and sys.stderr.isatty():
                sys.stderr.write("Waiting for what happens next; Ctrl-C ends it.\n")
            await console.write_stream(
                fleet.events(pool=pool, node=node, since=start), output, count=count
            )

    _run(work())


@app.command("timeline")
def timeline(
    node: Node, nats_url: NatsUrl = "", config: Config = None, output: Output = Format.TABLE
) -> None:
    """Tell a node's story in order, with milliseconds."""

    async def work() -> None:
        from services.cli.text import tables  # noqa: PLC0415
        from services.cli.text.node_timeline import timeline_rows  # noqa: PLC0415

        async with _fleet(nats_url, config) as fleet:
            moments = timeline_rows(await fleet.story(node))
        if output is Format.JSON:
            console.write_json(moments)
        elif moments:
            console.write(tables.timeline(moments, colour=console.colour()))
        if not moments:
            raise NavarchError(f"nothing is stored about a node {node!r}: `navarch list --all`")

    _run(work())


@app.command("why")
def why(
    name: Annotated[
        str, typer.Argument(metavar="NODE|POOL|SAGA", help="What to ask about.", show_default=False)
    ],
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Say why a node, pool or saga is as it is.

    What was seen, decided, tried and refused, and what it waits for.
    """

    async def work() -> None:
        from services.cli import stored_history  # noqa: PLC0415
        from services.cli.text.why_text import page  # noqa: PLC0415

        async with _fleet(nats_url, config) as fleet:
            answer = await stored_history.why(fleet, name)
        if output is Format.JSON:
            console.write_json(answer)
        else:
            console.write(page(answer))

    _run(work())


app.command("instances")(instance_commands.instances)
app.command("leaked")(instance_commands.leaked)
app.command("evidence")(evidence_command.evidence)
app.command("report")(report_command.report)
app.command("offerings")(offerings_command.offerings)


# --- asking --------------------------------------------------------------------------------------


@app.command("cordon")
def cordon(
    node: Node,
    reason: Reason = "",
    *,
    wait: Wait = False,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Let the workload system place nothing new on a node."""
    ask_node("cordon", node, reason, output, Where(nats_url=nats_url, config=config, wait=wait))


@app.command("uncordon")
def uncordon(
    node: Node,
    reason: Reason = "",
    *,
    wait: Wait = False,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Let a node have work again; its health is judged anew."""
    ask_node("uncordon", node, reason, output, Where(nats_url=nats_url, config=config, wait=wait))


def _taking_out(verb: str) -> Callable[..., None]:
    """Make the command of a verb that takes a node out of service: how its work leaves is asked."""

    def command(
        node: Node,
        reason: Reason = "",
        *,
        mode: Mode = "",
        timeout: Timeout = "",
        dry_run: DryRun = False,
        wait: Wait = False,
        nats_url: NatsUrl = "",
        config: Config = None,
        output: Output = Format.TABLE,
    ) -> None:
        where = Where(nats_url=nats_url, config=config, wait=wait)
        request = drain_request(node, reason, mode, timeout)
        if dry_run:
            dry_run_output.dry_run(verb, request, nats_url, config, output)
            return
        ask_node(verb, node, reason, output, where, request=request)

    return command


for _verb, _help in (
    ("drain", "Cordon a node and let its work leave."),
    ("replace", "Drain a node, remove it, and bring a new one in its place."),
    (
        "reset-gpu",
        "Drain a node, reset its sick GPU or all of them, and test it.",
    ),
    ("reboot", "Drain a node, reboot it, and test it."),
):
    app.command(_verb, help=_help)(_taking_out(_verb))


app.command("sweep")(instance_commands.sweep)
app.command("up")(up_command.up)
app.command("down")(up_command.down)
app.command("ssh", context_settings={"ignore_unknown_options": True})(ssh_command.ssh)
app.command("hold")(hold_commands.hold)
app.command("release")(hold_commands.release)


@app.command("scale")
def scale(
    pool: Annotated[str, typer.Argument(help="The pool's name.", show_default=False)],
    nodes: Annotated[int, typer.Argument(min=0, help="How many nodes.", show_default=False)],
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Bring a pool to a number of nodes."""

    async def work() -> None:
        from services.cli.bus_client import accepted  # noqa: PLC0415

        async with _fleet(nats_url, config) as fleet:
            answer = await fleet.request(pool, "scale", ScaleRequest(nodes=nodes))
            console.write_message(accepted(answer), output)

    _run(work())


# --- running -------------------------------------------------------------------------------------


@app.command("serve")
def serve(
    config: Config = None,
    *,
    replicas: Annotated[int, typer.Option(min=1, max=5, help="How many of each service.")] = 1,
) -> None:
    """Run every service on this machine.

    On a nats-server of its own, unless NAVARCH_NATS_URL names one.
    """
    from services.cli.commands.serve_command import serve as run  # noqa: PLC0415

    raise typer.Exit(run(config, replicas))


@app.command("demo")
def demo() -> None:
    """Break a GPU of a small fleet here and watch it replaced."""
    from services.cli.commands.demo_command import demo as run  # noqa: PLC0415

    raise typer.Exit(run())


app.command("nats-config")(nats_config_command.nats_config)
