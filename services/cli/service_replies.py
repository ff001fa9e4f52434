"""What the services of a fleet say of themselves."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Final, TypeVar

import msgspec

from schemas.permissions import SERVICES
from services.cli.doctor_checks import ServiceReply
from services.fleet_client.fleet_client import FleetClient
from services.primitives.errors import BusError

T = TypeVar("T")

ANSWER_SECONDS_MAX: Final = 2.0


async def service_replies(fleet: FleetClient) -> dict[str, ServiceReply]:
    """Each service as one of its replicas describes it; without those of which none answers."""
    return await found_of({each: _answered(fleet, each) for each in SERVICES})


async def _answered(fleet: FleetClient, service: str) -> ServiceReply | None:
    try:
        reply = await fleet.bus.request(
            f"$SRV.INFO.{service}", b"", timeout_seconds=ANSWER_SECONDS_MAX
        )
        return msgspec.json.decode(reply.data, type=ServiceReply)
    except (BusError, msgspec.DecodeError):
        return None


async def found_of(asked: Mapping[str, Awaitable[T | None]]) -> dict[str, T]:
    """What was found of all that is asked for at once."""
    found = await asyncio.gather(*asked.values())
    return {name: each for name, each in zip(asked, found, strict=True) if each is not None}
