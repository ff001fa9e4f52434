"""Options that several commands share."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import typer

from schemas.duration import decode_hook, parse_duration
from schemas.operator_requests import DrainRequest
from services.cli.console import JSONPATH, KINDS, LISTING_KINDS, Format, Listing, json_path
from services.cli.fleet_names import A_NODE, A_POOL
from services.cli.live_names import complete_node, complete_pool, complete_saga
from services.fleet_client.node_filter import time_since
from services.primitives.errors import NavarchError

T = TypeVar("T")

NatsUrl = Annotated[
    str,
    typer.Option(
        "--nats-url",
        envvar="NAVARCH_NATS_URL",
        help="URL of the bus; default: that of `navarch serve` in this data directory.",
    ),
]
Server = Annotated[
    str,
    typer.Option(
        "--server",
        envvar="NAVARCH_SERVER",
        metavar="https://HOST:PORT",
        help="A gateway, instead of the bus; NAVARCH_AUTH_TOKEN is the token.",
    ),
]
Reason = Annotated[str, typer.Option("--reason", help="Why; shown in the events.")]
NoServer = Annotated[str, typer.Option("--server", hidden=True)]
"""Of commands that need the bus: they say so."""
Config = Annotated[
    Path | None,
    typer.Option("--config", envvar="NAVARCH_CONFIG", help="Configuration file."),
]
BUS: Final = Path("bus")
BusDirectoryOption = Annotated[
    Path, typer.Option("--dir", help="The directory of the bus's files.", show_default=True)
]
Node = Annotated[
    str,
    typer.Argument(
        help="The node's name, or the beginning of one name.",
        show_default=False,
        autocompletion=complete_node,
    ),
]
Nodes = Annotated[
    list[str],
    typer.Argument(
        metavar="NODE",
        help="Names, or each the beginning of one name.",
        show_default=False,
        autocompletion=complete_node,
    ),
]
SomeNodes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NODE]...",
        help="Names, or each the beginning of one name.",
        show_default=False,
        autocompletion=complete_node,
    ),
]
Selector = Annotated[
    list[str] | None,
    typer.Option(
        "--selector",
        "-l",
        metavar="KEY=VALUE",
        help="Instead of names: pool, provider, region, zone, status, health, or a pool's label.",
    ),
]
FromFile = Annotated[
    str,
    typer.Option("--from-file", metavar="FILE", help="Names, one a line; -: standard input."),
]
AtMost = Annotated[
    int,
    typer.Option("--at-most", min=0, help="Stop when so many are accepted; 0: no limit."),
]
Mode = Annotated[
    str,
    typer.Option(
        "--mode",
        metavar="deadline|wait|immediate",
        help="How to wait for its work; default: the pool's setting.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")
]
Timeout = Annotated[
    str,
    typer.Option("--timeout", metavar="10m", help="Drain timeout; default: the pool's setting."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is done, and print each step.")]


def _duration_text(text: str) -> str:
    if text:
        try:
            parse_duration(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return text


def duration_option(name: str, about: str) -> Any:
    """Make an option that takes a duration."""
    return typer.Option(name, metavar="30m", callback=_duration_text, help=about)


WaitTimeout = Annotated[
    str,
    duration_option(
        "--wait-timeout",
        "With --wait: stop waiting after so long, with exit code 1; default: never.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Watch = Annotated[bool, typer.Option("--watch", help="Show it again whenever something happens.")]
Check = Annotated[
    bool, typer.Option("--check", help="Print only what is wrong; exit code 3 if anything is.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")]
Pool = Annotated[
    str,
    typer.Option("--pool", help="Only this pool.", autocompletion=complete_pool),
    A_POOL,
]
PoolName = Annotated[
    str,
    typer.Argument(
        metavar="POOL",
        help="The pool's name, or the beginning of one name.",
        show_default=False,
        autocompletion=complete_pool,
    ),
    A_POOL,
]


def node_option(about: str, name: str = "--node") -> Any:
    """Make an option that names a node, which may be gone."""
    return typer.Option(name, help=about, autocompletion=complete_node)


NodeOption = Annotated[str, node_option("Only this node."), A_NODE]
SagaName = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The saga's id, or the beginning of one id.",
        show_default=False,
        autocompletion=complete_saga,
    ),
]


def _format_of(text: str | Format, kinds: Sequence[str]) -> Format:
    """Read --output."""
    if isinstance(text, Format):
        return text
    kind, equals, path = text.partition("=")
    if kind == JSONPATH and path:
        try:
            json_path(path)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        return Format(kind, path)
    if equals or kind not in kinds:
        named = ", ".join((*kinds, f"{JSONPATH}=EXPRESSION"))
        raise typer.BadParameter(f"{text!r} is none of {named}")
    return Format(kind)


def _output(kinds: Sequence[str]) -> Any:
    return typer.Option(
        "--output",
        "-o",
        parser=lambda text: _format_of(text, kinds),
        metavar="|".join((*kinds, f"{JSONPATH}=…")),
        help="Output format.",
        show_default=False,
        autocompletion=lambda incomplete: [each for each in kinds if each.startswith(incomplete)],
    )


Output = Annotated[Format, _output(KINDS)]
LISTED: Final = "listing"
"""Marks the output of a command that lists: it has the options of LISTING_OPTIONS, too."""
ListOutput = Annotated[Listing, _output(LISTING_KINDS), LISTED]
LISTING_OPTIONS: Final = {
    "columns": (
        Annotated[
            str,
            typer.Option(
                "--columns",
                metavar="A,B",
                help="Only these columns, in this order.",
            ),
        ],
        "",
    ),
    "sort_by": (
        Annotated[
            str,
            typer.Option("--sort-by", metavar="[-]A", help="Sort by this column; -A: downwards."),
        ],
        "",
    ),
    "no_headers": (
        Annotated[bool, typer.Option("--no-headers", help="Print the rows alone.")],
        False,
    ),
}


def command_group(about: str) -> typer.Typer:
    """A group of commands, which says its help where it is called alone."""
    return typer.Typer(help=about, no_args_is_help=True, rich_markup_mode=None)


def confirm(question: str, *, yes: bool, instead: str) -> None:
    """Ask, unless `--yes` was given; `instead`: what a program gives that only looks."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NavarchError(
            f"this is not a terminal, so nothing can be confirmed: give --yes, or {instead}"
        )
    typer.confirm(question, abort=True)


def start_time(since: str) -> datetime | None:
    """Read `--since`: a duration before now, or a time; None if empty."""
    if not since:
        return None
    try:
        found = time_since(since, datetime.now(UTC))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return found if found.tzinfo else found.astimezone()


def checked_time(since: str) -> str:
    """Reject a `--since` that cannot be read, before the command connects."""
    start_time(since)
    return since


Since = Annotated[
    str,
    typer.Option(
        "--since",
        callback=checked_time,
        help="From this time: 10m, 24h, 7d, 2026-11-21T01:35:00Z.",
    ),
]


def drain_request(node: str, reason: str, mode: str, timeout: str) -> DrainRequest:
    """Make the request from the options."""
    return drain_options(DrainRequest, mode, timeout, node=node, reason=reason)


def drain_options(kind: type[T], mode: str, timeout: str, **others: str) -> T:
    """Make a request from --mode and --timeout, with the pool-manager's validation."""
    options = {"mode": mode, "timeout": timeout or None, **others}
    try:
        return msgspec.convert(options, kind, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$.")
        raise NavarchError(f"--{where.rstrip('`') or 'mode'}: {problem}") from error
