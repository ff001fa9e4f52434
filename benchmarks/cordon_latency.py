"""Time from a kernel log line to the cordon at the workload system, while telemetry flows.

A whole fleet runs on this machine: nats-server, the five services and a pool of local nodes, each
a real agent process that reads its own kernel log. A fault is an XID 79 line in one of them; the
figure is the time until the notifier's POST arrives at a receiver in this process. Each fault is
written after the node of the previous one was replaced. The times of the stored messages show how
long each hop took. The floor of each round is the same way through bare relays (`relays`), line by
line, on the same server under the same telemetry, to the same receiver.
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
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks import relays
from benchmarks.comparison import beside_floor, worst
from benchmarks.machine import percentile
from benchmarks.served import Effort, connect
from schemas import subjects
from schemas.messages import decoder
from schemas.node_events import GpuIdentity
from schemas.node_records import NodeRecord
from schemas.pool_events import NodeReplaced, pool_codec
from schemas.topology import EVENTS, NODES, SAGAS
from services.bus.nats.nats_bus import NatsBus
from services.cli.commands.demo_command import xid_79
from services.cli.commands.serve_command import ServedFleet, lock_directory
from services.cli.fleet_discovery import LOCAL_FOLDER
from services.runtime.process_http import WebServer
from services.settings.settings_file import load_settings

NODE_COUNT = 4
WARM_UP = 5
"""Faults that are not counted; afterwards everything is loaded and connected."""
RELAY_WARM_UP = 20
"""Lines that the relays pass on before the first that is counted."""
PAUSE_SECONDS = 0.1
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
      max_replacements: {faults}
budget:
  max_replacements: {faults}
"""
DEVIATIONS: Final = {
    "pool and fleet budget.max_replacements": (
        "one for each fault of the run; shipped: 50% of the nodes an hour, at least 3 in a pool "
        "and 10 in the fleet, after which no replacement starts in that hour. Both budgets are "
        "counted and claimed as shipped; max_unavailable is the shipped one"
    ),
    "health.incident.hold": (
        "0s; shipped: 15m, for which the breaker would stop after five equal faults in a minute"
    ),
}
HOPS = (
    ("line written to fault stored", "line", "fault"),
    ("fault stored to verdict stored", "fault", "verdict"),
    ("verdict stored to saga started", "verdict", "saga"),
    ("saga started to cordon commanded", "saga", "command"),
    ("cordon commanded to POST received", "command", "post"),
)

_node = decoder(NodeRecord)


class Receiver:
    """A workload system that records when a node is cordoned; every node is drained at once."""

    def __init__(self) -> None:
        """Start without cordons."""
        self.url = ""
        self.order_bytes = 0
        """Length of the last order."""
        self._cordoned: dict[str, asyncio.Future[float]] = {}

    def expect(self, node: str) -> "asyncio.Future[float]":
        """A future with the time at which the node is cordoned, by this machine's clock."""
        return self._cordoned.setdefault(node, asyncio.get_running_loop().create_future())

    async def cordon(self, request: Request) -> Response:
        """Accept the request and record when it arrived."""
        now = time.time()
        self.order_bytes = len(await request.body())
        cordoned = self.expect((await request.json())["node_id"])
        if not cordoned.done():
            cordoned.set_result(now)
        return Response(status_code=202)

    async def drain(self, _: Request) -> Response:
        """Accept the request."""
        return Response(status_code=202)

    async def drained(self, _: Request) -> Response:
        """Answer that no work is left."""
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
    bound = socket.create_server(("127.0.0.1", 0))
    # Without it a response body waits until the header is acknowledged.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    receiver.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    server = WebServer(Starlette(routes=routes))
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    yield receiver
    server.should_exit = server.force_exit = True
    await serving


@asynccontextmanager
async def fleet(
    directory: Path, url: str, faults: int, *, gateway: bool = False
) -> AsyncIterator[tuple[ServedFleet, NatsBus]]:
    """Run the measured fleet."""
    config = directory / "navarch.yaml"
    config.write_text(
        CONFIG.format(directory=directory, url=url, nodes=NODE_COUNT, faults=faults),
        encoding="utf-8",
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NAVARCH_")}
    settings = load_settings(config, environment)
    with lock_directory(Path(settings.data_dir)):
        async with ServedFleet(
            *(settings, config, environment, lambda *_: None), is_open=True, gateway=gateway
        ) as serving:
            async with asyncio.timeout(WAIT_SECONDS):
                await serving.supervisor.ready()
            bus = await connect(serving.supervisor.url)
            try:
                yield serving, bus
            finally:
                await bus.close()


@asynccontextmanager
async def telemetry(url: str, agents: int) -> AsyncIterator[dict[str, int]]:
    """Publish the samples of so many agents from another process; yields their count at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.telemetry_publisher", url, str(agents)),
        stdout=asyncio.subprocess.PIPE,
    )
    counts: dict[str, int] = {}
    start = time.monotonic()
    try:
        yield counts
    finally:
        process.send_signal(signal.SIGTERM)
        out, _ = await process.communicate()
        seconds = time.monotonic() - start
        counts |= json.loads(out)
        counts["per_second"] = round(counts["sent"] / seconds)


class FaultWriter:
    """Breaks one node after another."""

    def __init__(self, serving: ServedFleet, bus: NatsBus, receiver: Receiver) -> None:
        """Break nodes of this fleet."""
        self._folder = serving.directory / LOCAL_FOLDER
        self._bus = bus
        self._receiver = receiver
        self._active: dict[str, NodeRecord] = {}
        self._changed = asyncio.Condition()

    async def watch(self) -> None:
        """Follow which nodes are in service, forever."""
        async for entry in self._bus.watch(NODES):
            record = None if entry.removed else _node.decode(entry.value)
            self._active.pop(entry.key, None)
            if record is not None and record.state == "active" and not record.saga:
                self._active[entry.key] = record
            async with self._changed:
                self._changed.notify_all()

    async def oldest(self) -> NodeRecord:
        """Wait until all nodes are in service; return the one admitted first."""
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(lambda: len(self._active) == NODE_COUNT)
            return min(self._active.values(), key=lambda node: str(node.admitted_at))

    async def break_one(self, replaced: "asyncio.Queue[str]") -> tuple[str, float, float]:
        """Break a node; return its name, the time of the line and the time of the cordon."""
        node = await self.oldest()
        await asyncio.sleep(PAUSE_SECONDS)
        line = xid_79(node.gpus[3], 1, time.monotonic_ns() // 1000)
        cordoned_at = self._receiver.expect(node.node)
        with (self._folder / node.node / "kmsg").open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")
            written = time.time()
        async with asyncio.timeout(WAIT_SECONDS):
            cordoned = await cordoned_at
            while await replaced.get() != node.node:
                pass
        return node.node, written, cordoned


class RelayedFaults:
    """Writes lines to the kernel log that the relays follow."""

    def __init__(self, log: Path, receiver: Receiver) -> None:
        """Write to `log`."""
        self._log = log
        self._receiver = receiver
        self._number = 0

    async def write_one(self) -> float:
        """Write one line; return the seconds until its cordon arrives."""
        await asyncio.sleep(PAUSE_SECONDS)
        self._number += 1
        gpu = GpuIdentity(index=3, pci="0000:61:00")
        line = xid_79(gpu, self._number, time.monotonic_ns() // 1000)
        cordoned_at = self._receiver.expect(f"line-{self._number}")
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")
            written = time.time()
        async with asyncio.timeout(WAIT_SECONDS):
            return await cordoned_at - written


async def follow_replaced(bus: NatsBus, replaced: "asyncio.Queue[str]") -> None:
    """Put the name of each node that was replaced into a queue, forever."""
    wanted = subjects.pool_event_wildcard("node-replaced")
    async with aclosing(bus.follow(EVENTS.name, [wanted], "new")) as following:  # type: ignore[type-var]
        async for stored in following:
            event = pool_codec.decode(stored.data)
            assert isinstance(event, NodeReplaced)
            replaced.put_nowait(event.old_node)


async def measure(effort: Effort, faults: int, agents: int) -> dict[str, Any]:
    """Measure so many faults a round, each round with its floor under the same load."""
    count = WARM_UP + effort.rounds * faults
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as place:
        async with (
            receiving() as receiver,
            fleet(Path(place), receiver.url, count) as (serving, bus),
            telemetry(serving.supervisor.url, agents) as sent,
        ):
            writer = FaultWriter(serving, bus, receiver)
            replaced: asyncio.Queue[str] = asyncio.Queue()
            tasks = [
                asyncio.create_task(writer.watch()),
                asyncio.create_task(follow_replaced(bus, replaced)),
            ]
            try:
                for _ in range(WARM_UP):
                    await writer.break_one(replaced)
                log = Path(place) / "floor" / "kmsg"
                log.parent.mkdir()
                log.touch()
                options = relays.Options(
                    url=serving.supervisor.url,
                    sizes=await relays.sizes_of_last(bus) | {relays.POST: receiver.order_bytes},
                    kernel_log=str(log),
                    post_url=f"{receiver.url}/cordon",
                )
                runs: list[tuple[str, float, float]] = []
                floors: list[float] = []
                async with relays.relaying(bus, options, agent_here=False):
                    relayed = RelayedFaults(log, receiver)
                    for _ in range(RELAY_WARM_UP):
                        await relayed.write_one()
                    for _ in effort.numbers():
                        runs += [await writer.break_one(replaced) for _ in range(faults)]
                        floors += [await relayed.write_one() for _ in range(faults)]
                timelines = await _timelines(bus, runs)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
    latencies = [cordoned - written for _, written, cordoned in runs]
    return {
        **_beside_floor("kmsg_to_cordon_ms_p50", latencies, floors, 50, faults),
        **_beside_floor("kmsg_to_cordon_ms_p99", latencies, floors, 99, faults),
        "kmsg_to_cordon_ms_max": round(1000 * max(latencies), 2),
        "faults": len(latencies),
        "hops_ms": _hops(timelines),
        "telemetry": {"agents": agents, **sent},
    }


def _beside_floor(
    name: str, latencies: list[float], floors: list[float], percent: float, each_round: int
) -> dict[str, float]:
    def at(times: list[float]) -> float:
        return round(1000 * percentile(times, percent), 2)

    rounds = (slice(i, i + each_round) for i in range(0, len(latencies), each_round))
    pairs = ((at(latencies[each]), at(floors[each])) for each in rounds)
    return beside_floor(name, at(latencies), at(floors)) | worst(name, pairs)


async def _timelines(bus: NatsBus, runs: list[tuple[str, float, float]]) -> list[dict[str, float]]:
    """Hop -> time in seconds, for each fault."""
    found = {node: {"line": written, "post": cordoned} for node, written, cordoned in runs}
    events = await bus.read(EVENTS.name, subjects.NODE_EVENTS)
    for stored in events:
        subject = subjects.parse_node(stored.subject)
        if subject is None or subject.node not in found:
            continue
        timeline = found[subject.node]
        if (
            subject.fact in ("fault", "verdict")
            and stored.time.timestamp() > timeline["line"] - 0.05
        ):
            timeline.setdefault(subject.fact, stored.time.timestamp())
    for stored in await bus.read(SAGAS.name, subjects.SAGAS):
        entry = subjects.parse_saga(stored.subject)
        node = entry.saga.removeprefix("replace-").rpartition("-")[0] if entry else ""
        if entry is None or node not in found or entry.status != "started":
            continue
        if name := {"saga": "saga", "cordon": "command"}.get(entry.step):
            found[node][name] = stored.time.timestamp()
    return list(found.values())


def _hops(timelines: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Percentiles of each hop."""
    hops: dict[str, dict[str, float]] = {}
    for name, start, end in HOPS:
        took = [1000 * (timeline[end] - timeline[start]) for timeline in timelines]
        hops[name] = {
            "p50": round(percentile(took, 50), 2),
            "p99": round(percentile(took, 99), 2),
        }
    return hops
