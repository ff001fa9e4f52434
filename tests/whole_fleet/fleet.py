"""Runs a whole fleet on this machine: nats-server, the five services and local nodes.

Started by the code of `navarch serve`, and observed over the bus and HTTP like any client. The
services are forked, which starts them without importing everything again.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from schemas import subjects
from schemas.messages import Message, decoder
from schemas.node_records import NodeRecord
from schemas.pool_events import NodeReplaced
from schemas.pool_records import PoolRecord, pool_key
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, NODES, POOLS, SAGAS
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Stored
from services.cli.bus_client import user_options
from services.cli.commands.demo_command import xid_79
from services.cli.commands.serve_command import ServedFleet, lock_directory
from services.cli.fleet_discovery import LOCAL_FOLDER
from services.cli.nats_config_files import add_user
from services.provisioner.providers.local_gpus import compiler
from services.settings.settings_file import load_settings
from tests.support.fork_server import ForkServer
from tests.whole_fleet.workload_system import FakeWorkloadSystem, serve_workload_system

WAIT_SECONDS = 60.0

CONFIG = """
fleet: scenarios
data_dir: {directory}/data
providers:
  local:
    type: local
{local}
tracing:
  otlp_endpoint: {url}/v1/traces
agent:
  heartbeat_interval: 1s
  heartbeat_ttl: 3s
notifier:
  type: webhook
  webhook:
    cordon_url: {url}/cordon
    uncordon_url: {url}/uncordon
    drain_url: {url}/drain
    drain_status_url: {url}/drained
    headers:
      X-Fleet: scenarios
defaults:
  provider: local
  instance_type: local-8gpu
  gpu_count: 8
  budget:
    max_unavailable: 1
  drain_timeout: 10m
  launch_timeout: 30s
pools:
"""

_node = decoder(NodeRecord)
_pool = decoder(PoolRecord)


@dataclass(slots=True)
class Fleet:
    """The fleet, with its workload system and trace collector."""

    serving: ServedFleet
    bus: NatsBus
    workload: FakeWorkloadSystem
    directory: Path
    log: list[str] = field(default_factory=list)
    """Log lines of the services, for the analysis of a failed test."""

    @property
    def url(self) -> str:
        """Return the URL of the bus."""
        return self.serving.supervisor.url

    @property
    def pids(self) -> dict[str, int]:
        """Return the id of every process of the fleet except the nodes' agents."""
        return self.serving.supervisor.pids

    # --- nodes --------------------------------------------------------------------------------

    async def active(self, pool: str, count: int) -> list[NodeRecord]:
        """Wait until the pool has exactly this many nodes in service, none with a saga."""
        found: dict[str, NodeRecord] = {}
        async with (
            asyncio.timeout(WAIT_SECONDS),
            aclosing(self.bus.watch(NODES, f"{pool}.*")) as watching,
        ):
            async for entry in watching:
                record = None if entry.removed else _node.decode(entry.value)
                found.pop(entry.key, None)
                if record is not None and record.state != "terminated":
                    found[entry.key] = record
                if len(found) == count and all(
                    each.state == "active" and not each.saga for each in found.values()
                ):
                    break
        await self._at_rest(pool)
        return [found[key] for key in sorted(found)]

    async def _at_rest(self, pool: str) -> None:
        """Wait until no saga of the pool is open: closing it is its last write."""
        async with (
            asyncio.timeout(WAIT_SECONDS),
            aclosing(self.bus.watch(POOLS, pool_key(pool))) as watching,
        ):
            async for entry in watching:
                if not entry.removed and not _pool.decode(entry.value).open:
                    return

    def kmsg(self, node: str) -> Path:
        """Return the path of a node's kernel log."""
        return self.serving.directory / LOCAL_FOLDER / node / "kmsg"

    def break_gpu(self, node: NodeRecord, gpu: int = 3) -> str:
        """Write the driver's XID 79 line to the node's kernel log; return the line."""
        kmsg = self.kmsg(node.node)
        written = kmsg.read_bytes().count(b"\n")
        line = xid_79(node.gpus[gpu], written + 1, time.monotonic_ns() // 1000)
        with kmsg.open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")
        return line

    # --- the log ------------------------------------------------------------------------------

    async def last_sequences(self) -> dict[str, int]:
        """Return the last sequences of EVENTS and SAGAS."""
        return {name: await self.bus.last_sequence(name) for name in (EVENTS.name, SAGAS.name)}

    async def first(
        self, stream: str, filter_: str, after: int, wanted: Callable[[Message], bool]
    ) -> Stored:
        """Wait for the first message that matches."""
        async with (
            asyncio.timeout(WAIT_SECONDS),
            aclosing(self.bus.follow(stream, [filter_], "new", after=after)) as following,
        ):
            async for stored in following:
                message = decode_stored(stored)
                if isinstance(message, Message) and wanted(message):
                    return stored
        raise AssertionError("the bus stopped")

    async def replaced(self, node: str, after: int) -> NodeReplaced:
        """Wait until a node has been replaced."""
        stored = await self.first(
            EVENTS.name,
            subjects.pool_event_wildcard("node-replaced"),
            after,
            lambda message: isinstance(message, NodeReplaced) and message.old_node == node,
        )
        message = decode_stored(stored)
        assert isinstance(message, NodeReplaced)
        return message

    # --- over HTTP ----------------------------------------------------------------------------

    async def get(self, path: str) -> dict[str, httpx.Response]:
        """Send a GET request to every service."""
        children = self.serving.supervisor.children
        async with httpx.AsyncClient(timeout=WAIT_SECONDS) as client:
            answers = await asyncio.gather(
                *(client.get(f"{child.http}{path}") for child in children.values())
            )
        return dict(zip(children, answers, strict=True))

    async def counters(self, name: str) -> dict[tuple[str, ...], float]:
        """A counter's samples over all services: label values -> number."""
        found: dict[tuple[str, ...], float] = {}
        for answer in (await self.get("/metrics")).values():
            for family in text_string_to_metric_families(answer.text):
                for sample in family.samples:
                    if sample.name == name:
                        labels = tuple(sample.labels.values())
                        found[labels] = found.get(labels, 0.0) + sample.value
        return found


@asynccontextmanager
async def serving_fleet(
    directory: Path,
    pools: str = "",
    *,
    config: str = "",
    more: str = "",
    local: str = "",
    role: str = "",
) -> AsyncIterator[Fleet]:
    """Serve a fleet with these pools (YAML, each line indented), and stop it afterwards.

    `config`: the whole configuration instead; `more`: further sections of the configuration;
    `local`: further options of the provider; `role`: the bus is secured, and the test connects as a
    user of this role.
    """
    if compiler() is None:
        pytest.skip("no C compiler, so no simulated GPUs")
    async with serve_workload_system() as workload, ForkServer() as fork_server:
        file = directory / "navarch.yaml"
        base = CONFIG.format(directory=directory, url=workload.url, local=local)
        file.write_text(config or more + base + pools)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("NAVARCH_")}
        environment["OTEL_BSP_SCHEDULE_DELAY"] = "100"
        log: list[str] = []
        settings = load_settings(file, environment)
        with lock_directory(Path(settings.data_dir)):
            serving = ServedFleet(
                settings,
                file,
                environment,
                lambda name, line: log.append(f"{name} {line}"),
                is_open=not role,
                temporary=True,
                execute=fork_server.start,
            )
            async with serving:
                async with asyncio.timeout(WAIT_SECONDS):
                    await serving.supervisor.ready()
                nats = serving.nats
                if role and serving.bus is not None:
                    file = add_user(
                        serving.bus.directory, "tester", role, datetime.now(UTC), timedelta(hours=1)
                    )
                    nats = msgspec.structs.replace(nats, creds_file=str(file))
                watching = await NatsBus.connect(user_options(nats))
                try:
                    yield Fleet(serving, watching, workload, directory, log)
                finally:
                    await watching.close()
