"""Declares who calls a tool, and how its changes are requested."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

import msgspec

from schemas.operator_requests import Request
from services.fleet_client.fleet_client import FleetClient, require_accepted
from services.mcp_server.change_plans import ChangePlans

HISTORIES_MAX: Final = 2
"""Histories that are read at once: each may be a month of events. Further calls wait."""


class ToolCaller(Protocol):
    """Declares what tools must know of their caller."""

    @property
    def name(self) -> str:
        """Return the caller's name, by which plans are kept apart."""

    def sees(self, pool: str) -> bool:
        """Return whether the caller may see a pool; an empty name: the whole fleet."""

    async def send(self, pool: str, verb: str, request: Request) -> msgspec.Struct:
        """Request a change; NavarchError where it is refused, or needs another role."""


@dataclass(frozen=True, slots=True)
class BusCaller:
    """The user whose credentials the connection has: the bus decides what it may do."""

    fleet: FleetClient

    @property
    def name(self) -> str:
        """One process serves one user."""
        return self.fleet.user

    def sees(self, _: str) -> bool:
        """Credentials of the bus are for every pool."""
        return True

    async def send(self, pool: str, verb: str, request: Request) -> msgspec.Struct:
        """Send the request as the command line does."""
        return require_accepted(await self.fleet.request(pool, verb, request))


@dataclass(frozen=True, slots=True)
class ToolAccess:
    """Gives tools what they work with: the fleet, in one caller's name."""

    fleet: FleetClient
    caller: ToolCaller
    plans: ChangePlans
    now: Callable[[], datetime]
    histories: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(HISTORIES_MAX))
