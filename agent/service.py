"""The agent: starts its tasks, connects, sends heartbeats and answers commands.

What it publishes is all that the fleet knows of a node. It decides nothing. Events go through the
outbox and are not lost; heartbeats and samples may be.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from agent.agent_state_file import NOTICES_MAX, AgentStateFile
from agent.conditions.watch import ConditionWatch
from agent.delivery.outbox import AgentOutbox
from agent.fault_reporter import FaultReporter, ReporterInputs
from agent.faults.fault_builder import NodeIdentity
from agent.gpu_monitor import EarlierRun, GpuMonitor, NvmlSession
from agent.maintenance.diagnostics.health_check_plugins import PluginRunner
from agent.maintenance.diagnostics_runner import DiagnosticsDependencies, DiagnosticsRunner
from agent.maintenance.reset_and_reboot import ActionDependencies, ResetAndReboot
from agent.node_logs import NodeLogs
from agent.node_monitor import MonitorDependencies, NodeMonitor
from agent.observations import GpuNeeds, KernelLogLine
from agent.own_record import OwnRecord
from agent.rdma_monitor import RdmaMonitor, needs_of
from agent.settings import AgentConfig
from agent.sources.blocking_calls import ProbeThread
from agent.sources.cloud.notice_watcher import NoticeSource, NoticeWatcher
from agent.sources.host_metrics import HostMetrics
from agent.sources.job_lookup import JobLookup
from agent.sources.kernel_log_reader import KernelLogReader, PositionFile
from agent.sources.xid_listener import EventSession, XidListener
from schemas import subjects
from schemas.agent_commands import DiagnoseRequest
from schemas.messages import encode
from schemas.node_records import HeartbeatRecord, node_key
from schemas.topology import HEARTBEATS, INTAKE
from services.bus.nats.credentials_file import life, reported_expiry
from services.bus.port import Bus, Headers
from services.primitives.clock import Clock
from services.primitives.errors import BusError
from services.runtime.log_answers import LogMemory, answer_logs

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
FLUSH_SECONDS_MAX: Final = 0.7
CLOSE_SECONDS_MAX: Final = 0.7
POSITION_SECONDS: Final = 1.0

Connect = Callable[[], Awaitable[Bus]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDependencies:
    """Everything external that the agent uses."""

    clock: Clock
    connect: Connect
    nvml: NvmlSession
    xids: EventSession
    outbox: AgentOutbox
    host: HostMetrics
    processes: JobLookup
    rack: Callable[[], Awaitable[str]]
    """Rack of this host."""
    provider_id: Callable[[], Awaitable[str]]
    """Instance ID of this host at its cloud; empty: none is known."""
    notice_sources: Sequence[NoticeSource]
    """Sources of provider notices."""
    plugins: Sequence[PluginRunner]
    environment: Mapping[str, str]
    """Environment of the diagnostic tools."""
    root: bool
    """Whether this process runs as root."""
    boot_id: str
    start_id: str
    """Different at every start of an agent."""
    hostname: str
    version: str
    log: LogMemory
    """This process's newest log lines."""
    machine_id: str = ""
    """UUID of the machine by its firmware; empty: not readable."""


class Agent:
    """Runs everything that one node's agent does."""

    def __init__(self, config: AgentConfig, outside: AgentDependencies) -> None:
        self._config = config
        self._outside = outside
        self._outbox = outside.outbox
        self._clock = outside.clock
        self._who = NodeIdentity(config.pool, config.node, outside.boot_id)
        state = Path(config.state_dir)
        self._state_file = AgentStateFile(state / "agent_state.json")
        self._state = self._state_file.load()
        self._same_boot = self._state.boot_id == outside.boot_id
        self._position = PositionFile(state / "kmsg.json", outside.boot_id, config.kmsg)
        self._reporter = FaultReporter(
            self._who,
            outside.outbox,
            outside.clock,
            ReporterInputs(
                gpus=lambda: self._gpus.gpus,
                lines=lambda: self._kernel_log.started,
                job=outside.processes.job,
            ),
            any_facility=config.kmsg_any_facility,
        )
        self._conditions = ConditionWatch(
            outside.clock,
            outside.boot_id,
            self._state.conditions,
            same_boot=self._same_boot,
            publish=self._reporter.condition,
            begins={"driver-not-loaded": config.driver_wait},
        )
        self._logs = NodeLogs(config.node, outside.log, outside.clock)
        self._kernel_log = KernelLogReader(
            Path(config.kmsg),
            after=self._position.load(),
            on_line=self._line,
            on_gap=self._reporter.gap,
            on_earlier=self._logs.kernel,
        )
        self._xids = XidListener(
            outside.xids,
            ProbeThread("nvml events"),
            outside.clock,
            inventory=lambda: self._gpus.inventory,
            on_event=self._reporter.event,
        )
        self._gpus = self._make_gpu_monitor()
        self._rdma = self._make_rdma_monitor()
        self._cloud = NoticeWatcher(
            outside.notice_sources,
            outside.clock,
            published=self._state.notices if self._same_boot else (),
            on_notice=self._reporter.notice,
            on_over=self._reporter.notice_over,
        )
        self._bus: Bus | None = None
        self._record = OwnRecord(
            *(config, outside.clock, lambda: self._bus, outside.boot_id),
            conditions=lambda: self._conditions.list,
        )
        self._diagnostics = self._make_diagnostics()
        self._reset_and_reboot = self._make_reset_and_reboot()
        self._monitor = self._make_monitor()

    def _make_gpu_monitor(self) -> GpuMonitor:
        return GpuMonitor(
            self._outside.nvml,
            ProbeThread("nvml"),
            deadline_seconds=self._config.probe_deadline,
            on_change=self._reporter.change,
            observe=self._conditions.observe,
            needs=GpuNeeds(
                gpus=self._config.gpu_count,
                nvlinks=self._config.nvlinks,
                nvlink_gbyte_per_second=self._config.nvlink_gbyte_per_second,
                pcie_width=self._config.pcie_width,
                pcie_generation=self._config.pcie_generation,
            ),
            alone=self._xids.alone,
            before=EarlierRun(
                gpus=self._state.gpus,
                same_boot=self._same_boot,
                pause_seconds=self._state.age_seconds(self._clock.now()),
            ),
        )

    def _make_rdma_monitor(self) -> RdmaMonitor:
        return RdmaMonitor(
            Path(self._config.sys),
            needs_of(self._config),
            self._clock,
            self._conditions.observe,
            self._state.ports,
            same_boot=self._same_boot,
        )

    def _make_diagnostics(self) -> DiagnosticsRunner:
        dependencies = DiagnosticsDependencies(
            clock=self._clock,
            environment=self._outside.environment,
            gpus=lambda: self._gpus.gpus,
            busy=lambda: self._gpus.busy,
            cordoned=self._record.cordoned,
            look=lambda: self._monitor.look(),  # noqa: PLW0108 - made after this
            waits=lambda: self._monitor.waits,
            conditions=lambda: self._conditions.list,
            plugins=self._outside.plugins,
            on_failure=self._reporter.finding,
        )
        return DiagnosticsRunner(self._config, dependencies)

    def _make_reset_and_reboot(self) -> ResetAndReboot:
        dependencies = ActionDependencies(
            clock=self._clock,
            environment=self._outside.environment,
            boot_id=self._who.boot_id,
            root=self._outside.root,
            gpus=lambda: self._gpus.gpus,
            cordoned=self._record.cordoned,
            processes=self._gpus.processes,
            release=self._gpus.release,
        )
        return ResetAndReboot(self._config, dependencies)

    def _make_monitor(self) -> NodeMonitor:
        dependencies = MonitorDependencies(
            clock=self._clock,
            gpus=self._gpus,
            rdma=self._rdma,
            conditions=self._conditions,
            kernel_log=self._kernel_log,
            host=self._outside.host,
            reporter=self._reporter,
            diagnostics=self._diagnostics,
            bus=lambda: self._bus,
            missing=lambda: self._record.missing,
            rack=self._outside.rack,
            provider_id=self._outside.provider_id,
            start_id=self._outside.start_id,
            hostname=self._outside.hostname,
            version=self._outside.version,
            machine_id=self._outside.machine_id,
        )
        return NodeMonitor(
            self._config, dependencies, tested=self._same_boot and self._state.tested
        )

    def _line(self, line: KernelLogLine) -> None:
        self._reporter.line(line)
        self._logs.kernel(line)

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until `stopping` is set or a task fails."""
        tasks = [
            asyncio.create_task(each)
            for each in (
                self._outbox.run(),
                self._connected_life(),
                self._monitor.run(),
                self._listen(),
                self._cloud.run(),
                self._diagnostics.run(),
                self._record.run(),
                self._keep(),
                self._end_with_owner(stopping),
            )
        ]
        waiting = asyncio.create_task(stopping.wait())
        try:
            done, _ = await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {waiting}:
                task.result()
                raise RuntimeError("a task of the agent ended unexpectedly")
        finally:
            self._kernel_log.stop()
            if self._bus is not None:
                await self._outbox.flush(FLUSH_SECONDS_MAX)
            else:
                await self._outbox.flush(0)
            self._save(last=True)
            await _cancel([waiting, *tasks])
            await self._close_bus()

    async def _close_bus(self) -> None:
        if self._bus is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._bus.close()
        except TimeoutError:
            log.warning("the bus did not close in time")

    # --- on the bus -----------------------------------------------------------------------------

    async def _connected_life(self) -> None:
        """Connect, answer commands and send heartbeats."""
        bus = await self._outside.connect()
        self._bus = self._outbox.bus = bus
        pool, node = self._config.pool, self._config.node
        await bus.answer(subjects.node_command(pool, node, "diagnose"), self._diagnose)
        await bus.answer(subjects.node_command(pool, node, "ping"), self._ping)
        await answer_logs(bus, subjects.node_command(pool, node, "logs"), self._logs.answer)
        await bus.answer(
            subjects.node_command(pool, node, "reset-gpu"), self._reset_and_reboot.reset
        )
        await bus.answer(subjects.node_command(pool, node, "reboot"), self._reset_and_reboot.reboot)
        interval, retry = self._config.heartbeat_interval, RETRY_SECONDS
        while True:
            if await self._beat(bus):
                retry = RETRY_SECONDS
                await self._clock.sleep(interval)
            else:
                # Longer each time: a fleet whose heartbeats no server takes must not flood it.
                await self._clock.sleep(min(retry, interval))
                retry *= 2

    async def _beat(self, bus: Bus) -> bool:
        if self._record.refused:
            log.error("no heartbeat: another machine uses the node ID %s", self._config.node)
            return True
        now = self._clock.now()
        record = HeartbeatRecord(
            pool=self._config.pool,
            node=self._config.node,
            instance=self._config.instance or self._config.node,
            boot_id=self._who.boot_id,
            time=now,
            gpu_use=self._gpus.use(now),
            admitted_at=self._record.admission.at,
            sagas=self._record.admission.sagas,
            credentials_until=reported_expiry(*life(self._config.nats_creds_file), now.timestamp()),
            unwritable=INTAKE.name in bus.unwritable_streams(),
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

    async def _diagnose(self, data: bytes, headers: Headers) -> bytes:  # noqa: ARG002
        """Reply to an empty request with the boot checks, to others with the requested tests."""
        if not data.strip():
            return encode(self._monitor.boot_checked(await self._monitor.look()))
        request = msgspec.json.decode(data, type=DiagnoseRequest)
        return encode(await self._diagnostics.answer(request))

    # --- background tasks -----------------------------------------------------------------------

    async def _listen(self) -> None:
        """Listen for NVML's XID events, where GPUs are expected."""
        if self._config.gpu_count == 0:
            await asyncio.Event().wait()
        await self._xids.run()

    async def _keep(self) -> None:
        """Report rate-limited faults, and save up to where the kernel log's faults are sent.

        After a crash the log is read again from there; message IDs make that harmless.
        """
        while True:
            await self._clock.sleep(POSITION_SECONDS)
            self._reporter.due(self._kernel_log.sequence)
            self._save()

    def _save(self, *, last: bool = False) -> None:
        handled = self._reporter.handled_up_to(self._kernel_log.sequence)
        self._position.save(self._outbox.sent_up_to(handled))
        if not self._outbox.safe:
            # After a crash, events that are neither sent nor on disk must be reported again.
            return
        if self._gpus.current or self._config.gpu_count == 0:
            self._state = msgspec.structs.replace(
                self._state,
                boot_id=self._who.boot_id,
                gpus=self._gpus.remember(),
                notices=self._cloud.announced[:NOTICES_MAX],
                tested=self._monitor.tested,
                ports=self._rdma.known,
            )
        if self._state.boot_id == self._who.boot_id:
            self._state = msgspec.structs.replace(self._state, conditions=self._conditions.state)
        self._state_file.save(self._state, self._clock.now(), self._clock.monotonic(), last=last)

    async def _end_with_owner(self, stopping: asyncio.Event) -> None:
        """End when `exit_without` is gone (an instance of the local provider)."""
        belongs_to = self._config.exit_without
        if not belongs_to:
            await asyncio.Event().wait()
        while Path(belongs_to).exists():  # noqa: ASYNC240 - one stat
            await self._clock.sleep(min(self._config.heartbeat_interval, 2.0))
        log.info("%s is gone, so the agent ends", belongs_to)
        stopping.set()
        await asyncio.Event().wait()


async def _cancel(tasks: "list[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=CLOSE_SECONDS_MAX)
