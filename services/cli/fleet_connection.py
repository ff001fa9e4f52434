"""Connects a command to a fleet: to its bus, or over HTTP to its gateway."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from services.cli.bus_client import connect_fleet
from services.cli.command_options import Config, NatsUrl, NoServer, Server
from services.cli.fleet_discovery import NEEDS_BUS, find_bus
from services.cli.fleet_names import full_names
from services.fleet_client.fleet_client import FleetClient
from services.primitives.errors import NavarchError

Work = Callable[..., Coroutine[Any, Any, None]]
KEYWORD = inspect.Parameter.KEYWORD_ONLY


if TYPE_CHECKING:
    # A command over the bus starts without the HTTP library, and one over HTTP without the bus's.
    from services.cli.bus_client import BusFleet
    from services.cli.http_fleet import HttpFleet

    FleetAccess = BusFleet | HttpFleet
    NodeAccess = FleetClient | HttpFleet
else:
    FleetAccess = NodeAccess = Any


def bus_of(fleet: object, what: str) -> FleetClient:
    """The connection to the bus; NavarchError over HTTP, where there is none."""
    if not isinstance(fleet, FleetClient):
        raise NavarchError(f"{what} {NEEDS_BUS}")
    return fleet


def fleet_command(work: Work) -> Callable[..., None]:
    """Make a command of a coroutine function: add --nats-url and --config, and pass the fleet.

    The function gets the configuration file if it has a parameter `config`.
    """
    own, wanted = _options(work)

    def command(*, server: str, nats_url: str, config: Path | None, **given: Any) -> None:
        if server:
            raise NavarchError(f"this command {NEEDS_BUS}")

        async def run() -> None:
            async with connect_fleet(find_bus(nats_url, config)) as fleet:
                await work(fleet, **await full_names(fleet, own, given), **wanted(config))

        asyncio.run(run())

    option = inspect.Parameter("server", KEYWORD, default="", annotation=NoServer)
    return _as_command(command, work, [*own, option])


def everyday_command(work: Work) -> Callable[..., None]:
    """Make a command that works over the bus and, with --server, over HTTP.

    The function gets the configuration file if it has a parameter `config`.
    """
    own, wanted = _options(work)

    def command(
        *, ctx: typer.Context, server: str, nats_url: str, config: Path | None, **given: Any
    ) -> None:
        if _is_typed(ctx, "nats_url"):
            if _is_typed(ctx, "server"):
                raise typer.BadParameter("give one of --server and --nats-url")
            server = ""

        async def run() -> None:
            async with _connected(server, nats_url, config) as fleet:
                await work(fleet, **await full_names(fleet, own, given), **wanted(config))

        asyncio.run(run())

    context = inspect.Parameter("ctx", KEYWORD, annotation=typer.Context)
    option = inspect.Parameter("server", KEYWORD, default="", annotation=Server)
    return _as_command(command, work, [context, *own, option])


def _options(
    work: Work,
) -> tuple[list[inspect.Parameter], Callable[[Path | None], dict[str, Path | None]]]:
    """The options of the function's own, and what else it gets of those that all commands have."""
    _, *own = inspect.signature(work).parameters.values()
    takes_config = any(each.name == "config" for each in own)
    kept = [each for each in own if each.name != "config"]
    return kept, lambda config: {"config": config} if takes_config else {}


@asynccontextmanager
async def _connected(server: str, nats_url: str, config: Path | None) -> AsyncIterator[FleetAccess]:
    if not server:
        async with connect_fleet(find_bus(nats_url, config)) as fleet:
            yield fleet
        return
    # Commands over the bus start without the HTTP library, and these without the bus's.
    import services.runtime.command_line_trim  # noqa: F401, PLC0415
    from services.cli.http_fleet import HttpFleet  # noqa: PLC0415
    from services.http_client.api_clients import AsyncNavarch  # noqa: PLC0415

    async with AsyncNavarch(server) as client:
        yield HttpFleet(client)


def _is_typed(ctx: typer.Context, option: str) -> bool:
    """Whether an option is of the command line, not of the environment."""
    source = ctx.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _as_command(
    command: Callable[..., None], work: Work, own: list[inspect.Parameter]
) -> Callable[..., None]:
    parameters = [
        *(each.replace(kind=KEYWORD) for each in own),
        inspect.Parameter("nats_url", KEYWORD, default="", annotation=NatsUrl),
        inspect.Parameter("config", KEYWORD, default=None, annotation=Config),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__name__, command.__doc__ = work.__name__, work.__doc__
    return command
