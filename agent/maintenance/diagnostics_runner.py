"""Runs diagnostics at boot, on command and by schedule, and reports failures.

One tool runs at a time. Exclusive tests are refused unless the node is cordoned, so that no job is
disturbed; at the first boot check no job runs yet.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from agent.faults.fault_builder import GpuMap
from agent.maintenance.diagnostics.findings import CheckParameters
from agent.maintenance.diagnostics.health_check_plugins import PluginRunner
from agent.maintenance.diagnostics.health_checks import (
    CHECKS,
    Check,
    home_of,
    memory_check,
    program_of,
)
from agent.maintenance.diagnostics.tool_runner import ToolHung, run_tool
from agent.observations import CheckFinding
from agent.settings import AgentConfig
from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.held_conditions import ConditionList, condition_views
from schemas.node_events import CheckResult
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

BOOT: Final = "boot"
BOOT_TESTS: Final = ("nvidia-smi", "memory")
REPEAT_SECONDS: Final = 900.0
"""A test that keeps failing is reported again after so long."""
INTERVAL_SECONDS_MIN: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosticsDependencies:
    """Names the dependencies of the diagnostics."""

    clock: Clock
    environment: Mapping[str, str]
    gpus: Callable[[], GpuMap]
    busy: Callable[[], bool]
    """Whether the GPUs are in use."""
    cordoned: Callable[[], Awaitable[bool | None]]
    """Whether this node is cordoned; None: unknown."""
    look: Callable[[], Awaitable[tuple[CheckResult, ...]]]
    """The boot checks."""
    waits: Callable[[], str]
    """Why the boot checks are not over; empty: they are."""
    conditions: Callable[[], ConditionList]
    """What holds on this host."""
    plugins: Sequence[PluginRunner]
    on_failure: Callable[[CheckFinding], None]


class DiagnosticsRunner:
    """Runs the tests of this host."""

    def __init__(self, config: AgentConfig, dependencies: DiagnosticsDependencies) -> None:
        self._config = config
        self._dependencies = dependencies
        self._checks = {each.name: each for each in CHECKS}
        own = config.gpu_count != 0 and not config.nvml_library
        if own or config.cuda_library:
            self._checks["memory"] = memory_check(config.cuda_library)
        self._plugins = {each.name: each for each in dependencies.plugins}
        self._turn = asyncio.Lock()
        self._published_at: dict[str, float] = {}
        self._boot_names = self._names_at_boot(own=own)

    @property
    def boot_tests(self) -> bool:
        """Return whether any test runs at boot besides the boot checks."""
        return bool(self._boot_names)

    def _names_at_boot(self, *, own: bool) -> tuple[str, ...]:
        """Names of the boot tests; the host's tools cannot test simulated GPUs."""
        named = self._config.boot_tests
        names: tuple[str, ...] = ()
        if named == "auto":
            names = BOOT_TESTS if own else ()
        elif named != "none":
            names = _names(named)
        found = [name for name in names if self._program(name)]
        return (*found, *(e.name for e in self._dependencies.plugins if not e.interval_seconds))

    # --- on command -----------------------------------------------------------------------------

    async def answer(self, request: DiagnoseRequest) -> Diagnosis:
        """Run the requested tests, one after the other; say what holds afterwards."""
        found = await self._tested(request)
        held = condition_views(self._dependencies.conditions())
        return msgspec.structs.replace(found, conditions=held)

    async def _tested(self, request: DiagnoseRequest) -> Diagnosis:
        parameters = self._parameters(request.level, request.seconds, request.gbps_min)
        known = {BOOT, "memory", *self._checks, *self._plugins}
        unknown = [name for name in request.checks if name not in known]
        if not unknown and (waits := self._dependencies.waits()):
            return Diagnosis(ok=False, refused=waits)
        if unknown:
            reason = f"no check named {', '.join(unknown)} (known: {', '.join(sorted(known))})"
            return Diagnosis(ok=False, refused=reason)
        if refused := await self._refusal(request.checks, parameters):
            return Diagnosis(ok=False, refused=refused)
        results: list[CheckResult] = []
        for name in dict.fromkeys(request.checks or (BOOT,)):
            if name == BOOT:
                results += await self._dependencies.look()
                continue
            finding = await self._run(name, parameters)
            if finding.ran and not finding.ok:
                self._publish(finding)
            results.append(finding.result())
        return Diagnosis(ok=all(each.ok for each in results), checks=tuple(results))

    async def _refusal(self, names: Sequence[str], parameters: CheckParameters) -> str:
        """Why these must not run now; empty: they may."""
        exclusive = [
            name
            for name in names
            if self._program(name) and self._checks[name].exclusive(parameters)
        ]
        if not exclusive:
            return ""
        cordoned = await self._dependencies.cordoned()
        if cordoned:
            return ""
        who = ", ".join(exclusive)
        if cordoned is None:
            return f"{who}: whether this node is cordoned cannot be known now; ask again later"
        return f"{who}: needs the GPUs for itself; cordon this node first, and drain it"

    def _parameters(self, level: int, seconds: int = 60, gbps_min: float = 0.0) -> CheckParameters:
        return CheckParameters(level, seconds, gbps_min, self._dependencies.gpus().gpus)

    # --- at boot and by schedule ----------------------------------------------------------------

    async def at_boot(self) -> tuple[CheckResult, ...]:
        """Run the boot tests; a test that could not run has no result.

        A host that has just booted should be idle; if it is in use (the agent was installed later),
        exclusive tests are skipped.
        """
        parameters = self._parameters(self._config.diagnose_level)
        results = []
        for name in self._boot_names:
            check = self._checks.get(name)
            if check is not None and check.exclusive(parameters) and self._dependencies.busy():
                log.info("boot test %s is left out: the GPUs are in use", name)
                continue
            finding = await self._run(name, parameters)
            if not finding.ran:
                log.warning("boot test %s: %s", name, finding.detail)
                continue
            if not finding.ok:
                self._publish(finding)
            results.append(finding.result())
        return tuple(results)

    async def run(self) -> None:
        """Run the schedule, and the plugins at their intervals, until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._config.diagnose_interval > 0:
                group.create_task(self._by_schedule())
            for plugin in self._dependencies.plugins:
                if plugin.interval_seconds > 0:
                    group.create_task(self._at_interval(plugin))
            await asyncio.Event().wait()

    async def _by_schedule(self) -> None:
        names = [n for n in _names(self._config.diagnose_checks) if self._program(n)]
        while True:
            await self._dependencies.clock.sleep(self._config.diagnose_interval)
            parameters = self._parameters(self._config.diagnose_level)
            for name in names:
                if refused := await self._refusal((name,), parameters):
                    log.info("not by schedule: %s", refused)
                    continue
                self._publish_change(await self._run(name, parameters))

    async def _at_interval(self, plugin: PluginRunner) -> None:
        while True:
            self._publish_change(await plugin.run(self._config.health_check_deadline))
            await self._dependencies.clock.sleep(max(plugin.interval_seconds, INTERVAL_SECONDS_MIN))

    def _publish_change(self, finding: CheckFinding) -> None:
        """Report a failure when it begins, and at intervals while it lasts."""
        if not finding.ran:
            log.warning("%s: %s", finding.name, finding.detail)
        elif finding.ok:
            if self._published_at.pop(finding.name, None) is not None:
                log.info("%s passes again: %s", finding.name, finding.detail)
        else:
            now = self._dependencies.clock.monotonic()
            published_at = self._published_at.get(finding.name)
            if published_at is None or now - published_at >= REPEAT_SECONDS:
                self._publish(finding)

    def _publish(self, finding: CheckFinding) -> None:
        self._published_at[finding.name] = self._dependencies.clock.monotonic()
        self._dependencies.on_failure(finding)

    # --- one test -------------------------------------------------------------------------------

    def _program(self, name: str) -> str:
        check = self._checks.get(name)
        return program_of(check, self._dependencies.environment.get("PATH")) if check else ""

    async def _run(self, name: str, parameters: CheckParameters) -> CheckFinding:
        """Run one test, one tool at a time."""
        if plugin := self._plugins.get(name):
            return await plugin.run(self._config.health_check_deadline)
        check, program = self._checks.get(name), self._program(name)
        if check is None or not program:
            tools = " or ".join(check.programs) if check else "the CUDA driver"
            return CheckFinding(name, ok=False, detail=f"{tools} is not on this host", ran=False)
        async with self._turn:
            return await self._run_tool(check, program, parameters)

    async def _run_tool(
        self, check: Check, program: str, parameters: CheckParameters
    ) -> CheckFinding:
        seconds_max = check.seconds_max(parameters)
        log.info("runs %s for at most %g s", check.name, seconds_max)
        try:
            output = await run_tool(
                (program, *check.arguments(parameters)),
                seconds_max=seconds_max,
                environment=self._dependencies.environment,
                directory=home_of(check, program),
            )
        except ToolHung as error:
            return CheckFinding(check.name, ok=False, detail=str(error))
        except OSError as error:
            return CheckFinding(
                check.name, ok=False, detail=f"cannot be started: {error}", ran=False
            )
        return check.parse(output, parameters)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
