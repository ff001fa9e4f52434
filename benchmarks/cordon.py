"""From a kernel log line to the cordon at the workload system, fault after fault, under telemetry.

A whole fleet runs on this machine: nats-server, the five services and a pool of local nodes, each
a real agent process that follows its own kernel log. A fault is an XID 79 line in one of them; the
figure is the time until the notifier's POST arrives at a receiver in this process. Each fault waits
for the replacement of the one before it. The stored messages tell where the time went.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks.machine import percentile
from schemas import subjects
from schemas.messages import decoder
from schemas.node_records import NodeRecord
from schemas.pool_events import NodeReplaced, pool_codec
from schemas.settings import NatsSettings
from schemas.topology import EVENTS, NODES, SAGAS
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.cli.commands.demo_command import xid_79
from services.cli.commands.serve_command import LOCAL_FOLDER, Serving, locked
from services.runtime.process_http import WebServer
from services.settings.settings_file import load_settings

NODES_WANTED = 4
WARM_UP = 5
"""Faults that are not counted: everything is loaded and connected by then."""
CALM_SECONDS = 0.1
"""Between a replacement and the next fault."""
WAIT_SECONDS = 60.0
CONFIG = """
fleet: bench
data_dir: {directory}/data
providers:
  local:
    type: local
notifier:
  type: webhook
  webhook:
    cordon_url: {url}/cordon
    drain_url: {url}/drain
    drain_status_url: {url}/drained
pools:
  bench:
    provider: local
    instance_type: local-8gpu
    gpu_count: 8
    min_nodes: {nodes}
    max_nodes: {nodes}
    launch_timeout: 60s
    health:
      incident: {{hold: 0s}}
    budget:
      max_unavailable: {nodes}
      max_replacements: unlimited
budget:
  max_unavailable: 100%
  max_replacements: unlimited
"""
HOPS = (
    ("line written to fault stored", "line", "fault"),
    ("fault stored to verdict stored", "fault", "verdict"),
    ("verdict stored to saga started", "verdict", "saga"),
    ("saga started to cordon commanded", "saga", "command"),
    ("cordon commanded to told", "command", "told"),
)

_node = decoder(NodeRecord)


class Receiver:
    """The workload system: notes when it is told to cordon a node; a node is always drained."""

    def __init__(self) -> None:
        """Nothing told yet."""
        self.url = ""
        self._told: dict[str, asyncio.Future[float]] = {}

    def expect(self, node: str) -> "asyncio.Future[float]":
        """When the node will be cordoned, by this machine's clock."""
        return self._told.setdefault(node, asyncio.get_running_loop().create_future())

    async def cordon(self, request: Request) -> Response:
        """Take the order; its time is that of its arrival."""
        now = time.time()
        told = self.expect((await request.json())["node_id"])
        if not told.done():
            told.set_result(now)
        return Response(status_code=202)

    async def drain(self, _: Request) -> Response:
        """Take the order."""
        return Response(status_code=202)

    async def drained(self, _: Request) -> Response:
        """No work is left anywhere."""
        return JSONResponse({"drained": True})


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """Serve a receiver on a free port."""
    receiver = Receiver()
    routes = [
        Route("/cordon", receiver.cordon, methods=["POST"]),
        Route("/drain", receiver.drain, methods=["POST"]),
        Route("/drained", receiver.drained),
    ]
    config = uvicorn.Config(
        Starlette(routes=routes), port=0, log_config=None, lifespan="off", access_log=False
    )
    bound = config.bind_socket()
    # Without it an answer's body waits for the acknowledgement of its head.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    receiver.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    server = WebServer(config)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    yield receiver
    server.should_exit = server.force_exit = True
    await serving


@asynccontextmanager
async def fleet(directory: Path, url: str) -> AsyncIterator[tuple[Serving, NatsBus]]:
    """Run the fleet that the figures are of."""
    config = directory / "navarch.yaml"
    config.write_text(
        CONFIG.format(directory=directory, url=url, nodes=NODES_WANTED), encoding="utf-8"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NAVARCH_")}
    settings = load_settings(config, environment)
    with locked(Path(settings.data_dir)):
        async with Serving(settings, config, environment, lambda *_: None) as serving:
            async with asyncio.timeout(WAIT_SECONDS):
                await serving.supervisor.ready()
            bus = await NatsBus.connect(
                ConnectOptions(settings=NatsSettings(url=serving.supervisor.url), name="bench")
            )
            try:
                yield serving, bus
            finally:
                await bus.close()


@asynccontextmanager
async def telemetry(url: str, agents: int) -> AsyncIterator[dict[str, int]]:
    """Publish so many agents' samples from a process of its own; tells at the end how many."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.samples", url, str(agents)),
        stdout=asyncio.subprocess.PIPE,
    )
    told: dict[str, int] = {}
    begun = time.monotonic()
    try:
        yield told
    finally:
        process.send_signal(signal.SIGTERM)
        out, _ = await process.communicate()
        seconds = time.monotonic() - begun
        told |= json.loads(out)
        told["per_second"] = round(told["sent"] / seconds)


class Faults:
    """Breaks one node after the other."""

    def __init__(self, serving: Serving, bus: NatsBus, receiver: Receiver) -> None:
        """Break nodes of this fleet."""
        self._folder = serving.directory / LOCAL_FOLDER
        self._bus = bus
        self._receiver = receiver
        self._active: dict[str, NodeRecord] = {}
        self._changed = asyncio.Condition()

    async def watch(self) -> None:
        """Know the nodes in service, for ever."""
        async for entry in self._bus.watch(NODES):
            record = None if entry.removed else _node.decode(entry.value)
            self._active.pop(entry.key, None)
            if record is not None and record.state == "active" and not record.saga:
                self._active[entry.key] = record
            async with self._changed:
                self._changed.notify_all()

    async def oldest(self) -> NodeRecord:
        """Wait until all nodes are in service, and name the one that has been for longest."""
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(lambda: len(self._active) == NODES_WANTED)
            return min(self._active.values(), key=lambda node: str(node.admitted_at))

    async def break_one(self, replaced: "asyncio.Queue[str]") -> tuple[str, float, float]:
        """Break a node; return its name, when the line was written and when it was cordoned."""
        node = await self.oldest()
        await asyncio.sleep(CALM_SECONDS)
        line = xid_79(node.gpus[3], 1, time.monotonic_ns() // 1000)
        told = self._receiver.expect(node.node)
        with (self._folder / node.node / "kmsg").open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")
            written = time.time()
        async with asyncio.timeout(WAIT_SECONDS):
            cordoned = await told
            while await replaced.get() != node.node:
                pass
        return node.node, written, cordoned


async def _follow_replaced(bus: NatsBus, replaced: "asyncio.Queue[str]") -> None:
    wanted = subjects.pool_event_wildcard("node-replaced")
    async with aclosing(bus.follow(EVENTS.name, [wanted], "new")) as following:  # type: ignore[type-var]
        async for stored in following:
            event = pool_codec.decode(stored.data)
            assert isinstance(event, NodeReplaced)
            replaced.put_nowait(event.old_node)


async def measure(faults: int, agents: int) -> dict[str, Any]:
    """Measure; the result holds the figures and what they were measured under."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as place:
        async with (
            receiving() as receiver,
            fleet(Path(place), receiver.url) as (serving, bus),
            telemetry(serving.supervisor.url, agents) as sent,
        ):
            breaking = Faults(serving, bus, receiver)
            replaced: asyncio.Queue[str] = asyncio.Queue()
            tasks = [
                asyncio.create_task(breaking.watch()),
                asyncio.create_task(_follow_replaced(bus, replaced)),
            ]
            try:
                runs = [await breaking.break_one(replaced) for _ in range(WARM_UP + faults)]
                stories = await _stories(bus, runs[WARM_UP:])
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
    latencies = [1000 * (cordoned - written) for _, written, cordoned in runs[WARM_UP:]]
    return {
        "kmsg_to_cordon_ms_p50": round(percentile(latencies, 50), 2),
        "kmsg_to_cordon_ms_p99": round(percentile(latencies, 99), 2),
        "kmsg_to_cordon_ms_max": round(max(latencies), 2),
        "faults": len(latencies),
        "hops_ms": _hops(stories),
        "telemetry": {"agents": agents, **sent},
    }


async def _stories(bus: NatsBus, runs: list[tuple[str, float, float]]) -> list[dict[str, float]]:
    """When each station of each fault's way was passed, in seconds."""
    found = {node: {"line": written, "told": told} for node, written, told in runs}
    events = await bus.read(EVENTS.name, subjects.NODE_EVENTS)
    for stored in events:
        subject = subjects.parse_node(stored.subject)
        if subject is None or subject.node not in found:
            continue
        story = found[subject.node]
        if subject.fact in ("fault", "verdict") and stored.time.timestamp() > story["line"] - 0.05:
            story.setdefault(subject.fact, stored.time.timestamp())
    for stored in await bus.read(SAGAS.name, subjects.SAGAS):
        entry = subjects.parse_saga(stored.subject)
        node = entry.saga.removeprefix("replace-").rpartition("-")[0] if entry else ""
        if entry is None or node not in found or entry.status != "started":
            continue
        if name := {"saga": "saga", "cordon": "command"}.get(entry.step):
            found[node][name] = stored.time.timestamp()
    return list(found.values())


def _hops(stories: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Where the time went, hop by hop."""
    hops: dict[str, dict[str, float]] = {}
    for name, start, end in HOPS:
        took = [1000 * (story[end] - story[start]) for story in stories]
        hops[name] = {
            "p50": round(percentile(took, 50), 2),
            "p99": round(percentile(took, 99), 2),
        }
    return hops
