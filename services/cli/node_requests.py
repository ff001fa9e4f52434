"""Asks something of a node: publishes the request, prints what answers it, and perhaps waits."""

import asyncio
from pathlib import Path

import msgspec

from schemas.operator_requests import NodeRequest
from services.cli import console
from services.cli.console import Format
from services.primitives.errors import NavarchError


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Which fleet is asked, and whether to stay."""

    nats_url: str
    config: Path | None
    wait: bool


def ask_node(
    verb: str,
    node: str,
    reason: str,
    output: Format,
    where: Where,
    *,
    request: NodeRequest | None = None,
) -> None:
    """Publish a request about a node, print what answers it, and perhaps wait for its end."""
    asked = request or NodeRequest(node=node, reason=reason)

    async def work() -> None:
        from schemas.saga_log_entries import SagaDone  # noqa: PLC0415
        from services.cli.bus_client import accepted, connected  # noqa: PLC0415
        from services.cli.fleet_discovery import find_bus  # noqa: PLC0415

        async with connected(find_bus(where.nats_url, where.config)) as fleet:
            view, _ = await fleet.node(node)
            answer = accepted(await fleet.request(view.pool, verb, asked))
            console.write_message(answer, output)
            saga = getattr(answer, "saga", "")
            if where.wait and saga:
                last = await console.write_stream(fleet.saga(saga), output)
                if not isinstance(last, SagaDone):
                    raise NavarchError(f"{saga} was not done: {getattr(last, 'reason', '')}")

    asyncio.run(work())
