"""The agent itself: registers, beats, watches the kernel log and the GPUs, answers requests.

First in the cycle of every story: what it publishes is all that the fleet knows of a node. It
decides nothing. Whatever it must not lose goes through the outbox; heartbeats and samples do not.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from agent.delivery.outbox import Outbox
from agent.fault_reporter import Reporter, Sources
from agent.faults.fault_builder import NodeIdentity
from agent.maintenance.diagnostics.health_check_plugins import RunningCheck
from agent.maintenance.diagnostics_runner import Bench, Diagnostics
from agent.maintenance.reset_and_reboot import Means, Mending
from agent.node_monitor import Watch, Watched
from agent.settings import AgentConfig
from agent.sources.blocking_calls import ProbeThread
from agent.sources.cloud.notice_watcher import CloudWatch, Look
from agent.sources.gpu_monitor import Before, GpuWatch, NvmlSession
from agent.sources.gpu_state_file import NOTICES_MAX, MemoryFile
from agent.sources.host_metrics import Host
from agent.sources.job_lookup import Processes
from agent.sources.kernel_log_reader import KernelLog, PositionFile
from agent.sources.xid_listener import EventSession, XidWatch
from schemas import subjects
from schemas.agent_commands import DiagnoseRequest
from schemas.messages import decoder, encode
from schemas.node_events import CheckResult
from schemas.node_records import HeartbeatRecord, NodeRecord, node_key
from schemas.topology import HEARTBEATS, NODES
from services.bus.port import Bus, Headers
from services.primitives.clock import Clock
from services.primitives.errors import BusError

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
FLUSH_SECONDS_MAX: Final = 0.7
CLOSE_SECONDS_MAX: Final = 0.7
POSITION_SECONDS: Final = 1.0

_node_decoder = decoder(NodeRecord)

Connect = Callable[[], Awaitable[Bus]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Everything outside that the agent is given."""

    clock: Clock
    connect: Connect
    nvml: NvmlSession
    xids: EventSession
    outbox: Outbox
    host: Host
    processes: Processes
    rack: Callable[[], Awaitable[str]]
    """Where this host stands."""
    looks: Sequence[Look]
    """What to ask of the cloud's metadata service."""
    plugins: Sequence[RunningCheck]
    environment: Mapping[str, str]
    """What the tools of diagnostics are given."""
    root: bool
    """Whether this process may do what only root may."""
    boot_id: str
    start_id: str
    """Different at every start of an agent."""
    hostname: str
    version: str


class Agent:
    """One node's agent; `run` ends when it is told to stop."""

    def __init__(self, config: AgentConfig, outside: Surroundings) -> None:
        """Report for the node that `config` names."""
        self._config = config
        self._outside = outside
        self._outbox = outside.outbox
        self._clock = outside.clock
        self._who = NodeIdentity(config.pool, config.node, outside.boot_id)
        state = Path(config.state_dir)
        self._memory_file = MemoryFile(state / "memory.json")
        self._memory = self._memory_file.load()
        self._same_boot = self._memory.boot_id == outside.boot_id
        self._position = PositionFile(state / "kmsg.json", outside.boot_id)
        self._reporter = Reporter(
            self._who,
            outside.outbox,
            outside.clock,
            Sources(
                gpus=lambda: self._gpus.gpus,
                lines=lambda: self._kernel_log.started,
                job=outside.processes.job,
            ),
            any_facility=config.kmsg_any_facility,
        )
        self._kernel_log = KernelLog(
            Path(config.kmsg),
            after=self._position.load(),
            on_line=self._reporter.line,
            on_gap=self._reporter.gap,
        )
        self._xids = XidWatch(
            outside.xids,
            ProbeThread("nvml events"),
            outside.clock,
            inventory=lambda: self._gpus.inventory,
            on_event=self._reporter.event,
        )
        self._gpus = self._make_gpu_watch()
        self._cloud = CloudWatch(
            outside.looks,
            outside.clock,
            told=self._memory.notices if self._same_boot else (),
            on_notice=self._reporter.notice,
            on_over=self._reporter.notice_over,
        )
        self._bus: Bus | None = None
        self._diagnostics = self._make_diagnostics()
        self._mending = self._make_mending()
        self._watch = self._make_watch()

    def _make_gpu_watch(self) -> GpuWatch:
        return GpuWatch(
            self._outside.nvml,
            ProbeThread("nvml"),
            deadline_seconds=self._config.probe_deadline,
            on_change=self._reporter.change,
            alone=self._xids.alone,
            before=Before(
                gpus=self._memory.gpus,
                same_boot=self._same_boot,
                pause_seconds=self._memory.age_seconds(self._clock.now()),
            ),
        )

    def _make_diagnostics(self) -> Diagnostics:
        bench = Bench(
            clock=self._clock,
            environment=self._outside.environment,
            gpus=lambda: self._gpus.gpus,
            busy=lambda: self._gpus.busy,
            cordoned=self._cordoned,
            look=self._look,
            plugins=self._outside.plugins,
            on_failure=self._reporter.finding,
        )
        return Diagnostics(self._config, bench)

    def _make_mending(self) -> Mending:
        means = Means(
            clock=self._clock,
            environment=self._outside.environment,
            boot_id=self._who.boot_id,
            root=self._outside.root,
            gpus=lambda: self._gpus.gpus,
            cordoned=self._cordoned,
            processes=self._gpus.processes,
            released=self._gpus.released,
        )
        return Mending(self._config, means)

    def _make_watch(self) -> Watch:
        watched = Watched(
            clock=self._clock,
            gpus=self._gpus,
            kernel_log=self._kernel_log,
            host=self._outside.host,
            reporter=self._reporter,
            diagnostics=self._diagnostics,
            bus=lambda: self._bus,
            rack=self._outside.rack,
            start_id=self._outside.start_id,
            hostname=self._outside.hostname,
            version=self._outside.version,
        )
        return Watch(self._config, watched, tested=self._same_boot and self._memory.tested)

    async def run(self, stopping: asyncio.Event) -> None:
        """Report until `stopping` is set or something that must not end has ended."""
        tasks = [
            asyncio.create_task(each)
            for each in (
                self._outbox.run(),
                self._connected_life(),
                self._watch.run(),
                self._listen(),
                self._cloud.run(),
                self._diagnostics.run(),
                self._keep(),
                self._live_with(stopping),
            )
        ]
        waiting = asyncio.create_task(stopping.wait())
        try:
            done, _ = await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {waiting}:
                task.result()
                raise RuntimeError("a loop of the agent ended by itself")
        finally:
            self._kernel_log.stop()
            if self._bus is not None:
                await self._outbox.flush(FLUSH_SECONDS_MAX)
            else:
                await self._outbox.flush(0)
            self._save(last=True)
            await _cancel([waiting, *tasks])
            await self._leave()

    async def _leave(self) -> None:
        if self._bus is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._bus.close()
        except TimeoutError:
            log.warning("the bus did not close in time")

    # --- on the bus -----------------------------------------------------------------------------

    async def _connected_life(self) -> None:
        """Connect, however long it takes; then answer requests and beat."""
        bus = await self._outside.connect()
        self._bus = self._outbox.bus = bus
        pool, node = self._config.pool, self._config.node
        await bus.answer(subjects.node_command(pool, node, "diagnose"), self._diagnose)
        await bus.answer(subjects.node_command(pool, node, "ping"), self._ping)
        await bus.answer(subjects.node_command(pool, node, "reset-gpu"), self._mending.reset)
        await bus.answer(subjects.node_command(pool, node, "reboot"), self._mending.reboot)
        while True:
            beaten = await self._beat(bus)
            await self._clock.sleep(self._config.heartbeat_interval if beaten else RETRY_SECONDS)

    async def _beat(self, bus: Bus) -> bool:
        record = HeartbeatRecord(
            pool=self._config.pool,
            node=self._config.node,
            instance=self._config.instance or self._config.node,
            boot_id=self._who.boot_id,
            time=self._clock.now(),
        )
        key = node_key(self._config.pool, self._config.node)
        try:
            await bus.put(
                HEARTBEATS, key, encode(record), ttl_seconds=int(self._config.heartbeat_ttl)
            )
        except BusError as error:
            log.warning("heartbeat: %s", error)
            return False
        return True

    async def _ping(self, data: bytes, headers: Headers) -> bytes:  # noqa: ARG002
        return msgspec.json.encode(
            {
                "ok": True,
                "pool": self._config.pool,
                "node": self._config.node,
                "boot_id": self._who.boot_id,
                "time": self._clock.now(),
            }
        )

    async def _look(self) -> tuple[CheckResult, ...]:
        return await self._watch.look()

    async def _diagnose(self, data: bytes, headers: Headers) -> bytes:  # noqa: ARG002
        """Answer an empty request with the boot checks, any other with what it asks for."""
        if not data.strip():
            return encode(self._watch.checked(await self._watch.look()))
        request = msgspec.json.decode(data, type=DiagnoseRequest)
        return encode(await self._diagnostics.answer(request))

    async def _cordoned(self) -> bool | None:
        """Ask the bus whether this node is cordoned; None where it cannot say."""
        if self._bus is None:
            return None
        try:
            entry = await self._bus.get(NODES, node_key(self._config.pool, self._config.node))
        except BusError as error:
            log.warning("whether this node is cordoned is not known: %s", error)
            return None
        return None if entry is None else bool(_node_decoder.decode(entry.value).cordoned)

    # --- its own life ---------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Hear NVML's own word on XIDs, where there are GPUs."""
        if self._config.gpu_count == 0:
            await asyncio.Event().wait()
        await self._xids.run()

    async def _keep(self) -> None:
        """Tell what a storm held back, and write down how far everything is safe.

        A crash reads a second of the log again, which ids make harmless.
        """
        while True:
            await self._clock.sleep(POSITION_SECONDS)
            self._reporter.due(self._kernel_log.sequence)
            self._save()

    def _save(self, *, last: bool = False) -> None:
        self._position.save(self._outbox.dealt_with(self._kernel_log.sequence))
        if not self._outbox.safe:
            # What is told and not yet safe would be forgotten by a crash, but taken for told.
            return
        if self._gpus.current or self._config.gpu_count == 0:
            self._memory = msgspec.structs.replace(
                self._memory,
                boot_id=self._who.boot_id,
                gpus=self._gpus.remember(),
                notices=self._cloud.standing[:NOTICES_MAX],
                tested=self._watch.tested,
            )
        self._memory_file.save(self._memory, self._clock.now(), self._clock.monotonic(), last=last)

    async def _live_with(self, stopping: asyncio.Event) -> None:
        """End when the thing this agent belongs to is gone (an instance of the local provider)."""
        belongs_to = self._config.exit_without
        while not belongs_to or Path(belongs_to).exists():  # noqa: ASYNC240 - one stat
            await self._clock.sleep(min(self._config.heartbeat_interval, 2.0))
        log.info("%s is gone, so the agent ends", belongs_to)
        stopping.set()
        await asyncio.Event().wait()


async def _cancel(tasks: "list[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=CLOSE_SECONDS_MAX)
