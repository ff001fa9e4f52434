"""Publishes a request about a node, prints the answer, and waits for its saga if asked to."""

from pathlib import Path
from typing import TYPE_CHECKING

from schemas.operator_requests import NodeRequest
from services.cli import console
from services.cli.console import Format
from services.cli.fleet_connection import with_fleet
from services.primitives.errors import NavarchError

if TYPE_CHECKING:
    from services.cli.bus_client import FleetClient, Request


def request_node(
    verb: str,
    node: str,
    request: "Request | str",
    nats_url: str,
    config: Path | None,
    output: Format,
    *,
    wait: bool = False,
) -> None:
    """`request`: the request, or the reason of a plain one; `wait`: until its saga has ended."""
    sent = NodeRequest(node=node, reason=request) if isinstance(request, str) else request

    async def work(fleet: "FleetClient") -> None:
        from schemas.saga_log_entries import SagaDone  # noqa: PLC0415
        from schemas.stored_messages import decode_stored  # noqa: PLC0415
        from services.cli.bus_client import require_accepted  # noqa: PLC0415

        view, _ = await fleet.node(node)
        answer = require_accepted(await fleet.request(view.pool, verb, sent))
        console.write_message(answer, output)
        saga = getattr(answer, "saga", "")
        if wait and saga:
            stored = await console.write_stream(fleet.follow_saga(saga), output)
            last = decode_stored(stored) if stored else None
            if not isinstance(last, SagaDone):
                reason = getattr(last, "reason", "")
                raise NavarchError(f"{saga} ended without success: {reason}")

    with_fleet(nats_url, config, work)
