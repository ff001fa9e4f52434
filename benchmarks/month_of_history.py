"""`python -m benchmarks.month_of_history MESSAGES`: what a month's history costs.

Ten million messages are a month of a large fleet. Events, logs of sagas that have ended, with their
timers, samples and records are stored in its proportions, as fast as the server takes them. Then
the server, also after a kill, and the services are started on them, an upgrade's set-up is made,
and a backup, which is restored into an empty server as docs/backup.md says. What the limits of
streams discard counts as stored.
"""

import argparse
import asyncio
import itertools
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.machine import machine, resident_bytes
from benchmarks.telemetry_publisher import sample
from schemas import subjects
from schemas.messages import encode
from schemas.node_events import Fault
from schemas.node_records import NodeRecord, node_key
from schemas.permissions import SERVICES
from schemas.saga_log_entries import (
    STATUSES,
    WHOLE,
    SagaDone,
    SagaEntry,
    SagaStarted,
    StepStarted,
    StepSucceeded,
    TimerDue,
)
from schemas.saga_params import LaunchSpec, SagaParams
from schemas.settings import NatsSettings
from schemas.topology import DURABLES, EVENTS, EVERY_STREAM, EVIDENCE, METRICS_EVENTS, NODES, SAGAS
from services.bus.backup.store_backup import back_up
from services.bus.backup.store_restore import restore
from services.bus.nats.archive_bus import ArchiveBus
from services.bus.nats.connection_options import ConnectOptions
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.protocol.server_protocol import firing
from services.bus.topology_setup import begin_durable, set_up
from services.primitives.clock import SystemClock
from services.saga.coordinator import KEPT_SECONDS

MONTH: Final = 10_000_000
NODE_COUNT: Final = 10_000
POOL: Final = "training"
AT_ONCE: Final = 2_000
"""Messages between two acknowledgements: the server queues 10,000 for a stream."""
STEPS: Final = ("cordon", "drain", "terminate", "provision", "bootstrap", "register", "admit")
OWNER: Final = "pool-manager"
EVIDENCE_EVERY: Final = 100_000
EVIDENCE_BYTES: Final = 200_000
COMPARED: Final = ("messages", "last_seq")
DISCARDED_SHARE_MAX: Final = 0.001
CLOCK: Final = SystemClock()
Stored = tuple[str, bytes, dict[str, str]]
"""Subject, data and headers."""


def saga_logs(now: datetime) -> Iterator[Stored]:
    """Replacements that have ended, entry by entry, each with the timer that removes its log."""
    for number in itertools.count():
        node, new = f"node-{number % NODE_COUNT}", f"node-{(number + 1) % NODE_COUNT}"
        saga = f"replace-{node}-{number}"
        launch = LaunchSpec(fleet="month", provider="aws", instance_type="p5.48xlarge", gpu_count=8)
        reason = "XID 79: the GPU fell off the bus"
        params = SagaParams(pool=POOL, node=node, new_node=new, launch=launch, reason=reason)
        about: dict[str, Any] = {"id": saga, "time": now, "saga": saga}
        entries: list[tuple[str, SagaEntry]] = [
            (WHOLE, SagaStarted(**about, kind="replace", params=params))
        ]
        for step in STEPS:
            inputs = {"node": node, "pool": POOL, "reason": reason}
            entries.append((step, StepStarted(**about, step=step, inputs=inputs, deadline=now)))
            entries.append((step, StepSucceeded(**about, step=step)))
        entries.append((WHOLE, SagaDone(**about)))
        for step, entry in entries:
            yield subjects.saga_entry(saga, step, STATUSES[type(entry)]), encode(entry), {}
        due = TimerDue(id=f"{saga}.due", time=now, cause=saga, saga=saga, step=WHOLE)
        fires = firing(now + timedelta(seconds=KEPT_SECONDS), subjects.timer_due(OWNER, saga))
        yield subjects.timer_schedule(OWNER, saga), encode(due), fires


def history(count: int) -> Iterator[Stored]:
    """Yield so many messages: of 20, 13 are events, 4 of sagas, 2 records, 1 a sample."""
    now = datetime.now(UTC)
    sagas = saga_logs(now)
    for number in range(count):
        node = f"node-{number % NODE_COUNT}"
        kind = number % 20
        if kind < 13:
            fault = Fault(
                id=f"{node}.kmsg.{number}",
                time=now,
                pool=POOL,
                node=node,
                kind="xid",
                code=13,
                message="NVRM: Xid (PCI:0000:3b:00): 13, pid=123, name=python, Graphics Exception",
            )
            yield subjects.node_event(POOL, node, "fault"), encode(fault), {}
        elif kind < 17:
            yield next(sagas)
        elif kind < 19:
            node = f"node-{number // 20 % NODE_COUNT}"
            record = NodeRecord(pool=POOL, node=node, state="terminated", changed_at=now)
            yield f"$KV.{NODES.name}.{node_key(POOL, node)}", encode(record), {}
        else:
            yield subjects.telemetry(POOL, node), encode(sample(node, number)), {}


async def fill(bus: ArchiveBus, count: int) -> None:
    """Store them without waiting for each; one in so many of each stream is acknowledged."""
    client = bus._client  # noqa: SLF001 - no service stores without an acknowledgement
    for number, (subject, data, headers) in enumerate(history(count)):
        if number % AT_ONCE < 20:
            await bus.publish(subject, data, headers=headers)
        else:
            await client.publish(subject, data, headers=headers or None)
        if number % EVIDENCE_EVERY == 0:
            content = os.urandom(EVIDENCE_BYTES)
            await bus.put_object(EVIDENCE, f"case-{number}", content, metadata={}, revision=0)
    for durable in DURABLES:
        last = await bus.last_sequence(durable.stream)
        if durable.stream in (EVENTS.name, SAGAS.name):
            await begin_durable(bus, durable, last, 1)


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Return how long the work takes, in seconds."""
    began = time.monotonic()
    await work()
    return round(time.monotonic() - began, 1)


async def connected(server: EmbeddedServer) -> ArchiveBus:
    """Return an administrator's connection."""
    settings = NatsSettings(url=server.url)
    return await ArchiveBus.connect(ConnectOptions(settings=settings, name="bench"))


async def services_ready(url: str, directory: Path) -> dict[str, float]:
    """Start all with the gateway; how long each took until it said that it is ready. End them."""
    config = directory / "navarch.yaml"
    config.write_text(f"fleet: month\ndata_dir: {directory}/data\npools: {{}}\n", "utf-8")
    environment = {
        **os.environ,
        "NAVARCH_NATS_URL": url,
        "NAVARCH_CONFIG": str(config),
        "NAVARCH_AUTH_TOKEN": secrets.token_urlsafe(32),
    }
    began = time.monotonic()

    async def ready(service: str) -> float:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"services.{service.replace('-', '_')}"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
        )
        running.append(process)
        assert process.stdout is not None
        while line := await process.stdout.readline():
            if b'"msg": "ready"' in line:
                return round(time.monotonic() - began, 1)
        raise RuntimeError(f"{service} ended")

    running: list[asyncio.subprocess.Process] = []
    every = (*SERVICES, "gateway")
    try:
        return dict(zip(every, await asyncio.gather(*map(ready, every)), strict=True))
    finally:
        for process in running:
            process.kill()
        await asyncio.gather(*(process.wait() for process in running))


async def measure(count: int, directory: Path, found: dict[str, Any]) -> None:
    """Fill a store, then measure; `found` gets each figure."""
    server = EmbeddedServer(directory / "full", sync=False)
    await server.start()
    bus = await connected(server)
    await set_up(bus, CLOCK, replicas=1, durables=())
    found |= {"messages": count, **machine(), "load_before": os.getloadavg()[1]}
    found["filled_seconds"] = await timed(lambda: fill(bus, count))
    # As an earlier release has it: a description and the filters of a consumer.
    older = EVENTS.config(1) | {"description": "older"}
    await bus.admin(f"STREAM.UPDATE.{EVENTS.name}", older)
    place = f"CONSUMER.DURABLE.CREATE.{EVENTS.name}.{METRICS_EVENTS.name}"
    info = await bus.admin(f"CONSUMER.INFO.{EVENTS.name}.{METRICS_EVENTS.name}", {})
    config = info["config"] | {"filter_subjects": [subjects.NODE_EVENTS]}
    await bus.admin(place, {"stream_name": EVENTS.name, "config": config})
    await bus.close()
    found["server_stopped_seconds"] = await timed(server.stop)

    server = EmbeddedServer(directory / "full")
    empty = EmbeddedServer(directory / "empty", sync=False)
    found["server_started_seconds"] = await timed(server.start)
    await server.kill()
    found["server_started_after_kill_seconds"] = await timed(server.start)
    bus = await connected(server)
    found["upgrade_seconds"] = await timed(lambda: set_up(bus, CLOCK, replicas=1))
    found["services_ready_seconds"] = await services_ready(server.url, directory)
    for spec in EVERY_STREAM:
        state = (await bus.admin(f"STREAM.INFO.{spec.name}", {}))["state"]
        if state["messages"]:
            found[f"{spec.name}_messages"] = state["messages"]
            found[f"{spec.name}_mib"] = round(state["bytes"] / 1_048_576)
    found["server_resident_mib"] = round(resident_bytes(server.pid) / 1_048_576)
    began = time.monotonic()
    manifest = await back_up(bus, CLOCK, directory / "backup")
    found["backup_seconds"] = round(time.monotonic() - began, 1)
    found["backup_mib"] = round(manifest.bytes / 1_048_576)
    # A restore learns the IDs of the last minutes again, of which a month has few events.
    later = manifest.ended_at + timedelta(seconds=EVENTS.duplicate_window_seconds)
    manifest = msgspec.structs.replace(manifest, ended_at=later)
    await empty.start()
    other = await connected(empty)
    found["restore_seconds"] = await timed(
        lambda: restore(other, CLOCK, directory / "backup", manifest, replicas=1)
    )
    for spec in (EVENTS, SAGAS, NODES.stream()):
        infos = [await each.admin(f"STREAM.INFO.{spec.name}", {}) for each in (bus, other)]
        first, second = ([each["state"][key] for key in COMPARED] for each in infos)
        # A stream that is full discards its oldest messages for what a restore adds to it.
        assert first == second or spec is EVENTS, (spec.name, first, second)
        assert abs(first[0] - second[0]) < DISCARDED_SHARE_MAX * first[0], (first, second)
    found["load_after"] = os.getloadavg()[1]
    await bus.close()
    await other.close()
    await server.stop()
    await empty.stop()


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.month_of_history")
    parser.add_argument("messages", type=int, nargs="?", default=MONTH)
    parser.add_argument("--directory", type=Path, help="where the stores are kept meanwhile")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="month-", dir=arguments.directory) as directory:
        found: dict[str, Any] = {}
        try:
            asyncio.run(measure(arguments.messages, Path(directory), found))
        finally:
            sys.stdout.write(f"{json.dumps(found, indent=2)}\n")


if __name__ == "__main__":
    main()
