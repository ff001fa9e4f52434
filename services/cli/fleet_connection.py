"""Connects a command to the fleet's bus."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from services.cli.bus_client import connect_fleet
from services.cli.command_options import Config, NatsUrl
from services.cli.fleet_discovery import find_bus

Work = Callable[..., Coroutine[Any, Any, None]]


def fleet_command(work: Work) -> Callable[..., None]:
    """Make a command of a coroutine function: add --nats-url and --config, and pass the fleet.

    The function gets the configuration file if it has a parameter `config`.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    _, *own = inspect.signature(work).parameters.values()
    takes_config = any(each.name == "config" for each in own)

    def command(*, nats_url: str, config: Path | None, **given: Any) -> None:
        async def run() -> None:
            async with connect_fleet(find_bus(nats_url, config)) as fleet:
                await work(fleet, **given, **({"config": config} if takes_config else {}))

        asyncio.run(run())

    parameters = [
        *(each.replace(kind=keyword) for each in own if each.name != "config"),
        inspect.Parameter("nats_url", keyword, default="", annotation=NatsUrl),
        inspect.Parameter("config", keyword, default=None, annotation=Config),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__name__, command.__doc__ = work.__name__, work.__doc__
    return command
