"""Implements `navarch nats-context`: what the `nats` command needs to speak to the fleet."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from schemas.settings import NatsSettings
from services.bus.nats.credentials_file import name_of, seed_in, token_in
from services.cli import console
from services.cli.bus_client import person, user_options
from services.cli.command_options import Config, NatsUrl
from services.cli.fleet_discovery import find_bus
from services.primitives.atomic_files import write_secret
from services.primitives.errors import NavarchError

FOLDER: Final = Path("nats/context")
NAME_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


def context_of(nats: NatsSettings, url: str, inbox_prefix: str, *, whole: bool) -> dict[str, str]:
    """Return the fields of a context.

    `whole`: with the credentials themselves, for another machine; else with the file's name, so
    that renewed ones are used.
    """
    found = {"description": "Navarch", "url": url or nats.url, "inbox_prefix": inbox_prefix}
    if nats.tls_ca_file:
        found["ca"] = str(Path(nats.tls_ca_file).absolute())
    if nats.creds_file and whole:
        text = Path(nats.creds_file).read_text(encoding="ascii")
        found |= {"user_jwt": token_in(text), "user_seed": seed_in(text)}
    elif nats.creds_file:
        found["creds"] = str(Path(nats.creds_file).absolute())
    return found


def folder_of(environment: Mapping[str, str]) -> Path:
    """Return where the `nats` command looks for contexts."""
    configured = environment.get("XDG_CONFIG_HOME", "")
    return (Path(configured) if configured else Path.home() / ".config") / FOLDER


def nats_context(
    name: Annotated[str, typer.Argument(help="The context's name.")] = "navarch",
    *,
    url: Annotated[
        str, typer.Option("--url", help="By which the `nats` command reaches the bus.")
    ] = "",
    printed: Annotated[
        bool,
        typer.Option("--print", help="Print it with the credentials in it, and write nothing."),
    ] = False,
    nats_url: NatsUrl = "",
    config: Config = None,
) -> None:
    """Write a context for the `nats` command."""
    if not name or not set(name) <= NAME_CHARS:
        raise NavarchError(f"{name!r} cannot name a context: write a-z, 0-9, - and _")
    nats = find_bus(nats_url, config)
    options = user_options(nats)
    found = context_of(nats, url, options.inbox_prefix, whole=printed)
    text = msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
    if printed:
        console.write(text)
        return
    file = folder_of(os.environ) / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_secret(file, text + "\n")
    console.write(f"wrote {file}: nats --context {name} …, or nats context select {name}")
    if user := person(options) or name_of(nats.creds_file):
        console.write(
            f"The subject of a request ends with .{user}, as in "
            f"nats --context {name} pub -J navarch.v1.pool.POOL.request.scale.{user} "
            "'{\"nodes\": 5}'"
        )
