"""`navarch logs` and `navarch diagnose`: log lines, and what an agent finds on its host."""

from contextlib import aclosing
from difflib import get_close_matches
from typing import Annotated, Final

import msgspec
import typer

from schemas.agent_commands import DiagnoseRequest
from schemas.duration import parse_duration
from schemas.log_excerpts import LINES_MAX, LogExcerpt, LogRequest
from schemas.permissions import GATEWAY, SERVICES
from services.cli import console
from services.cli.command_options import Follow, Node, Output, Since, start_time
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.fleet_names import find_node
from services.cli.live_names import complete_node
from services.cli.log_follow import follow_lines
from services.cli.text.log_text import log_lines, statements
from services.operator_text.condition_text import condition_line
from services.primitives.errors import NavarchError

HEADERS = ("check", "", "what was found")
FAILED = 3
"""Exit code where a test failed."""
LOGGED: Final = (*SERVICES, GATEWAY)
ON_ITS_MACHINE: Final = "the log of its container, or `journalctl` on its host, has its lines"
SHOWN_MAX: Final = 10


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
        console.write_table(HEADERS, rows, f"{view.id}: no test was run.", output)
        for held in found.conditions:
            console.write(condition_line(held))
    if not found.ok:
        raise typer.Exit(FAILED)


@everyday_command
async def logs(
    fleet: FleetAccess,
    source: Annotated[
        str,
        typer.Argument(
            metavar="NODE|SERVICE[/REPLICA]",
            help="A node, or the beginning of one name; or a service: "
            f"{', '.join(LOGGED)}; or one of its replicas.",
            show_default=False,
            autocompletion=complete_node,
        ),
    ],
    *,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=LINES_MAX, help="At most so many.")
    ] = 100,
    since: Since = "",
    kernel: Annotated[
        bool, typer.Option("--kernel", help="Of a node: only the kernel's lines about the driver.")
    ] = False,
    follow: Follow = False,
    output: Output = console.Format.TABLE,
) -> None:
    """Show the newest log lines of a node or a service.

    Of a node: its agent's, and the kernel's about the driver. Each process keeps its newest lines
    in memory, from its start on. This needs the role operator.
    """
    service, _, replica = source.partition("/")
    if kernel and service in LOGGED:
        raise typer.BadParameter("only nodes have kernel lines", param_hint="--kernel")

    async def ask(asked: LogRequest) -> tuple[LogExcerpt, ...]:
        if service in LOGGED:
            return await _of_service(fleet, service, replica, asked)
        return (await _of_node(fleet, source, asked),)

    request = LogRequest(lines=lines, since=start_time(since), kernel=kernel)
    if follow:
        async with aclosing(follow_lines(ask, request)) as following:
            async for found in following:
                _write_new(found, output)
        return
    found = await ask(request)
    if output.is_data:
        console.write_data(output, found)
        return
    text = log_lines(found, lines, colour=console.colour())
    console.write(text or "There are no such lines.")
    for each in statements(found, request):
        console.note(each)


def _write_new(excerpts: tuple[LogExcerpt, ...], output: console.Format) -> None:
    """Print what is new; as data a document for each process, on a line of its own."""
    if output.is_data:
        for each in excerpts:
            console.write(console.document(msgspec.json.encode(each).decode(), output))
    elif text := log_lines(excerpts, LINES_MAX, colour=console.colour()):
        console.write(text)


async def _of_node(fleet: FleetAccess, node: str, request: LogRequest) -> LogExcerpt:
    try:
        view, _ = await find_node(fleet, node)
    except NavarchError as error:
        if meant := get_close_matches(node.partition("/")[0], LOGGED, n=1):
            raise NavarchError(f"{error}. The service is called {meant[0]}") from error
        raise
    return await fleet.node_logs(view, request)


async def _of_service(
    fleet: FleetAccess, service: str, replica: str, request: LogRequest
) -> tuple[LogExcerpt, ...]:
    request = msgspec.structs.replace(request, replica=replica)
    found, running = await fleet.service_logs(service, request)
    if not found:
        if running:
            raise NavarchError(
                f"the {service} runs, and does not answer this request: it, or the bus's accounts, "
                "are of an older release (`navarch version`), or it was asked for its log too "
                f"often just now. Ask again in 10 s; {ON_ITS_MACHINE}, too"
            )
        raise NavarchError(
            f"no replica of the {service} answers: does it run? If it does not, {ON_ITS_MACHINE}"
        )
    if replica:
        chosen = tuple(each for each in found if each.source.startswith(replica))
        if not chosen:
            names = ", ".join(each.source for each in found[:SHOWN_MAX] if each.source)
            raise NavarchError(f"the {service} has no replica {replica!r}; there are: {names}")
        return chosen
    if len(found) < running:
        console.note(f"{len(found)} of {running} replicas of the {service} answered")
    return found
