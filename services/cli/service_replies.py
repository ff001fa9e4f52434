"""Collects what the services of a fleet say of themselves."""

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from schemas.permissions import SERVICES
from services.cli.doctor_checks import ServiceReply
from services.fleet_client.fleet_client import FleetClient
from services.primitives.errors import BusError

T = TypeVar("T")

ANSWER_SECONDS_MAX: Final = 2.0
SILENCE_SECONDS: Final = 1.0
"""After the last replica that answers."""


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a service, as it describes itself; empty: it is of an older release."""

    service: str
    host: str = ""
    pid: str = ""
    configuration: str = ""
    """The first digits of its file's digest."""


class _ReplicaReply(msgspec.Struct, frozen=True):
    name: str = ""
    metadata: dict[str, str] = {}


async def every_replica(fleet: FleetClient) -> tuple[Replica, ...]:
    """Every process of every service that answers, in the order of its service and host."""
    found = []
    for data in await fleet.bus.request_all("$SRV.INFO", b"", SILENCE_SECONDS):
        with suppress(msgspec.DecodeError):
            reply = msgspec.json.decode(data, type=_ReplicaReply)
            if reply.name in SERVICES:
                facts = {
                    key: reply.metadata.get(key, "") for key in ("host", "pid", "configuration")
                }
                found.append(Replica(service=reply.name, **facts))
    return tuple(sorted(found, key=lambda each: (each.service, each.host, each.pid)))


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
    """Return what was found of all that is asked for at once."""
    found = await asyncio.gather(*asked.values())
    return {name: each for name, each in zip(asked, found, strict=True) if each is not None}
