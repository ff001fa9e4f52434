"""Runs tests of the host when they are asked for, at boot, and by schedule; tells what failed.

One tool runs at a time. What needs the GPUs for itself is refused unless the node is cordoned, so
that nobody's work is disturbed; at the first boot check nobody works there yet.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent.faults.fault_builder import GpuMap
from agent.maintenance.diagnostics.findings import Asked, Finding
from agent.maintenance.diagnostics.health_check_plugins import RunningCheck
from agent.maintenance.diagnostics.health_checks import (
    CHECKS,
    Check,
    home_of,
    memory_check,
    program_of,
)
from agent.maintenance.diagnostics.tool_runner import ToolHung, run_tool
from agent.settings import AgentConfig
from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.node_events import CheckResult
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

BOOT: Final = "boot"
BOOT_TESTS: Final = ("nvidia-smi", "memory")
TELL_AGAIN_SECONDS: Final = 900.0
"""A test that fails at every run of its schedule is told this often."""
INTERVAL_SECONDS_MIN: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the tests are run with."""

    clock: Clock
    environment: Mapping[str, str]
    gpus: Callable[[], GpuMap]
    busy: Callable[[], bool]
    """Whether somebody works on the GPUs."""
    cordoned: Callable[[], Awaitable[bool | None]]
    """Whether this node is cordoned; None: that cannot be known now."""
    look: Callable[[], Awaitable[tuple[CheckResult, ...]]]
    """The checks that take no time."""
    plugins: Sequence[RunningCheck]
    on_failure: Callable[[Finding], None]


class Diagnostics:
    """The tests of this host."""

    def __init__(self, config: AgentConfig, bench: Bench) -> None:
        """Run them as `config` says."""
        self._config = config
        self._bench = bench
        self._checks = {each.name: each for each in CHECKS}
        own = config.gpu_count != 0 and not config.nvml_library
        if own or config.cuda_library:
            self._checks["memory"] = memory_check(config.cuda_library)
        self._plugins = {each.name: each for each in bench.plugins}
        self._turn = asyncio.Lock()
        self._told: dict[str, float] = {}
        self._boot_names = self._names_at_boot(own=own)

    @property
    def boot_tests(self) -> bool:
        """Whether there is anything to run at boot beyond a look."""
        return bool(self._boot_names)

    def _names_at_boot(self, *, own: bool) -> tuple[str, ...]:
        """Name the tests of a boot: a simulated GPU is not what the host's tools would test."""
        named = self._config.boot_tests
        names: tuple[str, ...] = ()
        if named == "auto":
            names = BOOT_TESTS if own else ()
        elif named != "none":
            names = _names(named)
        found = [name for name in names if self._program(name)]
        return (*found, *(e.name for e in self._bench.plugins if not e.interval_seconds))

    # --- asked for ------------------------------------------------------------------------------

    async def answer(self, request: DiagnoseRequest) -> Diagnosis:
        """Run what is asked for, one after the other."""
        asked = self._asked(request.level, request.seconds, request.gbps_min)
        known = {BOOT, "memory", *self._checks, *self._plugins}
        unknown = [name for name in request.checks if name not in known]
        if unknown:
            reason = f"no check named {', '.join(unknown)} (known: {', '.join(sorted(known))})"
            return Diagnosis(ok=False, refused=reason)
        if refused := await self._refusal(request.checks, asked):
            return Diagnosis(ok=False, refused=refused)
        results: list[CheckResult] = []
        for name in dict.fromkeys(request.checks or (BOOT,)):
            if name == BOOT:
                results += await self._bench.look()
                continue
            finding = await self._run(name, asked)
            if finding.ran and not finding.ok:
                self._tell(finding)
            results.append(finding.result())
        return Diagnosis(ok=all(each.ok for each in results), checks=tuple(results))

    async def _refusal(self, names: Sequence[str], asked: Asked) -> str:
        """Say why these must not run now; empty where they may."""
        exclusive = [
            name for name in names if self._program(name) and self._checks[name].exclusive(asked)
        ]
        if not exclusive:
            return ""
        cordoned = await self._bench.cordoned()
        if cordoned:
            return ""
        who = ", ".join(exclusive)
        if cordoned is None:
            return f"{who}: whether this node is cordoned cannot be known now; ask again later"
        return f"{who}: needs the GPUs for itself; cordon this node first, and drain it"

    def _asked(self, level: int, seconds: int = 60, gbps_min: float = 0.0) -> Asked:
        return Asked(level, seconds, gbps_min, self._bench.gpus().gpus)

    # --- at boot and by schedule ----------------------------------------------------------------

    async def at_boot(self) -> tuple[CheckResult, ...]:
        """Run the tests of a boot; one that could not do its work says nothing.

        Nobody should work on a host that has just come up; where somebody does (the agent was
        installed later), what needs the GPUs for itself is left out.
        """
        asked = self._asked(self._config.diagnose_level)
        results = []
        for name in self._boot_names:
            check = self._checks.get(name)
            if check is not None and check.exclusive(asked) and self._bench.busy():
                log.info("boot test %s is left out: the GPUs are in use", name)
                continue
            finding = await self._run(name, asked)
            if not finding.ran:
                log.warning("boot test %s: %s", name, finding.detail)
                continue
            if not finding.ok:
                self._tell(finding)
            results.append(finding.result())
        return tuple(results)

    async def run(self) -> None:
        """Run the schedule, and the plugins at their intervals, for ever."""
        async with asyncio.TaskGroup() as group:
            if self._config.diagnose_interval > 0:
                group.create_task(self._by_schedule())
            for plugin in self._bench.plugins:
                if plugin.interval_seconds > 0:
                    group.create_task(self._at_interval(plugin))
            await asyncio.Event().wait()

    async def _by_schedule(self) -> None:
        names = [n for n in _names(self._config.diagnose_checks) if self._program(n)]
        while True:
            await self._bench.clock.sleep(self._config.diagnose_interval)
            asked = self._asked(self._config.diagnose_level)
            for name in names:
                if refused := await self._refusal((name,), asked):
                    log.info("not by schedule: %s", refused)
                    continue
                self._judge(await self._run(name, asked))

    async def _at_interval(self, plugin: RunningCheck) -> None:
        while True:
            self._judge(await plugin.run(self._config.health_check_deadline))
            await self._bench.clock.sleep(max(plugin.interval_seconds, INTERVAL_SECONDS_MIN))

    def _judge(self, finding: Finding) -> None:
        """Tell a failure when it begins, and now and then while it lasts."""
        if not finding.ran:
            log.warning("%s: %s", finding.name, finding.detail)
        elif finding.ok:
            if self._told.pop(finding.name, None) is not None:
                log.info("%s passes again: %s", finding.name, finding.detail)
        else:
            now = self._bench.clock.monotonic()
            told = self._told.get(finding.name)
            if told is None or now - told >= TELL_AGAIN_SECONDS:
                self._tell(finding)

    def _tell(self, finding: Finding) -> None:
        self._told[finding.name] = self._bench.clock.monotonic()
        self._bench.on_failure(finding)

    # --- one test -------------------------------------------------------------------------------

    def _program(self, name: str) -> str:
        check = self._checks.get(name)
        return program_of(check, self._bench.environment.get("PATH")) if check else ""

    async def _run(self, name: str, asked: Asked) -> Finding:
        """Run one test, when it is its turn."""
        if plugin := self._plugins.get(name):
            return await plugin.run(self._config.health_check_deadline)
        check, program = self._checks.get(name), self._program(name)
        if check is None or not program:
            tools = " or ".join(check.programs) if check else "the CUDA driver"
            return Finding(name, ok=False, detail=f"{tools} is not on this host", ran=False)
        async with self._turn:
            return await self._run_tool(check, program, asked)

    async def _run_tool(self, check: Check, program: str, asked: Asked) -> Finding:
        seconds_max = check.seconds_max(asked)
        log.info("runs %s for at most %g s", check.name, seconds_max)
        try:
            output = await run_tool(
                (program, *check.arguments(asked)),
                seconds_max=seconds_max,
                environment=self._bench.environment,
                directory=home_of(check, program),
            )
        except ToolHung as error:
            return Finding(check.name, ok=False, detail=str(error))
        except OSError as error:
            return Finding(check.name, ok=False, detail=f"cannot be started: {error}", ran=False)
        return check.parse(output, asked)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
