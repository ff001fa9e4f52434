"""`navarch mcp`: the fleet for a program that speaks the Model Context Protocol."""

import os
import sys
from datetime import UTC, datetime
from functools import wraps
from importlib.util import find_spec
from typing import Any

from services.cli.fleet_connection import fleet_command
from services.cli.fleet_discovery import SERVER_VARIABLE
from services.fleet_client.fleet_client import FleetClient
from services.mcp_server.change_plans import ChangePlans
from services.mcp_server.tool_caller import BusCaller, ToolAccess
from services.operator_text.safe_text import escape
from services.primitives.errors import NavarchError

KEY_BYTES = 32


@fleet_command
async def _serve(fleet: FleetClient) -> None:
    """Serve the fleet to an assistant over standard input and output.

    With your credentials: it reads what you may read, and changes only what you confirm.
    """
    if find_spec("mcp") is None:
        raise NavarchError("install this package again with its extra `mcp`")
    from services.mcp_server.protocol_server import serve_streams  # noqa: PLC0415

    plans = ChangePlans(os.urandom(KEY_BYTES))
    await serve_streams(ToolAccess(fleet, BusCaller(fleet), plans, lambda: datetime.now(UTC)))


@wraps(_serve)
def mcp(**given: Any) -> None:
    """Say first why a gateway that the environment names is not used."""
    if gateway := os.environ.get(SERVER_VARIABLE):
        instead = f"the same tools are at {escape(gateway.rstrip('/'))}/mcp, with a token"
        if not given["nats_url"]:
            raise NavarchError(
                f"navarch mcp needs the bus, and {SERVER_VARIABLE} names a gateway: {instead} "
                "(docs/mcp.md); or name the bus with --nats-url"
            )
        sys.stderr.write(f"navarch: {SERVER_VARIABLE} is not used, as a bus is named: {instead}\n")
    _serve(**given)
