"""Connects a command to the fleet's bus."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.cli.command_options import Config, NatsUrl

if TYPE_CHECKING:
    from services.cli.bus_client import FleetClient

Work = Callable[..., Coroutine[Any, Any, None]]


def with_fleet(nats_url: str, config: Path | None, work: Work) -> None:
    """Run `work(fleet)` on a connection to the fleet."""

    async def run() -> None:
        from services.cli.bus_client import connect_fleet  # noqa: PLC0415 - keeps `--help` quick
        from services.cli.fleet_discovery import find_bus  # noqa: PLC0415

        async with connect_fleet(find_bus(nats_url, config)) as fleet:
            await work(fleet)

    asyncio.run(run())


def fleet_command(work: Work) -> Callable[..., None]:
    """Make a command of a coroutine function: add --nats-url and --config, and pass the fleet."""

    def command(*, nats_url: str, config: Path | None, **given: Any) -> None:
        async def run(fleet: "FleetClient") -> None:
            await work(fleet, **given)

        with_fleet(nats_url, config, run)

    keyword = inspect.Parameter.KEYWORD_ONLY
    _, *own = inspect.signature(work).parameters.values()
    parameters = [
        *(each.replace(kind=keyword) for each in own),
        inspect.Parameter("nats_url", keyword, default="", annotation=NatsUrl),
        inspect.Parameter("config", keyword, default=None, annotation=Config),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__name__, command.__doc__ = work.__name__, work.__doc__
    return command
