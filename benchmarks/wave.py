"""A thousand nodes made sick at once, the budget lifted: until the last cordon and replacement.

nats-server and the services are processes as in production; nodes are instances of the `fake`
provider whose agents only speak, and the workload system takes every order at once. The faults are
published together by this process; the times are those at which the server stored the entries.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.outage import POOL, SERVICES, Agents, _active, _stop, _until
from schemas import subjects
from schemas.messages import encode
from schemas.node_events import FACTS, Fault
from schemas.node_records import NodeRecord
from schemas.settings import NatsSettings
from schemas.topology import EVENTS, SAGAS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.port import Stored
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock

NODES: Final = 1_000
CONCURRENT: Final = 200
"""Sagas of the second figure."""
LOOK_SECONDS: Final = 0.25
WAVE_SECONDS_MAX: Final = 300.0
XID: Final = 79


def _settings(directory: Path, nodes: int) -> dict[str, Any]:
    return {
        "fleet": "wave",
        "data_dir": str(directory / "data"),
        "providers": {"fake": {"file": str(directory / "provider.json")}},
        "budget": {"max_unavailable": "100%", "max_replacements": "unlimited"},
        "pools": {
            POOL: {
                "provider": "fake",
                "instance_type": "simulated",
                "gpu_count": 8,
                "min_nodes": nodes,
                "max_nodes": nodes,
                "health": {"incident": {"hold": "0s"}},
                "budget": {"max_unavailable": "100%", "max_replacements": "unlimited"},
            }
        },
        "notifier": {"type": "noop"},
    }


async def _sicken(bus: NatsBus, node: NodeRecord) -> None:
    fault = Fault(
        id=f"{node.node}.kmsg.1",
        time=datetime.now(UTC),
        pool=POOL,
        node=node.node,
        kind="xid",
        system="DCGM_HEALTH_WATCH_PCIE",
        gpu_index=3,
        gpu_uuid=f"GPU-{node.node}-3",
        code=XID,
        message="GPU has fallen off the bus.",
        metrics={"xid_code": XID},
        boot_id=node.boot_id,
        sequence=1,
    )
    subject = subjects.node_event(POOL, node.node, FACTS[Fault])
    await bus.publish(subject, encode(fault), msg_id=fault.id)


async def _entries(bus: NatsBus, step: str, status: str, after: int) -> list[Stored]:
    return await bus.read(SAGAS.name, subjects.saga_step_wildcard(step, status), after=after)


async def wave(
    bus: NatsBus, count: int, within_seconds: float = WAVE_SECONDS_MAX
) -> dict[str, Any]:
    """Make so many nodes sick at once; seconds until the last of each kind was stored."""
    chosen = list((await _active(bus)).values())[:count]
    after = await bus.last_sequence(SAGAS.name)
    told = await bus.last_sequence(EVENTS.name)
    begun = time.time()
    await asyncio.gather(*(_sicken(bus, node) for node in chosen))
    published = time.time() - begun
    replaced = subjects.pool_event_wildcard("node-replaced")
    async with asyncio.timeout(within_seconds):
        while len(await bus.read(EVENTS.name, replaced, after=told)) < count:  # noqa: ASYNC110 - facts are counted
            await asyncio.sleep(LOOK_SECONDS)
    figures: dict[str, Any] = {"nodes": len(chosen), "published_seconds": round(published, 2)}
    for name, step, status in (
        ("last_saga", "saga", "started"),
        ("last_cordon", "cordon", "succeeded"),
        ("last_replacement_started", "provision", "started"),
        ("last_done", "saga", "done"),
    ):
        stored = await _entries(bus, step, status, after)
        last = max(each.time.timestamp() for each in stored) - begun
        figures[f"{name}_seconds"] = round(last, 2)
    return figures


async def measure(nodes: int = NODES, concurrent: int = CONCURRENT) -> dict[str, Any]:
    """Measure both waves on one fleet, the smaller first."""
    with tempfile.TemporaryDirectory(prefix="wave-", ignore_cleanup_errors=True) as place:
        directory = Path(place)
        config = directory / "wave.yaml"
        config.write_text(json.dumps(_settings(directory, nodes)), "utf-8")
        async with AsyncExitStack() as ending:
            server = EmbeddedServer(directory / "nats")
            url = await server.start()
            ending.push_async_callback(server.stop)
            options = ConnectOptions(settings=NatsSettings(url=url), name="wave")
            bus = await NatsBus.connect(options)
            ending.push_async_callback(bus.close)
            await set_up(bus, SystemClock(), replicas=1)
            environment = {k: v for k, v in os.environ.items() if not k.startswith("NAVARCH_")} | {
                "NAVARCH_NATS_URL": url,
                "NAVARCH_CONFIG": str(config),
            }
            for name in SERVICES:
                log = (directory / f"{name}.log").open("ab")
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", f"services.{name}"),
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
                log.close()
                ending.push_async_callback(_stop, process)
            agents = Agents(bus, directory / "provider.json")
            living = asyncio.create_task(agents.run())
            ending.callback(living.cancel)
            filled = await _until(bus, nodes)
            small = await wave(bus, concurrent)
            await _until(bus, nodes)
            large = await wave(bus, nodes)
    return {
        "wave_fill_seconds": round(filled, 1),
        **{f"wave_{concurrent}_{name}": value for name, value in small.items()},
        **{f"wave_{name}": value for name, value in large.items()},
    }
