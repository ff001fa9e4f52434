"""`navarch doctor` and `version`: what services depend on, checked, and the releases of all."""

import asyncio
import hashlib
import os
import platform
import resource
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version as installed
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import typer

from schemas import subjects
from schemas.messages import decoder
from schemas.node_records import NodeRecord
from schemas.permissions import SERVICES
from schemas.topology import BUCKETS, DURABLES, EVENTS, EVERY_STREAM, NODES
from services.bus.topology_plan import Configs, TopologyChange, topology_changes
from services.cli import console
from services.cli.bus_client import connect_fleet
from services.cli.command_options import Check, Config, NatsUrl, Output
from services.cli.commands.view_commands import FAILING
from services.cli.doctor_checks import (
    ConsumerInfo,
    Finding,
    StreamInfo,
    clock_finding,
    disk_finding,
    durable_findings,
    failure_findings,
    files_finding,
    service_findings,
    stream_findings,
)
from services.cli.fleet_discovery import SERVE_FILE, find_bus, read_serve_state, settings_of
from services.cli.service_replies import found_of, service_replies
from services.cli.supervisor import SERVER
from services.fleet_client.fleet_client import FleetClient
from services.primitives.errors import BusError, ConfigurationError, NavarchError

DIGITS: Final = 12
VERSION_HEADERS: Final = ("part", "release")
UNKNOWN: Final = "unknown"
_nodes = decoder(NodeRecord)
T = TypeVar("T")

HEADERS: Final = ("check", "", "what was found", "what to do")


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """Lists which releases run here, and in the fleet."""

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
    console.write_table(VERSION_HEADERS, version_rows(found), output=output)
    if found.problem:
        console.write(f"\nNothing is known of a fleet: {found.problem}")


def version_rows(found: Versions) -> list[tuple[str, str]]:
    """Return a table with one row per part. Pure."""
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


def doctor(
    nats_url: NatsUrl = "",
    config: Config = None,
    *,
    check: Check = False,
    output: Output = console.Format.TABLE,
) -> None:
    """Check everything that the fleet depends on.

    Exit code 3: something fails; with --check: also where something is only warned of.
    """
    findings = [*_configuration(config), *asyncio.run(_fleet(nats_url, config)), *_host(config)]
    if check:
        findings = [each for each in findings if each.outcome != "ok"]
    if output.is_data:
        console.write_data(output, findings)
    elif findings:
        rows = [(each.check, each.outcome, each.detail, each.remedy or "-") for each in findings]
        console.write_table(HEADERS, rows, output=output)
    if (check and findings) or any(each.outcome == "failing" for each in findings):
        raise typer.Exit(FAILING)


def _configuration(config: Path | None) -> list[Finding]:
    if config is None:
        return []
    from services.cli.configuration_check import check_file  # noqa: PLC0415 - loads every service

    try:
        check_file(config, os.environ)
    except ConfigurationError as error:
        return [
            Finding(
                check="configuration",
                outcome="failing",
                detail=str(each),
                remedy=f"`navarch config validate {config}`",
            )
            for each in error.errors
        ]
    return [Finding(check="configuration", detail=f"{config} is valid")]


def _host(config: Path | None) -> list[Finding]:
    try:
        directory = Path(settings_of(config).data_dir)
        usage = shutil.disk_usage(directory)
    except (NavarchError, OSError):
        return []
    found = [disk_finding(str(directory), usage.free, usage.total)]
    running = read_serve_state(directory / SERVE_FILE)
    with suppress(OSError):  # another user's
        if running is not None and (server := running.pids.get(SERVER)):
            found.append(files_finding(resource.prlimit(server, resource.RLIMIT_NOFILE)[1]))
    return found


async def _fleet(nats_url: str, config: Path | None) -> list[Finding]:
    try:
        settings = find_bus(nats_url, config)
        async with connect_fleet(settings) as fleet:
            user = f" as {fleet.user}" if fleet.user else ""
            connected = Finding(check="bus", detail=f"connected to {settings.url}{user}")
            return [connected, *[each async for each in _findings(fleet)]]
    except NavarchError as error:
        remedy = "start nats-server, or name another with --nats-url"
        return [Finding(check="bus", outcome="failing", detail=str(error), remedy=remedy)]


async def _findings(fleet: FleetClient) -> AsyncIterator[Finding]:
    asked = datetime.now(UTC)
    events = await _described(fleet, f"STREAM.INFO.{EVENTS.name}", StreamInfo)
    if events is not None:
        yield clock_finding(events.ts, asked, datetime.now(UTC))
    streams = await found_of(
        {
            each.name: _described(fleet, f"STREAM.INFO.{each.name}", StreamInfo)
            for each in EVERY_STREAM
        }
    )
    durables = await found_of(
        {
            each.name: _described(fleet, f"CONSUMER.INFO.{each.stream}.{each.name}", ConsumerInfo)
            for each in DURABLES
        }
    )
    replies = await service_replies(fleet)
    for each in (
        *stream_findings(streams),
        *durable_findings(durables),
        *_topology(
            list(topology_changes(_configs(streams), _configs(durables))) if streams else []
        ),
        *service_findings(replies, installed("navarch")),
        *failure_findings(await fleet.failures()),
    ):
        yield each


def _topology(changes: Sequence[TopologyChange]) -> list[Finding]:
    """What services of this release change when they start; one line where that is nothing."""
    changes = [each for each in changes if each.options]
    found = [
        Finding(
            check=each.about,
            outcome="warning" if each.is_possible else "failing",
            detail="; ".join(each.options),
            remedy="services of this release change that when they start; services of the release "
            "that made it change it back"
            if each.is_possible
            else "it cannot be changed in place: docs/upgrade.md",
        )
        for each in changes
    ]
    return found or [Finding(check="topology", detail="as this release sets it up")]


def _configs(found: Mapping[str, StreamInfo] | Mapping[str, ConsumerInfo]) -> Configs:
    return {name: each.config for name, each in found.items()}


async def _described(fleet: FleetClient, call: str, kind: type[T]) -> T | None:
    """A stream or consumer as the server describes it; None where there is none."""
    try:
        return msgspec.convert(await fleet.bus.admin(call, {}), kind)
    except BusError:
        return None
