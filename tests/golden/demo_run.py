"""Runs the fleet of config/demo.yaml until a broken GPU is replaced; returns what it stored."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from schemas import subjects
from schemas.messages import decoder, encode
from schemas.node_records import NodeRecord
from schemas.operator_requests import NodeRequest
from schemas.settings import NatsSettings
from schemas.topology import BUCKETS, EVENTS, EVIDENCE, NODES, SAGAS, STREAMS
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.port import Stored
from services.cli.commands.demo_command import xid_79
from services.cli.commands.serve_command import ServedFleet, lock_directory
from services.cli.fleet_discovery import LOCAL_FOLDER
from services.settings.settings_file import load_settings

CONFIG: Final = Path(__file__).resolve().parents[2] / "config" / "demo.yaml"
POOL: Final = "training"
NODE_COUNT: Final = 3
WAIT_SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 3.0
"""After the last event that is waited for: telemetry and evidence are written later."""

_decode_node = decoder(NodeRecord)


async def demo_messages() -> list[tuple[str, Stored]]:
    """Run it; return stream and message of all that the server stored."""
    with TemporaryDirectory(prefix="golden-", ignore_cleanup_errors=True) as directory:
        async with _fleet(Path(directory)) as (serving, bus), asyncio.timeout(WAIT_SECONDS):
            nodes = await _active_nodes(bus)
            node = nodes[0]
            kmsg = serving.directory / LOCAL_FOLDER / node.node / "kmsg"
            lines = kmsg.read_bytes().count(b"\n")
            with kmsg.open("a", encoding="utf-8") as log:
                log.write(f"{xid_79(node.gpus[3], lines + 1, time.monotonic_ns() // 1000)}\n")
            await _first(bus, subjects.pool_event_wildcard("node-replaced"))
            request = encode(NodeRequest(node=nodes[1].node, by="ops@example.com"))
            await bus.publish(subjects.pool_request(POOL, "cordon"), request, msg_id="cordon-1")
            await _first(bus, subjects.pool_event_wildcard("request-accepted"))
            await asyncio.sleep(SETTLE_SECONDS)
            return await _everything(bus)


@asynccontextmanager
async def _fleet(directory: Path) -> AsyncIterator[tuple[ServedFleet, NatsBus]]:
    config = directory / "demo.yaml"
    data = directory / "data"
    config.write_text(f"{CONFIG.read_text('utf-8')}\ndata_dir: {data}\n", encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NAVARCH_")}
    settings = load_settings(config, environment)
    with lock_directory(data):
        async with ServedFleet(
            settings, config, environment, lambda *_: None, is_open=True
        ) as serving:
            async with asyncio.timeout(WAIT_SECONDS):
                await serving.supervisor.ready()
            bus = await NatsBus.connect(
                ConnectOptions(settings=NatsSettings(url=serving.supervisor.url), name="golden")
            )
            try:
                yield serving, bus
            finally:
                await bus.close()


async def _active_nodes(bus: NatsBus) -> list[NodeRecord]:
    active: dict[str, NodeRecord] = {}
    async with aclosing(bus.watch(NODES)) as watching:  # type: ignore[type-var]
        async for entry in watching:
            record = None if entry.removed else _decode_node.decode(entry.value)
            if record is not None and record.state == "active":
                active[entry.key] = record
            if len(active) == NODE_COUNT:
                break
    return [active[key] for key in sorted(active)]


async def _first(bus: NatsBus, subject: str) -> None:
    async with aclosing(bus.follow(EVENTS.name, [subject], "all")) as following:  # type: ignore[type-var]
        async for _ in following:
            return


async def _everything(bus: NatsBus) -> list[tuple[str, Stored]]:
    found = [
        (stream.name, stored)
        for stream in STREAMS
        if stream.name in (EVENTS.name, SAGAS.name) or stream.retention != "workqueue"
        for stored in await bus.read(stream.name, ">")
    ]
    for bucket in BUCKETS:
        for entry in await bus.entries(bucket):
            subject = f"$KV.{bucket.name}.{entry.key}"
            stored = Stored(subject, entry.value, entry.revision, found[0][1].time)
            found.append((f"KV_{bucket.name}", stored))
    for info in await bus.objects(EVIDENCE):
        content = await bus.get_object(EVIDENCE, info.name)
        if content is not None:
            found.append(
                (f"OBJ_{EVIDENCE.name}", Stored(info.name, content.data, 0, found[0][1].time))
            )
    return found
