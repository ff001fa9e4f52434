"""Implements `navarch gateway token create`, which makes bearer tokens of the HTTP API."""

import os
from datetime import UTC, datetime, timedelta
from typing import Annotated, get_args

import msgspec
import typer

from schemas.duration import parse_duration
from schemas.gateway_settings import GatewayRole, TokenSpec
from schemas.names import token as checked_name
from services.cli import console
from services.cli.command_options import Output, command_group
from services.gateway.access_tokens import VARIABLE_NAME, digest, new_token
from services.primitives.errors import NavarchError

commands = command_group("Make tokens of the HTTP API.")
tokens = typer.Typer(name="token", help="Make tokens.", no_args_is_help=True, rich_markup_mode=None)
commands.add_typer(tokens)


@tokens.callback()
def token() -> None:
    """Make tokens of the HTTP API."""


@tokens.command("create")
def create(
    name: Annotated[
        str, typer.Argument(help="Whose it is; shown in the events.", show_default=False)
    ],
    *,
    role: Annotated[
        str, typer.Option("--role", help="viewer, operator or admin.", metavar="ROLE")
    ] = "viewer",
    pools: Annotated[
        list[str] | None,
        typer.Option("--pools", help="Only this pool, or pattern; may be repeated."),
    ] = None,
    expires: Annotated[
        str, typer.Option("--expires", help="Valid for so long: 12h, 90d; default: for ever.")
    ] = "",
    output: Output = console.Format.TABLE,
) -> None:
    """Print a new token, once, and its entry for the configuration."""
    checked_name(name, "token")
    if role not in get_args(GatewayRole):
        raise NavarchError(f"--role {role!r}: there is {', '.join(get_args(GatewayRole))}")
    if name == VARIABLE_NAME:
        raise NavarchError(f"{name} is the name of NAVARCH_AUTH_TOKEN: choose another")
    made = new_token(os.urandom)
    entry: dict[str, object] = {"sha256": digest(made), "role": role}
    if pools:
        entry["pools"] = pools
    if expires:
        entry["expires"] = _end(expires).isoformat(timespec="seconds").replace("+00:00", "Z")
    msgspec.convert(entry, TokenSpec)
    if output.is_data:
        console.write_data(output, {"name": name, "token": made, "entry": entry})
        return
    console.write(
        f"{made}\n\nIt is shown this once. Add its entry to the configuration, and restart the "
        f"gateway:\n\ngateway:\n  tokens:\n    {name}: {msgspec.json.encode(entry).decode()}"
    )


def _end(expires: str) -> datetime:
    try:
        return datetime.now(UTC) + timedelta(seconds=parse_duration(expires))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--expires") from error
