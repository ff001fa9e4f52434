"""The agent itself: registers, beats, watches the kernel log and the GPUs, answers requests.

First in the cycle of every story: what it publishes is all that the fleet knows of a node. It
decides nothing. Whatever it must not lose goes through the outbox; heartbeats and samples do not.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from agent.changes import Change
from agent.checks import boot_checks
from agent.cloud.watch import CloudWatch, Look
from agent.faults import NodeIdentity
from agent.gpus import OPEN_SECONDS_MAX, Before, GpuWatch, NvmlSession
from agent.host import Host
from agent.kmsg import KernelLog, PositionFile
from agent.memory import NOTICES_MAX, MemoryFile
from agent.nvml import Inventory
from agent.outbox import Outbox
from agent.probe import ProbeThread
from agent.reporter import Reporter, Sources
from agent.settings import AgentConfig
from agent.xid_watch import EventSession, XidWatch
from schemas import subjects
from schemas.messages import encode
from schemas.node_events import BootChecked, Registered, Telemetry
from schemas.records import HeartbeatRecord, node_key
from schemas.topology import HEARTBEATS
from services.runtime.bus import Bus, Headers
from services.runtime.clock import Clock
from services.runtime.errors import BusError

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
FLUSH_SECONDS_MAX: Final = 0.7
CLOSE_SECONDS_MAX: Final = 0.7
FIRST_LOOK_SECONDS: Final = 3.0
"""How long the kernel log waits for NVML to say which GPU sits where."""
POSITION_SECONDS: Final = 1.0

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
    looks: Sequence[Look]
    """What to ask of the cloud's metadata service."""
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
        self._position = PositionFile(state / "kmsg.json", outside.boot_id)
        self._reporter = Reporter(
            self._who,
            outside.outbox,
            outside.clock,
            Sources(gpus=lambda: self._gpus.gpus, lines=lambda: self._kernel_log.started),
            any_facility=config.kmsg_any_facility,
        )
        self._kernel_log = KernelLog(
            Path(config.kmsg),
            after=self._position.load(),
            on_line=self._reporter.line,
            on_gap=self._reporter.gap,
        )
        self._kernel_log_problem = ""
        self._gpus = GpuWatch(
            outside.nvml,
            ProbeThread("nvml"),
            deadline_seconds=config.probe_deadline,
            on_change=self._reporter.change,
            before=Before(
                gpus=self._memory.gpus,
                same_boot=self._memory.boot_id == outside.boot_id,
                pause_seconds=self._memory.age_seconds(outside.clock.now()),
            ),
        )
        self._xids = XidWatch(
            outside.xids,
            ProbeThread("nvml events"),
            outside.clock,
            inventory=lambda: self._gpus.inventory,
            on_event=self._reporter.event,
        )
        self._cloud = CloudWatch(
            outside.looks,
            outside.clock,
            told=self._memory.notices if self._memory.boot_id == outside.boot_id else (),
            on_notice=self._reporter.notice,
        )
        self._bus: Bus | None = None
        self._checks = 0
        self._checked_ok = False
        self._checked_inventory: Inventory | None = None
        self._samples = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Report until `stopping` is set or something that must not end has ended."""
        tasks = [
            asyncio.create_task(each)
            for each in (
                self._outbox.run(),
                self._connected_life(),
                self._watch(),
                self._listen(),
                self._cloud.run(),
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

    async def _diagnose(self, data: bytes, headers: Headers) -> bytes:  # noqa: ARG002
        return encode(await self._check())

    # --- registering ----------------------------------------------------------------------------

    async def _register(self) -> None:
        inventory = self._gpus.inventory
        registered = Registered(
            id=f"{self._who.prefix}.registered.{self._outside.start_id}",
            time=self._clock.now(),
            pool=self._config.pool,
            node=self._config.node,
            instance=self._config.instance or self._config.node,
            hostname=self._outside.hostname,
            boot_id=self._who.boot_id,
            gpus=self._gpus.gpus.gpus,
            driver_version=inventory.driver_version if inventory else "",
            agent_version=self._outside.version,
            address=self._config.address,
        )
        self._reporter.send(registered)

    async def _check(self) -> BootChecked:
        """Run the boot checks."""
        sample = None if self._config.gpu_count == 0 else await self._gpus.sample()
        self._checks += 1
        self._checked_inventory = self._gpus.inventory
        checks = boot_checks(
            self._config.gpu_count,
            self._gpus.inventory,
            sample,
            self._gpus.problem,
            self._kernel_log_problem,
        )
        return BootChecked(
            id=f"{self._who.prefix}.boot-checked.{self._outside.start_id}.{self._checks}",
            time=self._clock.now(),
            pool=self._config.pool,
            node=self._config.node,
            ok=all(each.ok for each in checks),
            checks=checks,
            boot_id=self._who.boot_id,
        )

    async def _publish_checks(self) -> None:
        checked = await self._check()
        self._checked_ok = checked.ok
        self._reporter.send(checked)
        for each in checked.checks:
            if each.name == "gpu-count" and not each.ok:
                self._reporter.change(Change("gpu_count", -1, each.detail))

    # --- watching -------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Look at the GPUs, register, follow the kernel log, then sample for ever."""
        if self._config.gpu_count != 0:
            opening = asyncio.create_task(self._gpus.open(OPEN_SECONDS_MAX))
            await asyncio.wait({opening}, timeout=FIRST_LOOK_SECONDS)
            if not opening.done():
                # A line must not wait for a driver that hangs; its PCI address says enough.
                self._follow_kernel_log()
            await opening
        await self._register()
        if not self._kernel_log_problem:
            self._follow_kernel_log()
        await self._publish_checks()
        await self._sample_for_ever()

    def _follow_kernel_log(self) -> None:
        if self._kernel_log.started:
            return
        try:
            self._kernel_log.start()
        except OSError as error:
            self._kernel_log_problem = f"the kernel log {self._config.kmsg} cannot be read: {error}"
            log.error("%s", self._kernel_log_problem)  # noqa: TRY400
            self._reporter.change(
                Change("probe_failed", -1, self._kernel_log_problem, subcode="kmsg")
            )

    async def _sample_for_ever(self) -> None:
        next_at = publish_at = self._clock.monotonic()
        while True:
            now = self._clock.monotonic()
            if now < next_at:
                await self._clock.sleep(next_at - now)
            next_at = max(next_at + self._config.sample_interval, self._clock.monotonic())
            telemetry = await self._sample()
            if not self._checked_ok and self._gpus.inventory is not self._checked_inventory:
                # The driver came up after the agent did.
                await self._recheck()
            if self._clock.monotonic() >= publish_at:
                publish_at += self._config.telemetry_interval
                publish_at = max(publish_at, self._clock.monotonic())
                await self._publish_telemetry(telemetry)

    async def _recheck(self) -> None:
        checked = await self._check()
        if checked.ok:
            self._checked_ok = True
            await self._register()
            self._reporter.send(checked)

    async def _sample(self) -> Telemetry:
        sample = None if self._config.gpu_count == 0 else await self._gpus.sample()
        host = self._outside.host.sample()
        self._samples += 1
        now = self._clock.now()
        return Telemetry(
            id=f"{self._who.prefix}.telemetry.{self._outside.start_id}.{self._samples}",
            time=now,
            pool=self._config.pool,
            node=self._config.node,
            gpus=sample.gpus if sample is not None else (),
            cpu_percent=host.cpu_percent,
            memory_used_bytes=host.memory_used_bytes,
            memory_total_bytes=host.memory_total_bytes,
            sequence=self._samples,
            sampled_at=now,
        )

    async def _publish_telemetry(self, telemetry: Telemetry) -> None:
        bus = self._bus
        if bus is None or not bus.connected:
            return
        subject = subjects.telemetry(self._config.pool, self._config.node)
        try:
            await bus.publish(subject, encode(telemetry), msg_id=telemetry.id)
        except BusError as error:
            log.warning("telemetry: %s", error)

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
