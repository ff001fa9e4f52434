"""`serve` and `demo`; what they run is imported when they do."""

from typing import Annotated

import typer

from services.cli.command_options import Config


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


def demo() -> None:
    """Run a small fleet here, break a GPU, replace the node."""
    from services.cli.commands.demo_command import demo as run  # noqa: PLC0415

    raise typer.Exit(run())
