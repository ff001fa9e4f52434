"""Watches the node from start to end: registers it, checks it, then samples it for ever.

The order matters: GPUs are found first (a kernel log line names them), the node registers, the log
is followed, the boot checks are published, and only then the sampling begins. A driver that hangs
holds none of that up for longer than its deadline.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from agent.fault_reporter import Reporter
from agent.faults.boot_checks import boot_checks
from agent.faults.sample_changes import Change
from agent.maintenance.diagnostics_runner import Diagnostics
from agent.settings import AgentConfig
from agent.sources.gpu_monitor import OPEN_SECONDS_MAX, GpuWatch
from agent.sources.host_metrics import Host
from agent.sources.kernel_log_reader import KernelLog
from agent.sources.nvml import Inventory
from schemas import subjects
from schemas.messages import encode
from schemas.node_events import BootChecked, CheckResult, Registered, Telemetry
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import BusError

log = logging.getLogger(__name__)

FIRST_LOOK_SECONDS: Final = 3.0
"""How long the kernel log waits for NVML to say which GPU sits where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What is watched, and how."""

    clock: Clock
    gpus: GpuWatch
    kernel_log: KernelLog
    host: Host
    reporter: Reporter
    diagnostics: Diagnostics
    bus: Callable[[], Bus | None]
    rack: Callable[[], Awaitable[str]]
    start_id: str
    hostname: str
    version: str


class Watch:
    """The node as its agent sees it."""

    def __init__(self, config: AgentConfig, watched: Watched, *, tested: bool) -> None:
        """Watch; `tested` says that this boot's tests of the hardware have passed already."""
        self._config = config
        self._outside = watched
        self._clock = watched.clock
        self._gpus = watched.gpus
        self._kernel_log = watched.kernel_log
        self._kernel_log_problem = ""
        self._reporter = watched.reporter
        self._who = watched.reporter.who
        self._registrations = 0
        self._checks = 0
        self._checked_ok = False
        self._checked_inventory: Inventory | None = None
        self._testing: asyncio.Task[None] | None = None
        self._samples = 0
        self._rack = ""
        self.tested = tested
        """Whether this boot's tests of the hardware have passed."""

    async def run(self) -> None:
        """Look at the GPUs, register, follow the kernel log, check, then sample for ever."""
        placing = asyncio.create_task(self._place())
        if self._config.gpu_count != 0:
            opening = asyncio.create_task(self._gpus.open(OPEN_SECONDS_MAX))
            await asyncio.wait({opening}, timeout=FIRST_LOOK_SECONDS)
            if not opening.done():
                # A line must not wait for a driver that hangs; its PCI address says enough.
                self._follow_kernel_log()
            await opening
        await placing
        self._register()
        if not self._kernel_log_problem:
            self._follow_kernel_log()
        await self._boot_check()
        try:
            await self._sample_for_ever()
        finally:
            if self._testing is not None:
                self._testing.cancel()

    async def _place(self) -> None:
        self._rack = await self._outside.rack()

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

    def _register(self) -> None:
        inventory = self._gpus.inventory
        self._registrations += 1
        self._reporter.send(
            Registered(
                id=f"{self._who.prefix}.registered.{self._outside.start_id}.{self._registrations}",
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
                rack=self._rack,
            )
        )

    # --- checks ---------------------------------------------------------------------------------

    async def look(self) -> tuple[CheckResult, ...]:
        """Make the checks that take no time: is everything visible, and does it answer?"""
        sample = None if self._config.gpu_count == 0 else await self._gpus.sample()
        self._checked_inventory = self._gpus.inventory
        return boot_checks(
            self._config.gpu_count,
            self._gpus.inventory,
            sample,
            self._gpus.problem,
            self._kernel_log_problem,
        )

    def checked(self, checks: tuple[CheckResult, ...]) -> BootChecked:
        """Say what checks came to."""
        self._checks += 1
        return BootChecked(
            id=f"{self._who.prefix}.boot-checked.{self._outside.start_id}.{self._checks}",
            time=self._clock.now(),
            pool=self._config.pool,
            node=self._config.node,
            ok=all(each.ok for each in checks),
            checks=checks,
            boot_id=self._who.boot_id,
        )

    async def _boot_check(self) -> None:
        """Check what takes no time; then test the hardware beside the sampling, once a boot."""
        checks = await self.look()
        if self._testable(checks):
            self._testing = asyncio.create_task(self._test(checks))
            return
        self._publish(checks)
        for each in checks:
            if each.name == "gpu-count" and not each.ok:
                self._reporter.change(Change("gpu_count", -1, each.detail))

    def _testable(self, checks: tuple[CheckResult, ...]) -> bool:
        """Whether to test the hardware: not again in a boot, and not where it is known to fail."""
        wanted = not self.tested and self._outside.diagnostics.boot_tests
        return bool(wanted) and all(each.ok for each in checks)

    async def _test(self, checks: tuple[CheckResult, ...]) -> None:
        results = await self._outside.diagnostics.at_boot()
        self.tested = all(each.ok for each in results)
        self._publish(checks + results)

    def _publish(self, checks: tuple[CheckResult, ...]) -> None:
        checked = self.checked(checks)
        self._checked_ok = checked.ok
        self._reporter.send(checked)

    async def _recheck(self) -> None:
        """Look again where the driver came up after the agent did."""
        if self._checked_ok or self._gpus.inventory is self._checked_inventory:
            return
        if self._testing is not None and not self._testing.done():
            return
        checks = await self.look()
        if not all(each.ok for each in checks):
            return
        self._register()
        if self._testable(checks):
            self._testing = asyncio.create_task(self._test(checks))
        else:
            self._publish(checks)

    # --- samples --------------------------------------------------------------------------------

    async def _sample_for_ever(self) -> None:
        next_at = publish_at = self._clock.monotonic()
        while True:
            now = self._clock.monotonic()
            if now < next_at:
                await self._clock.sleep(next_at - now)
            next_at = max(next_at + self._config.sample_interval, self._clock.monotonic())
            telemetry = await self._sample()
            await self._recheck()
            self._raise_what_testing_raised()
            if self._clock.monotonic() >= publish_at:
                publish_at += self._config.telemetry_interval
                publish_at = max(publish_at, self._clock.monotonic())
                await self._publish_telemetry(telemetry)

    def _raise_what_testing_raised(self) -> None:
        if self._testing is not None and self._testing.done():
            self._testing.result()
            self._testing = None

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
        bus = self._outside.bus()
        if bus is None or not bus.connected:
            return
        subject = subjects.telemetry(self._config.pool, self._config.node)
        try:
            await bus.publish(subject, encode(telemetry), msg_id=telemetry.id)
        except BusError as error:
            log.warning("telemetry: %s", error)
