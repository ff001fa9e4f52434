"""`navarch nats-config`: writes the server's configuration and credentials."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli import console


def nats_config(
    out: Annotated[Path, typer.Argument(help="The directory to write to.", show_default=False)],
    fleet: Annotated[str, typer.Option("--fleet", help="The fleet's name.")] = "default",
    store: Annotated[str, typer.Option("--store", help="JetStream directory.")] = "/data",
    listen: Annotated[str, typer.Option("--listen", help="Client address.")] = "0.0.0.0:4222",
    http: Annotated[str, typer.Option("--http", help="Monitoring address.")] = "127.0.0.1:8222",
    node: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="POOL/NODE", help="Write only this node's credentials."),
    ] = None,
) -> None:
    """Write a server's configuration and its credentials."""
    from datetime import UTC, datetime  # noqa: PLC0415

    from services.cli.nats_config_files import write, write_agent  # noqa: PLC0415

    now = datetime.now(UTC)
    for each in node or ():
        pool, _, name = each.partition("/")
        console.write(f"wrote {write_agent(out, pool, name, now)}")
    if node:
        return
    for file in write(out, fleet, now, store=store, listen=listen, http=http):
        console.write(f"wrote {file}")
