"""Monitors the node: registers it, checks it, then samples it until the agent ends.

The order matters: first the GPUs are found (kernel log lines name them), then the node registers,
the log is followed, the boot checks are published, and the sampling starts. A hanging driver delays
each step by at most its deadline.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from agent.conditions.watch import ConditionWatch
from agent.fault_reporter import FaultReporter
from agent.faults.boot_checks import AWAITED, DRIVER, boot_checks, nvlink_domain
from agent.faults.sample_changes import SampleChange
from agent.gpu_monitor import OPEN_SECONDS_MAX, GpuMonitor
from agent.maintenance.diagnostics_runner import DiagnosticsRunner
from agent.observations import GpuInventory, NodeSample
from agent.own_record import MissingEvents
from agent.rdma_monitor import RdmaMonitor
from agent.settings import AgentConfig
from agent.sources.host_metrics import HostMetrics
from agent.sources.kernel_log_reader import KernelLogReader
from schemas import subjects
from schemas.messages import encode
from schemas.node_events import BootChecked, CheckResult, Registered, Telemetry
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import BusError

log = logging.getLogger(__name__)

REGISTER_AGAIN_SECONDS: Final = 20.0
"""After its registration an agent registers again where its node's record lacks it."""
REFUSED_AGAIN_SECONDS: Final = 300.0
"""The same of a machine that is refused: operators see that it is still there."""
FIRST_LOOK_SECONDS: Final = 3.0
"""How long the kernel log reader waits for NVML's PCI addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorDependencies:
    """Names the dependencies of the node monitor."""

    clock: Clock
    gpus: GpuMonitor
    rdma: RdmaMonitor
    conditions: ConditionWatch
    kernel_log: KernelLogReader
    host: HostMetrics
    reporter: FaultReporter
    diagnostics: DiagnosticsRunner
    bus: Callable[[], Bus | None]
    missing: Callable[[], MissingEvents]
    """What the node's record lacks of this boot."""
    rack: Callable[[], Awaitable[str]]
    provider_id: Callable[[], Awaitable[str]]
    start_id: str
    hostname: str
    version: str
    machine_id: str = ""


class NodeMonitor:
    """Registers, checks and samples the node."""

    def __init__(
        self, config: AgentConfig, dependencies: MonitorDependencies, *, tested: bool
    ) -> None:
        """Monitor the node; `tested`: this boot's tests have passed already."""
        self._config = config
        self._dependencies = dependencies
        self._clock = dependencies.clock
        self._gpus = dependencies.gpus
        self._kernel_log = dependencies.kernel_log
        self._kernel_log_problem = ""
        self._reporter = dependencies.reporter
        self._who = dependencies.reporter.who
        self._registrations = 0
        self._registered_at = 0.0
        self._registered_gpus = False
        """Whether the last registration named the GPUs that NVML shows."""
        self._checked: tuple[CheckResult, ...] = ()
        """The boot checks as they were last published."""
        self._checks = 0
        self._checked_ok = False
        self._links_until = 0.0
        """Until then, a boot check that fails for links alone is repeated."""
        self._links_awaited = False
        self._driver_until = 0.0
        """Until then, boot checks wait for the driver."""
        self._checked_inventory: GpuInventory | None = None
        self._testing: asyncio.Task[None] | None = None
        self._samples = 0
        self._rack = ""
        self._provider_id = ""
        self._nvlink_domain = ""
        self.tested = tested
        """Whether this boot's tests have passed."""

    async def run(self) -> None:
        """Open NVML, register, follow the kernel log, check, then sample until cancelled."""
        placing = asyncio.create_task(self._look_up_rack())
        if self._config.gpu_count != 0:
            opening = asyncio.create_task(self._gpus.open(OPEN_SECONDS_MAX))
            await asyncio.wait({opening}, timeout=FIRST_LOOK_SECONDS)
            if not opening.done():
                # A kernel log line must not wait for a hanging driver; its PCI address suffices.
                self._follow_kernel_log()
            await opening
        await placing
        inventory = self._gpus.inventory
        self._nvlink_domain = inventory.nvlink_domain if inventory else ""
        self._register()
        if not self._kernel_log_problem:
            self._follow_kernel_log()
        now = self._clock.monotonic()
        self._links_until = now + self._config.interconnect_wait
        self._driver_until = now + self._config.driver_wait
        self._gpus.links_awaited = not self.tested
        self._gpus.driver_awaited = self._config.driver_wait > 0
        await self._boot_check()
        try:
            await self._sample_loop()
        finally:
            if self._testing is not None:
                self._testing.cancel()

    async def _look_up_rack(self) -> None:
        self._rack, self._provider_id = await asyncio.gather(
            self._dependencies.rack(), self._dependencies.provider_id()
        )

    def _follow_kernel_log(self) -> None:
        if self._kernel_log.started:
            return
        try:
            self._kernel_log.start()
        except OSError as error:
            self._kernel_log_problem = f"the kernel log {self._config.kmsg} cannot be read: {error}"
            log.error("%s", self._kernel_log_problem)  # noqa: TRY400
            self._reporter.change(
                SampleChange("probe_failed", -1, self._kernel_log_problem, subcode="kmsg")
            )

    def _register(self) -> None:
        inventory = self._gpus.inventory
        self._registrations += 1
        self._registered_gpus = inventory is not None
        self._registered_at = self._clock.monotonic()
        self._reporter.send(
            Registered(
                id=f"{self._who.prefix}.registered.{self._dependencies.start_id}.{self._registrations}",
                time=self._clock.now(),
                pool=self._config.pool,
                node=self._config.node,
                instance=self._config.instance or self._config.node,
                hostname=self._dependencies.hostname,
                boot_id=self._who.boot_id,
                # Until the driver answers, this boot's GPUs are those of the earlier run.
                gpus=self._gpus.gpus.gpus if inventory else self._gpus.gpus.gone,
                driver_version=inventory.driver_version if inventory else "",
                agent_version=self._dependencies.version,
                address=self._config.address,
                rack=self._config.rack or self._nvlink_domain or self._rack,
                nvlink_domain=self._nvlink_domain,
                provider_id=self._provider_id,
                machine_id=self._dependencies.machine_id,
                drills=self._config.drills == "allowed",
            )
        )

    def _register_moved(self, sample: NodeSample | None) -> None:
        """Register again with the NVLink domain that the GPUs have joined since: it is the rack."""
        domain = nvlink_domain(sample)
        recently = self._clock.monotonic() - self._registered_at < REGISTER_AGAIN_SECONDS
        if domain in ("", self._nvlink_domain) or (self._nvlink_domain and recently):
            return
        log.info("the GPUs are in NVLink domain %s", domain)
        self._nvlink_domain = domain
        self._register()

    # --- checks ---------------------------------------------------------------------------------

    async def look(self) -> tuple[CheckResult, ...]:
        """Run the boot checks: every GPU is visible and answers."""
        sample = None if self._config.gpu_count == 0 else await self._gpus.sample()
        self._register_moved(sample)
        self._checked_inventory = self._gpus.inventory
        checks = boot_checks(
            self._gpus.needs,
            self._gpus.best,
            self._gpus.inventory,
            sample,
            self._gpus.problem,
            self._kernel_log_problem,
        )
        return (*checks, *await self._dependencies.rdma.check())

    @property
    def waits(self) -> str:
        """Return what this boot's first checks still wait for; empty: they have been made."""
        if self._checked or self._testing is not None:
            return ""
        for_what = f": {self._gpus.problem}" if self._gpus.problem else ""
        return f"the boot checks are not over{for_what}"

    def boot_checked(self, checks: tuple[CheckResult, ...]) -> BootChecked:
        """Build the event of the boot checks."""
        self._checks += 1
        return BootChecked(
            id=f"{self._who.prefix}.boot-checked.{self._dependencies.start_id}.{self._checks}",
            time=self._clock.now(),
            pool=self._config.pool,
            node=self._config.node,
            ok=all(each.ok for each in checks),
            checks=checks,
            boot_id=self._who.boot_id,
        )

    async def _boot_check(self) -> None:
        """Run the boot checks, then the boot tests in the background, once a boot."""
        checks = await self.look()
        if self._gpus.inventory is not None and not self._registered_gpus:
            self._register()
        failed = {each.name for each in checks if not each.ok}
        now = self._clock.monotonic()
        until = self._driver_until if DRIVER in failed else self._links_until
        self._links_awaited = bool(failed) and failed <= AWAITED | {DRIVER} and now < until
        self._gpus.driver_awaited = self._links_awaited and now < self._driver_until
        if self._links_awaited:
            if DRIVER in failed:
                log.info("waiting for the driver: %s", self._gpus.problem)
                # The fabric manager starts with the driver.
                self._links_until = now + self._config.interconnect_wait
            return
        self._gpus.links_awaited = False
        if self._testable(checks):
            self._testing = asyncio.create_task(self._test(checks))
            return
        self._publish(checks)

    def _testable(self, checks: tuple[CheckResult, ...]) -> bool:
        """Whether to run the boot tests: once a boot, and only if the boot checks passed."""
        wanted = not self.tested and self._dependencies.diagnostics.boot_tests
        return bool(wanted) and all(each.ok for each in checks)

    async def _test(self, checks: tuple[CheckResult, ...]) -> None:
        results = await self._dependencies.diagnostics.at_boot()
        self.tested = all(each.ok for each in results)
        self._publish(checks + results)

    def _publish(self, checks: tuple[CheckResult, ...]) -> None:
        checked = self.boot_checked(checks)
        self._checked = checks
        self._checked_ok = checked.ok
        if checked.ok:
            self._dependencies.rdma.admit()
        self._reporter.send(checked)

    def _register_again(self) -> None:
        """Publish once more what the node's record lacks: the store was restored, or it is adopted.

        The record is read at an interval, and may only be behind.
        """
        since_seconds = self._clock.monotonic() - self._registered_at
        if not must_register_again(
            self._dependencies.missing(), since_seconds, checked=bool(self._checked)
        ):
            return
        log.warning("this node's record lacks its registration: registering again")
        self._register()
        if self._checked:
            self._publish(self._checked)

    async def _recheck(self) -> None:
        """Check again when links were still coming up, or the driver started after the agent."""
        if self._links_awaited:
            await self._boot_check()
            return
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

    async def _sample_loop(self) -> None:
        next_at = publish_at = self._clock.monotonic()
        while True:
            now = self._clock.monotonic()
            if now < next_at:
                await self._clock.sleep(next_at - now)
            next_at = max(next_at + self._config.sample_interval, self._clock.monotonic())
            telemetry = await self._sample()
            await self._recheck()
            if self._checked:
                await self._dependencies.rdma.look()
            self._register_again()
            self._reraise_test_error()
            if self._clock.monotonic() >= publish_at:
                publish_at += self._config.telemetry_interval
                publish_at = max(publish_at, self._clock.monotonic())
                await self._publish_telemetry(telemetry)

    def _reraise_test_error(self) -> None:
        if self._testing is not None and self._testing.done():
            self._testing.result()
            self._testing = None

    async def _sample(self) -> Telemetry:
        sample = None if self._config.gpu_count == 0 else await self._gpus.sample()
        self._register_moved(sample)
        host = self._dependencies.host.sample()
        self._samples += 1
        now = self._clock.now()
        return Telemetry(
            id=f"{self._who.prefix}.telemetry.{self._dependencies.start_id}.{self._samples}",
            time=now,
            pool=self._config.pool,
            node=self._config.node,
            gpus=sample.gpus if sample is not None else (),
            cpu_percent=host.cpu_percent,
            memory_used_bytes=host.memory_used_bytes,
            memory_total_bytes=host.memory_total_bytes,
            sequence=self._samples,
            sampled_at=now,
            conditions=self._dependencies.conditions.list,
        )

    async def _publish_telemetry(self, telemetry: Telemetry) -> None:
        bus = self._dependencies.bus()
        if bus is None or not bus.connected:
            return
        subject = subjects.telemetry(self._config.pool, self._config.node)
        try:
            await bus.publish(subject, encode(telemetry), msg_id=telemetry.id)
        except BusError as error:
            log.warning("telemetry: %s", error)


def must_register_again(missing: MissingEvents, since_seconds: float, *, checked: bool) -> bool:
    """Return whether the record lacks what was published `since_seconds` ago.

    `checked`: the boot checks were published.
    """
    lost = missing.registration or (missing.checks and checked)
    again = REFUSED_AGAIN_SECONDS if missing.refused else REGISTER_AGAIN_SECONDS
    return lost and since_seconds >= again
