"""Sends a request about a node, prints the answer, and waits for its saga if asked to."""

from schemas.saga_log_entries import SagaDone
from schemas.stored_messages import decode_stored
from services.cli import console
from services.cli.console import Format
from services.fleet_client.fleet_client import FleetClient, NodeRequests, require_accepted
from services.operator_text.safe_text import escape_line
from services.primitives.errors import NavarchError


async def request_node(
    fleet: FleetClient, verb: str, request: NodeRequests, output: Format, *, wait: bool = False
) -> None:
    """Send a request to the node's pool; `wait`: until its saga has ended."""
    view, _ = await fleet.node(request.node)
    answer = require_accepted(await fleet.request(view.pool, verb, request))
    console.write_message(answer, output)
    saga = getattr(answer, "saga", "")
    if wait and saga:
        stored = await console.write_stream(fleet.follow_saga(saga), output)
        last = decode_stored(stored) if stored else None
        if not isinstance(last, SagaDone):
            reason = escape_line(getattr(last, "reason", ""))
            raise NavarchError(f"{saga} ended without success: {reason}")
