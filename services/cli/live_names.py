"""Names of the running fleet for the shell's completion, within a second; none where it fails."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import typer

from schemas.fleet_queries import Query
from services.cli.bus_client import connect_fleet
from services.cli.fleet_discovery import find_bus
from services.fleet_client.fleet_client import PAGE_NODES, FleetClient
from services.fleet_client.query_answers import decode_nodes
from services.fleet_client.service_orders import open_alerts
from services.primitives.errors import NavarchError

COMPLETION_SECONDS_MAX: Final = 1.0
"""A shell that waits longer looks as if it hung."""
NAMES_MAX: Final = 500

Source = Callable[[FleetClient], AsyncIterator[str]]


async def _nodes(fleet: FleetClient) -> AsyncIterator[str]:
    async for page in fleet.each_page("nodes", Query(limit=PAGE_NODES)):
        for node in decode_nodes(page.items):
            yield node.id


async def _pools(fleet: FleetClient) -> AsyncIterator[str]:
    for record in await fleet.pool_records():
        yield record.name


async def _sagas(fleet: FleetClient) -> AsyncIterator[str]:
    for record in await fleet.pool_records():
        for saga in record.open:
            yield saga


async def _alerts(fleet: FleetClient) -> AsyncIterator[str]:
    for each in await open_alerts(fleet.bus):
        assert each.opened is not None
        yield each.opened.key


async def begun(
    nats_url: str, config: Path | None, sources: tuple[Source, ...], begins: str
) -> list[str]:
    """The names that begin so, of those that came in time."""
    found: list[str] = []
    failures = (NavarchError, OSError, TimeoutError, ValueError, msgspec.DecodeError)
    with suppress(*failures):
        async with (
            asyncio.timeout(COMPLETION_SECONDS_MAX),
            connect_fleet(find_bus(nats_url, config)) as fleet,
        ):
            for source in sources:
                async for name in source(fleet):
                    if name.startswith(begins):
                        found.append(name)
                    if len(found) == NAMES_MAX:
                        return found
    return found


def _completion(*sources: Source) -> Callable[[typer.Context, str], list[str]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        given: Mapping[str, object] = ctx.params
        config = given.get("config")
        file = Path(str(config)) if config else None
        return asyncio.run(begun(str(given.get("nats_url") or ""), file, sources, incomplete))

    return complete


complete_node = _completion(_nodes)
complete_pool = _completion(_pools)
complete_saga = _completion(_sagas)
complete_alert = _completion(_alerts)
complete_any = _completion(_pools, _sagas, _nodes)
