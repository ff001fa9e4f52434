"""One stress run: a simulated fleet, its failure schedule, and its recorder."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from schemas import subjects
from schemas.messages import encode
from schemas.operator_requests import ScaleRequest
from schemas.settings import Settings
from services.bus.port import Stored
from services.settings.settings_file import parse_settings
from services.settings.xid_catalogues import load_xids
from services.simulator.engine.fleet_settings import METRICS, fleet_settings
from services.simulator.engine.run_history import RunHistory
from services.simulator.engine.simulated_fleet import FleetSetup, SimulatedFleet, Violation
from services.simulator.engine.simulated_machine import SimulatedMachine
from services.simulator.engine.simulation_context import SimulationContext
from services.simulator.inputs.stress import job_demand
from services.simulator.inputs.stress.failure_schedule import ScheduledFailure
from services.simulator.inputs.stress.job_queues import JobQueues
from services.simulator.inputs.stress.stress_fleet import GeneratedFleet, cold_start_max
from services.simulator.inputs.stress.stress_format import StressSpec, autoscaling_of
from services.simulator.inputs.stress.stress_machines import SlotMachines
from services.simulator.inputs.stress.stress_recorder import StressRecorder

GPUS_MAX: Final = 64
LAUNCH_SECONDS_MIN: Final = 1_200.0
HISTORY_LINES: Final = 20_000
"""Kept for a violation's history."""


class StressRun:
    """Runs a stress specification once. Used inside a virtual loop."""

    def __init__(
        self,
        spec: StressSpec,
        generated: GeneratedFleet,
        failures: Sequence[ScheduledFailure],
        on_line: Callable[[float, str], None] | None = None,
        base: Settings | None = None,
        words: Sequence[tuple[float, str]] = (),
        on_word: Callable[[float, str], None] = lambda _at, _text: None,
        begins: float = 0.0,
    ) -> None:
        """Put the fleet together; nothing runs yet.

        `on_line` gets the history line by line; of `base` agent, budget, mode and policy count.
        The file's `words` are logged at their moments, and passed to `on_word`; these and the
        duration count from `begins`.
        """
        self._spec = spec
        self._generated = generated
        self._failures = failures
        self._words, self._on_word = words, on_word
        self._begins = begins
        settings = parse_settings("(stress)", json.dumps(settings_of(spec, generated)), {})
        if base is not None:
            settings = msgspec.structs.replace(
                settings,
                agent=base.agent,
                budget=base.budget,
                mode=base.mode,
                health_policy=base.health_policy,
                server=base.server,
            )
        sizes = {pool: len(generated.of_pool(pool)) for pool in generated.pools}
        simulation = SimulationContext(str(spec.seed), RunHistory(HISTORY_LINES, on_line))
        self.machines = SlotMachines(simulation, spec, generated, settings.agent, load_xids())
        self.jobs: JobQueues | None = None
        if (wanted := spec.workload) is not None:
            drawn = job_demand.draw(wanted, sizes, float(spec.duration), simulation.seed)
            self.jobs = JobQueues(simulation, drawn, wanted.jobs_per_node, list(sizes))
            self.machines.used = self.jobs.used
        self.fleet = SimulatedFleet(
            simulation, FleetSetup(settings=settings), machines=self.machines, workload=self.jobs
        )
        self._simulation = simulation
        self._chance = simulation.chance("gpus")
        self._scales = autoscaling_of(spec.fleet_gen) is not None
        """Whether autoscalers decide how large the pools are."""
        budgets = {name: pool.budget for name, pool in settings.pools.items()}
        self.recording = StressRecorder(sizes, budgets)
        self._wanted: dict[str, int] = {}
        self._began = 0.0
        simulation.watchers.append(self._on_stored)

    async def run(self, on_sample: Callable[[float], None]) -> Violation | None:
        """Run to the end, or to the first violation; `on_sample` gets the seconds so far."""
        violation = await self.fleet.run(self._live(on_sample))
        self.recording.finish(self._now())
        return violation

    async def _live(self, on_sample: Callable[[float], None]) -> None:
        await self.fleet.open()
        await self.fleet.start()
        await asyncio.sleep(1.0)
        self._began = began = self._simulation.now()
        loop = asyncio.get_running_loop()
        self.machines.publish_for_ever()
        if self.jobs is not None and self._begins:
            loop.call_at(began + self._begins, self.jobs.begin)
        elif self.jobs is not None:
            self.jobs.begin()
        for wanted in () if self._scales else self._generated.wanted:
            loop.call_at(began + wanted.at, self._scale, wanted.pool, wanted.nodes)
        for at, text in self._words:
            loop.call_at(began + self._begins + at, self._log, text)
        for failure in self._failures:
            loop.call_at(began + failure.at, self._inject, failure)
        seconds = self._begins + float(self._spec.duration)
        interval = float(self._spec.metrics_interval)
        while (now := self._now()) < seconds:
            await asyncio.sleep(min(interval, seconds - now))
            self._sample()
            on_sample(self._now())

    def _sample(self) -> None:
        pools = self._generated.pools if self._scales else ()
        scaled = [each for name in pools if (each := self.fleet.records.pool(name)) is not None]
        self._wanted |= {each.name: each.desired for each in scaled}
        machines = Counter(each.pool for each in self.fleet.cloud.instances())
        at = round(self._now(), 3)
        self.recording.sample(at, self._wanted, machines, scaled, self.jobs)

    def _now(self) -> float:
        """Seconds since the first node was wanted."""
        return self._simulation.now() - self._began

    def _on_stored(self, stream: str, stored: Stored) -> None:
        self.recording.record(self._now(), stream, stored)
        if self.jobs is not None:
            self.jobs.on_stored(stream, stored)

    def _scale(self, pool: str, nodes: int) -> None:
        self._wanted[pool] = nodes
        request = ScaleRequest(nodes=nodes, by="stress")
        self._simulation.server.publish(subjects.pool_request(pool, "scale"), encode(request), {})

    def _log(self, text: str) -> None:
        self._simulation.note(f"scenario: {text}")
        self._on_word(self._now(), text)

    def _inject(self, scheduled: ScheduledFailure) -> None:
        gpu = self._chance.randrange(GPUS_MAX)
        machine = self.machines.target_of(scheduled)
        if machine is None:
            self.recording.miss(scheduled)
            return
        self.fleet.faults.break_machine(machine, self.machines.failure_of(scheduled, gpu))
        self.recording.inject(scheduled, machine.name, self._now())
        if scheduled.momentary:
            self.machines.end_failure(machine, scheduled)
        if scheduled.fatal:
            self.fleet.workload.interrupt(machine.name)
        if scheduled.recovers_after is not None:
            asyncio.get_running_loop().call_later(
                scheduled.recovers_after, self._recover, machine, scheduled
            )

    def _recover(self, machine: SimulatedMachine, scheduled: ScheduledFailure) -> None:
        if scheduled.momentary or self.machines.end_failure(machine, scheduled):
            self.recording.recover(
                self._now(), scheduled, machine.name, healthy=not machine.failures
            )


def settings_of(spec: StressSpec, fleet: GeneratedFleet) -> dict[str, Any]:
    """The configuration of a stress run's services."""
    launch = max(
        LAUNCH_SECONDS_MIN, 2 * cold_start_max(spec.fleet_gen.startup, spec.chaos.recovery)
    )
    given = dict(spec.fleet_gen.pool)
    scales = autoscaling_of(spec.fleet_gen) is not None
    if scales and spec.workload is not None:
        given.setdefault("metrics", METRICS)
    pools = {
        pool: {
            "provider": fleet.slots[fleet.of_pool(pool)[0]].provider,
            "instance_type": template.instance_type or template.name,
            "gpu_count": template.gpu_count,
            "min_nodes": 1 if scales else 0,
            "max_nodes": len(fleet.of_pool(pool)),
            "labels": template.labels,
            "launch_timeout": f"{launch:.0f}s",
            **given,
            "health": {
                "auto_replace": spec.chaos.recovery.replace_fatal,
                **given.get("health", {}),
            },
        }
        for pool, template in fleet.pools.items()
    }
    return fleet_settings(pools, {each.provider for each in fleet.slots})
