"""`navarch version`: the releases of this command, of the services and of the agents."""

import asyncio
import hashlib
import platform
from collections import Counter
from importlib.metadata import version as installed
from pathlib import Path
from typing import Final

import msgspec

from schemas import subjects
from schemas.messages import decoder
from schemas.node_records import NodeRecord
from schemas.permissions import SERVICES
from schemas.topology import BUCKETS, DURABLES, EVERY_STREAM, NODES
from services.cli import console
from services.cli.bus_client import connect_fleet
from services.cli.command_options import Config, NatsUrl, Output
from services.cli.fleet_discovery import find_bus
from services.cli.service_replies import service_replies
from services.fleet_client.fleet_client import FleetClient
from services.primitives.errors import NavarchError

DIGITS: Final = 12
HEADERS: Final = ("part", "release")
UNKNOWN: Final = "unknown"
_nodes = decoder(NodeRecord)


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """What runs here, and in the fleet."""

    navarch: str
    python: str
    subjects: str
    """The first tokens of every subject."""
    topology: str
    """Digest of the streams, buckets and durables that this release sets up."""
    services: dict[str, str] = {}
    """Release of each service that answers."""
    agents: dict[str, int] = {}
    """Release -> nodes whose agent has it."""
    problem: str = ""
    """Why nothing is known of the fleet."""


def version(
    nats_url: NatsUrl = "", config: Config = None, output: Output = console.Format.TABLE
) -> None:
    """Show the releases of this command, of the fleet's services and of its agents."""
    found = asyncio.run(_versions(nats_url, config))
    if output.is_data:
        console.write_data(output, found)
        return
    console.write_table(HEADERS, version_rows(found))
    if found.problem:
        console.write(f"\nNothing is known of a fleet: {found.problem}")


def version_rows(found: Versions) -> list[tuple[str, str]]:
    """One row per part. Pure."""
    own = [
        ("navarch", found.navarch),
        ("Python", found.python),
        ("subjects", found.subjects),
        ("topology", found.topology),
    ]
    if found.problem:
        return own
    services = [(each, found.services.get(each, "no answer")) for each in SERVICES]
    agents = [
        (f"agents on {count} node{'s' if count > 1 else ''}", release)
        for release, count in sorted(found.agents.items())
    ]
    return [*own, *services, *agents]


def topology_digest() -> str:
    """Equal where two releases set up the same streams, buckets and durables."""
    text = repr((EVERY_STREAM, BUCKETS, DURABLES)).encode()
    return hashlib.sha256(text).hexdigest()[:DIGITS]


async def _versions(nats_url: str, config: Path | None) -> Versions:
    own = Versions(
        navarch=installed("navarch"),
        python=platform.python_version(),
        subjects=subjects.ROOT,
        topology=topology_digest(),
    )
    try:
        async with connect_fleet(find_bus(nats_url, config)) as fleet:
            replies, agents = await asyncio.gather(service_replies(fleet), _agents(fleet))
    except NavarchError as error:
        return msgspec.structs.replace(own, problem=str(error))
    services = {name: each.version for name, each in replies.items()}
    return msgspec.structs.replace(own, services=services, agents=agents)


async def _agents(fleet: FleetClient) -> dict[str, int]:
    records = [_nodes.decode(each.value) for each in await fleet.bus.entries(NODES)]
    present = (each for each in records if each.state != "terminated" and each.registered_at)
    return dict(Counter(each.agent_version or UNKNOWN for each in present))
