"""Connects a command to a fleet: to its bus, or over HTTP to its gateway."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import typer

from services.cli.bus_client import connect_fleet
from services.cli.command_options import (
    LISTED,
    LISTING_OPTIONS,
    Config,
    NatsUrl,
    NoServer,
    Server,
)
from services.cli.console import Format, Listing
from services.cli.fleet_access import FleetAccess as FleetAccess
from services.cli.fleet_access import NodeAccess as NodeAccess
from services.cli.fleet_discovery import NEEDS_BUS, find_bus
from services.cli.fleet_names import full_names
from services.fleet_client.fleet_client import FleetClient
from services.primitives.errors import NavarchError

Work = Callable[..., Coroutine[Any, Any, None]]
KEYWORD = inspect.Parameter.KEYWORD_ONLY


def bus_of(fleet: object, what: str) -> FleetClient:
    """The connection to the bus; NavarchError over HTTP, where there is none."""
    if not isinstance(fleet, FleetClient):
        raise NavarchError(f"{what} {NEEDS_BUS}")
    return fleet


def fleet_command(work: Work) -> Callable[..., None]:
    """Make a command of a coroutine function: add --nats-url and --config, and pass the fleet.

    The function gets the configuration file if it has a parameter `config`, and --columns and the
    like as its parameter `output` if that is a ListOutput.
    """
    arguments = _Arguments(work)

    def command(*, server: str, nats_url: str, config: Path | None, **given: Any) -> None:
        if server:
            raise NavarchError(f"this command {NEEDS_BUS}")

        async def run() -> None:
            async with connect_fleet(find_bus(nats_url, config)) as fleet:
                await work(fleet, **await arguments.of(fleet, config, given))

        asyncio.run(run())

    option = inspect.Parameter("server", KEYWORD, default="", annotation=NoServer)
    return _as_command(command, work, [*arguments.options, option])


def everyday_command(work: Work) -> Callable[..., None]:
    """Make a command that works over the bus and, with --server, over HTTP.

    The function gets the configuration file if it has a parameter `config`, and --columns and the
    like as its parameter `output` if that is a ListOutput.
    """
    arguments = _Arguments(work)

    def command(
        *, ctx: typer.Context, server: str, nats_url: str, config: Path | None, **given: Any
    ) -> None:
        if _is_typed(ctx, "nats_url"):
            if _is_typed(ctx, "server"):
                raise typer.BadParameter("give one of --server and --nats-url")
            server = ""

        async def run() -> None:
            async with _connected(server, nats_url, config) as fleet:
                await work(fleet, **await arguments.of(fleet, config, given))

        asyncio.run(run())

    context = inspect.Parameter("ctx", KEYWORD, annotation=typer.Context)
    option = inspect.Parameter("server", KEYWORD, default="", annotation=Server)
    return _as_command(command, work, [context, *arguments.options, option])


class _Arguments:
    """Holds the options of a command's own, and makes its arguments of what was given."""

    def __init__(self, work: Work) -> None:
        _, *own = inspect.signature(work).parameters.values()
        self._takes_config = any(each.name == "config" for each in own)
        self._own = [each for each in own if each.name != "config"]
        self._lists = any(LISTED in get_args(each.annotation) for each in own)

    @property
    def options(self) -> list[inspect.Parameter]:
        """Return what the command line has: also the options of each command that lists."""
        more = LISTING_OPTIONS.items() if self._lists else ()
        return [
            *self._own,
            *(
                inspect.Parameter(name, KEYWORD, default=default, annotation=annotation)
                for name, (annotation, default) in more
            ),
        ]

    async def of(
        self, fleet: FleetAccess, config: Path | None, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments, with full names in place of beginnings."""
        found = dict(given)
        if self._lists:
            columns, sort_by, bare = (found.pop(name) for name in LISTING_OPTIONS)
            names = tuple(each for each in columns.split(",") if each.strip())
            output: Format = found["output"]
            found["output"] = Listing(output.kind, output.path, names, sort_by, titled=not bare)
        if self._takes_config:
            found["config"] = config
        return await full_names(fleet, self._own, found)


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
