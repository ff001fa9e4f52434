"""`navarch demo`: a fleet on this machine loses a GPU, and replaces the node.

A nats-server, five service processes and three agents run. One kernel log line is written to one
node's log; everything after that is Navarch's own work. Files are in a temporary directory that is
removed when the demo ends, also after a signal.
"""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Final

import msgspec

from agent.operator_tools import last_sequence
from schemas import subjects
from schemas.messages import decoder
from schemas.node_events import GpuIdentity
from schemas.node_records import NodeRecord
from schemas.pool_events import NodeReplaced, SagaFailed, SagaIsStuck
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, NODES, SAGAS
from services.bus.port import Bus, Stored
from services.cli import console
from services.cli.bus_client import connect_fleet
from services.cli.commands.serve_command import LOG_FILE, ServedFleet, temporary_fleet
from services.cli.fleet_discovery import LOCAL_FOLDER
from services.cli.text import tables
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.node_timeline import milliseconds, timeline_rows
from services.operator_text.event_text import describe
from services.primitives.errors import NavarchError
from services.settings.packaged_files import resource

CONFIG: Final = "demo.yaml"
NODES_WANTED: Final = 3
GPU_BROKEN: Final = 3
SERVING_SECONDS_MAX: Final = 90.0
"""Two seconds as a rule; on one busy processor the processes take a minute to start."""
FLEET_SECONDS_MAX: Final = 60.0
REPLACED_SECONDS_MAX: Final = 60.0
LOG_LINES_SHOWN: Final = 25
KERNEL_ERROR: Final = 3
"""Facility kernel, level error: the first field of a kernel log record."""

_record = decoder(NodeRecord)


class DemoOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last line that the demo prints."""

    ok: bool
    kmsg_to_cordon_ms: float = 0.0
    kmsg_to_replaced_ms: float = 0.0
    old_node: str = ""
    new_node: str = ""
    reason: str = ""


def demo() -> int:
    """Run the demo; return the exit code."""
    try:
        outcome = asyncio.run(_run_until_signal())
    except (KeyboardInterrupt, asyncio.CancelledError):
        _print("stopped; nothing is left running")
        return 130
    sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")
    return 0 if outcome.ok else 1


async def _run_until_signal() -> DemoOutcome:
    """The first signal stops the demo; later ones do not interrupt the clean-up."""
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        if not task.cancelling():
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    shipped = resource(CONFIG).read_text("utf-8")
    async with temporary_fleet(
        "navarch-demo-", lambda data: f"{shipped}\ndata_dir: {data}\n"
    ) as serving:
        try:
            return await _run_demo(serving)
        except (NavarchError, TimeoutError) as error:
            reason = str(error) or "not done in time"
            _print(f"\nThe demo failed: {reason}\nThe last lines of the services' log:")
            log = serving.directory.parent / LOG_FILE
            lines = log.read_text("utf-8").splitlines(keepends=True)[-LOG_LINES_SHOWN:]
            _print("".join(lines) or "(no service has written any yet)")
            return DemoOutcome(ok=False, reason=reason)


async def _run_demo(serving: ServedFleet) -> DemoOutcome:
    supervisor = serving.supervisor
    _print("Starting a nats-server and five services, each a process of its own …")
    async with _within(SERVING_SECONDS_MAX, "the services were not ready"):
        await supervisor.ready()
    for name, pid in sorted(supervisor.pids.items()):
        _print(f"  {name:<16} pid {pid}")
    if serving.bus is not None:
        watch = f"{serving.bus.command(supervisor.url)} sub '{subjects.ROOT}.>'"
        _print(f"Watch it from another terminal: {watch}")
    async with connect_fleet(serving.nats) as fleet:
        _print(f"Waiting for {NODES_WANTED} nodes with 8 simulated GPUs each …")
        async with _within(FLEET_SECONDS_MAX, f"fewer than {NODES_WANTED} nodes became active"):
            nodes = await _active_nodes(fleet.bus)
        for node in nodes:
            _print(f"  {node.node:<16} {len(node.gpus)} GPUs, active")
        return await _break_gpu(serving, fleet, nodes)


async def _active_nodes(bus: Bus) -> list[NodeRecord]:
    """Wait until the pool has its nodes."""
    active: dict[str, NodeRecord] = {}
    async for entry in bus.watch(NODES):
        record = None if entry.removed else _record.decode(entry.value)
        active.pop(entry.key, None)
        if record is not None and record.state == "active":
            active[entry.key] = record
        if len(active) == NODES_WANTED:
            break
    return [active[key] for key in sorted(active)]


async def _break_gpu(
    serving: ServedFleet, fleet: FleetClient, nodes: list[NodeRecord]
) -> DemoOutcome:
    old = nodes[NODES_WANTED // 2]
    if len(old.gpus) <= GPU_BROKEN:
        raise NavarchError(f"{old.node} has {len(old.gpus)} GPUs, not eight")
    gpu = old.gpus[GPU_BROKEN]
    kmsg = serving.directory / LOCAL_FOLDER / old.node / "kmsg"
    line = xid_79(gpu, last_sequence(kmsg) + 1, time.monotonic_ns() // 1000)
    after = {name: await fleet.bus.last_sequence(name) for name in (EVENTS.name, SAGAS.name)}
    _print(f"\nGPU {gpu.index} of {old.node} falls off the bus. Its kernel log says:\n  {line}\n")
    start = datetime.now(UTC)
    with kmsg.open("a", encoding="utf-8") as log:
        log.write(f"{line}\n")
    async with _within(REPLACED_SECONDS_MAX, f"{old.node} was not replaced"):
        replaced = await _follow(fleet, old.node, start, after)
    rows = timeline_rows(await fleet.node_history(old.node), start)
    _print(f"\nThe timeline of {old.node}, in milliseconds from its kernel log line:\n")
    _print(tables.timeline(rows, colour=console.colour()))
    cordoned = [each for each in rows if each.title == "cordon succeeded"]
    if not cordoned:
        raise NavarchError(f"{old.node} was replaced without being cordoned")
    end = next(each for each in rows if each.id == replaced.id)
    _print(f"\n{replaced.new_node} replaced {old.node}. Stopping everything …")
    return DemoOutcome(
        ok=True,
        kmsg_to_cordon_ms=round(cordoned[0].since_ms, 1),
        kmsg_to_replaced_ms=round(end.since_ms, 1),
        old_node=old.node,
        new_node=replaced.new_node,
    )


async def _follow(
    fleet: FleetClient, node: str, start: datetime, after: dict[str, int]
) -> NodeReplaced:
    """Print every event until the node is replaced."""
    arrived: asyncio.Queue[Stored] = asyncio.Queue()

    async def collect(stream: str, filters: list[str]) -> None:
        async for stored in fleet.bus.follow(stream, filters, "new", after=after[stream]):
            arrived.put_nowait(stored)

    filters = {
        EVENTS.name: [subjects.NODE_EVENTS, subjects.POOL_EVENTS],
        SAGAS.name: [subjects.SAGAS],
    }
    tasks = [asyncio.create_task(collect(name, each)) for name, each in filters.items()]
    try:
        while True:
            stored = await arrived.get()
            message = decode_stored(stored)
            since = f"+{milliseconds(start, stored.time):>9.1f} ms"
            text = tables.event_line(stored.time, describe(message), colour=console.colour())
            _print(f"{since}  {text}")
            match message:
                case NodeReplaced(old_node=old) if old == node:
                    return message
                case SagaFailed() | SagaIsStuck():
                    raise NavarchError(f"{message.saga} failed at {message.step}: {message.reason}")
                case _:
                    pass
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def xid_79(gpu: GpuIdentity, sequence: int, microseconds: int) -> str:
    """The record that the NVIDIA driver writes to the kernel log when a GPU fell off the bus."""
    return (
        f"{KERNEL_ERROR},{sequence},{microseconds},-;NVRM: Xid (PCI:{gpu.pci}): 79, "
        "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    )


@asynccontextmanager
async def _within(seconds: float, problem: str) -> AsyncIterator[None]:
    """Raise NavarchError with `problem` after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise NavarchError(f"{problem} within {seconds:g} s") from None


def _print(text: str) -> None:
    with suppress(BrokenPipeError):
        console.write(text)
