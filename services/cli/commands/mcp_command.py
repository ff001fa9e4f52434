"""`navarch mcp`: the fleet for a program that speaks the Model Context Protocol."""

import os
from datetime import UTC, datetime
from importlib.util import find_spec

from services.cli.fleet_connection import fleet_command
from services.fleet_client.fleet_client import FleetClient
from services.mcp_server.change_plans import ChangePlans
from services.mcp_server.tool_caller import BusCaller, ToolAccess
from services.primitives.errors import NavarchError

KEY_BYTES = 32


@fleet_command
async def mcp(fleet: FleetClient) -> None:
    """Serve the fleet to an assistant over standard input and output.

    With your credentials: it reads what you may read, and changes only what you confirm.
    """
    if find_spec("mcp") is None:
        raise NavarchError("install this package again with its extra `mcp`")
    from services.mcp_server.protocol_server import serve_streams  # noqa: PLC0415

    plans = ChangePlans(os.urandom(KEY_BYTES))
    await serve_streams(ToolAccess(fleet, BusCaller(fleet), plans, lambda: datetime.now(UTC)))
