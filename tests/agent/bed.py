"""A host for diagnostics: tools with scripted output, and a clock that waits."""

import asyncio
import stat
from pathlib import Path
from typing import Any

from agent.faults.fault_builder import GpuMap
from agent.maintenance.diagnostics.health_check_plugins import PluginRunner
from agent.maintenance.diagnostics_runner import DiagnosticsDependencies, DiagnosticsRunner
from agent.observations import CheckFinding
from agent.settings import AgentConfig
from schemas.node_events import CheckResult
from services.primitives.clock import SystemClock
from services.provisioner.providers.local_gpus import simulated_gpus
from tests.support.held_conditions import LISTED

OUTPUTS = Path(__file__).parent / "outputs"
GPUS = simulated_gpus("node-7", 2)
LOOK = (CheckResult(name="gpus-visible", ok=True, detail="2 GPUs are visible"),)


class Clock(SystemClock):
    """A clock whose pauses end when the test says so."""

    def __init__(self) -> None:
        self.time = 0.0
        self.pausing = asyncio.Semaphore(0)
        self._turn = asyncio.Semaphore(0)

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.pausing.release()
        await self._turn.acquire()
        self.time += seconds

    async def pass_on(self, times: int = 1) -> None:
        """Let a pause end, when one has begun, so often."""
        for _ in range(times):
            await self.pausing.acquire()
            self._turn.release()


class Bed:
    """Tools with scripted output, and the tests that are run with them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = Clock()
        self.cordoned: bool | None = False
        self.busy = False
        self.waits = ""
        self.plugins: list[PluginRunner] = []
        self.failures: list[CheckFinding] = []

    def install(self, program: str, output: str = "", code: int = 0, script: str = "") -> Path:
        """Put a tool on the path: it notes its arguments and prints a file of tests/outputs."""
        path = self.directory / program
        show = f"cat {OUTPUTS / output}\n" if output else ""
        path.write_text(f'#!/bin/sh\necho "$@" >> {path}.asked\n{script}\n{show}exit {code}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def asked(self, program: str) -> list[str]:
        """Return the arguments of each run of a tool, one run a line."""
        path = self.directory / f"{program}.asked"
        return path.read_text().splitlines() if path.exists() else []

    def make(self, **settings: Any) -> DiagnosticsRunner:
        """Make the tests; by default as on a host with GPUs of its own."""
        config = AgentConfig(pool="training", node="n1", **settings)
        return DiagnosticsRunner(
            config,
            DiagnosticsDependencies(
                clock=self.clock,
                environment={"PATH": f"{self.directory}:/usr/bin:/bin"},
                gpus=lambda: GpuMap(GPUS),
                busy=lambda: self.busy,
                cordoned=self._cordoned,
                look=self._look,
                waits=lambda: self.waits,
                conditions=lambda: LISTED,
                plugins=self.plugins,
                on_failure=self.failures.append,
            ),
        )

    async def _cordoned(self) -> bool | None:
        return self.cordoned

    async def _look(self) -> tuple[CheckResult, ...]:
        return LOOK
