"""One stress run: the real services, the machines, the plan carried out, and what is recorded."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from schemas import subjects
from schemas.messages import encode
from schemas.operator_requests import ScaleRequest
from schemas.pool_records import FLEET_KEY, FleetRecord
from schemas.settings import Settings
from schemas.topology import POOLS
from services.bus.port import Stored
from services.bus.topology_setup import set_up
from services.health_monitor.rules.xid_catalogues import load_xids
from services.provisioner.provider_client.provider import Instance
from services.settings.settings_file import parse_settings
from services.simulator.engine.run_history import RunHistory
from services.simulator.engine.simulated_machine import SimulatedMachine
from services.simulator.engine.simulated_process import SimulatedProcess
from services.simulator.engine.simulated_workload import SimulatedWorkload
from services.simulator.engine.simulation_context import (
    CURRENT_SIMULATION,
    FLEET,
    SimulationContext,
)
from services.simulator.engine.stored_records import StoredRecords
from services.simulator.engine.supervised_service import SupervisedService
from services.simulator.inputs.fuzz.fuzz_simulation import BUILDS
from services.simulator.inputs.stress import failure_effects, job_demand
from services.simulator.inputs.stress.failure_schedule import ScheduledFailure
from services.simulator.inputs.stress.job_queues import JobQueues
from services.simulator.inputs.stress.stress_fleet import GeneratedFleet, cold_start_max
from services.simulator.inputs.stress.stress_format import StressSpec, autoscaling_of
from services.simulator.inputs.stress.stress_machines import PlacedCloud, SlotMachines
from services.simulator.inputs.stress.stress_recorder import StressRecorder

GPUS_MAX: Final = 64
LAUNCH_SECONDS_MIN: Final = 1_200.0
PLUGIN: Final = "services.simulator.engine.simulated_cloud:SimulatedProvider"
NOTIFIER: Final = "services.simulator.engine.simulated_workload:SimulatedNotifier"
METRICS: Final = "services.simulator.engine.simulated_workload:SimulatedMetrics"


class StressRun:
    """Everything of one run."""

    def __init__(
        self,
        spec: StressSpec,
        fleet: GeneratedFleet,
        failures: tuple[ScheduledFailure, ...],
        seed: str,
        told: Callable[[float, str], None] | None = None,
        base: Settings | None = None,
    ) -> None:
        """Put the world together; nothing moves yet.

        `told` hears the story, line by line; of `base` agent, budget, mode and policy count.
        """
        self._spec = spec
        self._fleet = fleet
        self._failures = failures
        self.simulation = SimulationContext(seed)
        self.simulation.history = RunHistory(0, told)
        CURRENT_SIMULATION.set(self.simulation)
        settings = parse_settings("(stress)", json.dumps(settings_of(spec, fleet)), {})
        if base is not None:
            settings = msgspec.structs.replace(
                settings,
                agent=base.agent,
                budget=base.budget,
                mode=base.mode,
                health_policy=base.health_policy,
                server=base.server,
            )
        known = failure_effects.remedies(load_xids())
        self.machines = SlotMachines(self.simulation, spec, fleet, settings.agent, known)
        self._chance = self.simulation.chance("gpus")
        sizes = {pool: len(fleet.of_pool(pool)) for pool in fleet.pools}
        self.jobs = jobs_of(spec, sizes, self.simulation, seed)
        self.simulation.parts["workload"] = self.jobs or SimulatedWorkload(self.simulation)
        if self.jobs is not None:
            self.machines.used = self.jobs.used
        self._scales = autoscaling_of(spec.fleet_gen) is not None
        """Whether pools are as large as their autoscalers want them."""
        self._records = StoredRecords(self.simulation.server)
        self.clouds: dict[str, PlacedCloud] = {}
        for provider in sorted({each.provider for each in fleet.slots}):
            cloud = PlacedCloud(
                self.simulation, idempotent=True, list_lag_seconds=0.0, prefix=provider
            )
            cloud.place = self.machines.place
            cloud.on_made = self.machines.appear
            cloud.on_ending = self._ending
            self.clouds[provider] = cloud
            self.simulation.parts[f"cloud/{provider}"] = cloud
        self.services = [
            SupervisedService(self.simulation, name, build, settings)
            for name, build in BUILDS.items()
        ]
        budgets = {name: pool.budget for name, pool in settings.pools.items()}
        self.recording = StressRecorder(sizes, budgets)
        self._wanted: dict[str, int] = {}
        self._words: tuple[tuple[float, str], ...] = ()
        self._heard: Callable[[float, str], None] = lambda _at, _text: None
        self._begun = 0.0
        self.simulation.watchers.append(self._stored)

    def says(self, words: Sequence[tuple[float, str]], heard: Callable[[float, str], None]) -> None:
        """Have the file's words said at their moments, and `heard` told of each."""
        self._words, self._heard = tuple(words), heard

    async def run(self, on_sample: Callable[[float], None]) -> None:
        """Live through it; `on_sample` is told the seconds that have passed."""
        self.operator = SimulatedProcess(self.simulation, "operator")
        await set_up(self.operator.bus, self.simulation.clock, replicas=1)
        await self.operator.bus.create(POOLS, FLEET_KEY, encode(FleetRecord(id=FLEET)))
        for each in self.services:
            each.start()
        await asyncio.sleep(1.0)
        self._begun = begun = self.simulation.now()
        loop = asyncio.get_running_loop()
        self.machines.speak_for_ever()
        if self.jobs is not None:
            self.jobs.begin()
        for wanted in () if self._scales else self._fleet.wanted:
            loop.call_at(begun + wanted.at, self._ask, wanted.pool, wanted.nodes)
        for at, text in self._words:
            loop.call_at(begun + at, self._say, text)
        for failure in self._failures:
            loop.call_at(begun + failure.at, self._strike, failure)
        seconds, interval = float(self._spec.duration), float(self._spec.metrics_interval)
        while (now := self._now()) < seconds:
            await asyncio.sleep(min(interval, seconds - now))
            self._sample()
            on_sample(self._now())
        self.recording.finish(self._now())
        self.simulation.server.close()

    def _sample(self) -> None:
        records = [self._records.pool(name) for name in self._fleet.pools] if self._scales else []
        scaled = [each for each in records if each is not None]
        self._wanted |= {each.name: each.desired for each in scaled}
        at = round(self._now(), 3)
        self.recording.sample(at, self._wanted, self._standing(), scaled, self.jobs)

    def _ending(self, instance: Instance) -> None:
        self.machines.vanish(instance)
        if self.jobs is not None:
            self.jobs.leave(instance.name)

    def _standing(self) -> dict[str, int]:
        """Pool -> machines that stand and cost money."""
        return Counter(each.pool for cloud in self.clouds.values() for each in cloud.standing())

    @property
    def made(self) -> int:
        """Machines ever made."""
        return sum(each.made for each in self.clouds.values())

    @property
    def defects(self) -> list[str]:
        """Why services ended by themselves."""
        return [f"{each.name}: {text}" for each in self.services for text in each.defects]

    def _now(self) -> float:
        """Seconds since the first node was wanted."""
        return self.simulation.now() - self._begun

    def _stored(self, stream: str, stored: Stored) -> None:
        self.recording.stored(self._now(), stream, stored)
        if self.jobs is not None:
            self.jobs.stored(stream, stored)

    def _ask(self, pool: str, nodes: int) -> None:
        self._wanted[pool] = nodes
        request = ScaleRequest(nodes=nodes, by="stress")
        self.simulation.server.publish(subjects.pool_request(pool, "scale"), encode(request), {})

    def _say(self, text: str) -> None:
        self.simulation.note(f"scenario: {text}")
        self._heard(self._now(), text)

    def _strike(self, failure: ScheduledFailure) -> None:
        gpu = self._chance.randrange(GPUS_MAX)
        machine = self.machines.strike(failure, gpu)
        if machine is None:
            self.recording.miss(failure)
            return
        self.recording.strike(failure, machine.name, self._now())
        if failure.fatal and self.jobs is not None:
            self.jobs.strike(machine.name)
        if failure.recovers_after is not None:
            asyncio.get_running_loop().call_later(
                failure.recovers_after, self._pass_by, machine, failure
            )

    def _pass_by(self, machine: SimulatedMachine, failure: ScheduledFailure) -> None:
        if self.machines.pass_by(machine, failure):
            self.recording.recover(failure, machine.name, well=not machine.failures)


def jobs_of(
    spec: StressSpec, sizes: Mapping[str, int], simulation: SimulationContext, seed: str
) -> JobQueues | None:
    """The workload system of a run, where jobs come to it."""
    wanted = spec.workload
    if wanted is None:
        return None
    drawn = job_demand.draw(wanted, sizes, float(spec.duration), seed)
    return JobQueues(simulation, drawn, wanted.jobs_per_node, list(sizes))


def settings_of(spec: StressSpec, fleet: GeneratedFleet) -> dict[str, Any]:
    """The configuration of a stress run's services."""
    launch = max(
        LAUNCH_SECONDS_MIN, 2 * cold_start_max(spec.fleet_gen.startup, spec.chaos.recovery)
    )
    given = dict(spec.fleet_gen.pool)
    scales = autoscaling_of(spec.fleet_gen) is not None
    if scales and spec.workload is not None:
        given.setdefault("metrics", {"type": METRICS})
    return {
        "fleet": FLEET,
        "providers": {
            name: {"type": PLUGIN} for name in sorted({each.provider for each in fleet.slots})
        },
        "notifier": {"type": NOTIFIER},
        "pools": {
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
        },
    }
