"""Runs one seed: a simulated fleet, the steps of its campaign, and its return to rest."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from schemas.node_records import node_key
from schemas.operations import RESUME, STOP
from schemas.stops import ResumeRequest, StopRequest
from services.pool_manager.autoscaling.metrics_sources import Load
from services.pool_manager.planner.announced_restarts import RETURN_SECONDS_MAX
from services.settings.settings_file import parse_settings
from services.simulator.engine import virtual_time
from services.simulator.engine.agent_machines import GPUS
from services.simulator.engine.fault_kinds import ALL, FAULTS_OF, HALF, JOB, RACK, InjectedFault
from services.simulator.engine.fleet_settings import (
    FAST_HEARTBEATS,
    GANG_NOTIFIER,
    METRICS,
    NOTIFIER,
    fleet_settings,
)
from services.simulator.engine.hardware_failures import MachineSpec
from services.simulator.engine.invariants import ViolationError
from services.simulator.engine.simulated_fleet import FleetSetup, SimulatedFleet
from services.simulator.engine.simulated_gangs import SimulatedGangs
from services.simulator.engine.simulated_group import GroupSpec, SimulatedGroup
from services.simulator.engine.simulated_machine import SimulatedMachine
from services.simulator.engine.simulation_context import SimulationContext
from services.simulator.inputs.fuzz.campaign_steps import (
    ZONES,
    Campaign,
    CampaignStep,
    FleetShape,
    OperatorAction,
)

POOL: Final = "training"
PROVIDER: Final = "cloud"
REASON: Final = "simulated"
ALWAYS_SERVICE: Final = {
    "name": "always",
    "kind": "service",
    "start": "* * * * *",
    "duration": "10m",
}
"""What is degraded may be repaired at any time."""
BEGIN_SECONDS_MAX: Final = 300.0
BEGIN_SECONDS: Final = 10.0
"""Until a request about the size is carried out."""
REST_SECONDS_MAX: Final = RETURN_SECONDS_MAX + 600.0
"""Without further faults, a fleet must be at rest after this: a machine that does not come back
from an announced restart is replaced only once its time is over."""
STEADY_SECONDS: Final = 20.0
"""A fleet is at rest when it stays so for this long."""
LOOK_SECONDS: Final = 2.0
DRAIN_SECONDS: Final = 30
GANG_DRAIN_SECONDS: Final = 90
LAUNCH_SECONDS: Final = 90
FALLBACK_SECONDS: Final = 10
LOOK_AT_PRICES_SECONDS: Final = 330.0
"""Within so long prices are compared."""
TYPE: Final = {"gpus": GPUS, "dollars_per_hour": 30, "spot_dollars_per_hour": 12}
FLAPPING_SECONDS: Final = 300
"""A quarantine for flapping ends well before a campaign does."""
WINDOW_SECONDS: Final = 300
GATHER_SECONDS: Final = 40
RACK_WINDOW_SECONDS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """Holds the result of a seed."""

    seed: str
    digest: str
    events: int
    seconds: float
    """Virtual."""
    violation: str = ""
    tail: tuple[str, ...] = ()
    made: int = 0
    """Machines made."""
    restarts: int = 0
    """How often a service crashed or ended by itself."""


def simulate(seed: str, campaign: Campaign) -> SeedResult:
    """Run a campaign; the same seed and campaign have the same result, to the byte."""
    return virtual_time.run(lambda: FuzzSimulation(seed, campaign).run())


class FuzzSimulation:
    """Runs a campaign once. Used inside a virtual loop."""

    def __init__(self, seed: str, campaign: Campaign) -> None:
        self._seed = seed
        self._campaign = campaign
        shape, simulation = campaign.shape, SimulationContext(seed)
        self.fleet = SimulatedFleet(
            simulation,
            FleetSetup(
                settings=parse_settings("(fuzz)", json.dumps(settings_of(shape)), {}),
                spec_of=lambda _: MachineSpec(gpu_count=GPUS),
                replicas=shape.replicas,
                idempotent=shape.idempotent,
                list_lag_seconds=shape.list_lag_seconds,
                reboots=shape.reboots,
                restarts_cold=shape.restarts_cold,
                skew_seconds=shape.skew_seconds,
                group=group_of(shape),
            ),
            workload=SimulatedGangs(simulation) if shape.gangs else None,
        )
        self._simulation = self.fleet.simulation
        self._invariants = self.fleet.invariants
        self._chance = self._simulation.chance("targets of the campaign")
        self._timers: set[asyncio.TimerHandle] = set()
        self._labels = 0
        """How often the pool's labels were changed."""

    async def run(self) -> SeedResult:
        """Run the campaign, until the fleet is at rest or an invariant is violated."""
        violation = await self.fleet.run(self._steps())
        history = self._simulation.history
        return SeedResult(
            seed=self._seed,
            digest=history.digest,
            events=history.events,
            seconds=self._simulation.now(),
            violation=violation.text if violation else "",
            tail=violation.history if violation else (),
            made=self.fleet.cloud.made,
            restarts=sum(each.starts - 1 for each in self.fleet.services),
        )

    async def _steps(self) -> None:
        await self.fleet.open()
        if self._campaign.shape.idle_after_seconds or self._campaign.shape.queue:
            # Agents say that no GPU is in use: only the workload system knows of jobs.
            self.fleet.machines.loads[POOL] = 0.0
        await self.fleet.start()
        if self._campaign.shape.together or self._campaign.shape.idle_after_seconds:
            self._publish("scale", nodes=self._campaign.shape.nodes)
            await asyncio.sleep(BEGIN_SECONDS)
        await self._rest(BEGIN_SECONDS_MAX, steady_seconds=0)
        began = self._simulation.now()
        for step in self._campaign.steps:
            await self._until(began + step.at)
            self._simulation.note(f"campaign: {step}")
            if isinstance(step.action, OperatorAction):
                self._request(step.action)
            else:
                self._inject(step.action, step)
        await self._until(began + self._campaign.seconds)
        self.fleet.faults.end_all()
        self._publish("breaker-close", reason=REASON)
        if self._campaign.shape.consolidates:
            await asyncio.sleep(LOOK_AT_PRICES_SECONDS)
        await self._rest(REST_SECONDS_MAX, steady_seconds=STEADY_SECONDS)

    async def _until(self, at: float) -> None:
        if (left := at - self._simulation.now()) > 0:
            await asyncio.sleep(left)

    async def _rest(self, seconds_max: float, *, steady_seconds: float) -> None:
        until, since = self._simulation.now() + seconds_max, None
        while True:
            self._clear_up()
            self.fleet.replay()
            unfinished = self.fleet.at_rest.unfinished(POOL)
            if self.fleet.group is not None:
                unfinished += self.fleet.group.unfinished()
            if self.fleet.gangs is not None:
                unfinished += self.fleet.gangs.unfinished()
            unfinished += self.fleet.demand.unfinished(POOL)
            now = self._simulation.now()
            if unfinished:
                since = None
            elif since is None:
                since = now
            if since is not None and now - since >= steady_seconds:
                return
            if now > until:
                raise ViolationError(
                    f"not at rest {seconds_max:.0f} s after the last fault: {'; '.join(unfinished)}"
                )
            await asyncio.sleep(LOOK_SECONDS)

    def _clear_up(self) -> None:
        """Act as operators do: decide on waves and lost faults, lift cordons, retry, ask again."""
        pool = self.fleet.records.pool(POOL)
        # "operator": a request to open it that was set aside may be replayed after the last step.
        asks = pool is not None and pool.breaker.cause in ("wave", "restored", "operator")
        if pool is not None and pool.breaker.cause == "restored" and not self._invariants.restored:
            raise ViolationError(f"no backup was restored: {pool.breaker.reason}")
        if pool is not None and asks and pool.breaker.state == "open":
            self._publish("breaker-close", reason=REASON)
        if self.fleet.stops.in_force:
            self.fleet.order(RESUME, ResumeRequest())
        nodes = self.fleet.at_rest.waits_for_operator(POOL)
        if nodes is not None:
            self._publish("scale", nodes=nodes)
        at_rest = self.fleet.at_rest
        for name in (*at_rest.unjudged(), *at_rest.spot_to_exchange(POOL)):
            self._publish("replace", node=name)
        for saga in self.fleet.operators.stuck():
            self._publish("retry", saga=saga)
        self.fleet.resolve(self.fleet.at_rest.orphans(), self.fleet.operators.held())
        for name in self.fleet.at_rest.cordoned_elsewhere():
            self._publish("cordon", node=name, reason=REASON)
            self._invariants.left_cordoned[name] = None
        for name in self.fleet.at_rest.working_spares():
            self.fleet.workload.cordon(name, REASON)
        left = sorted(self.fleet.at_rest.cordoned() & self._invariants.left_cordoned.keys())
        for name in (*left, *self.fleet.at_rest.gpus_cordoned_elsewhere()):
            self._publish("uncordon", node=name)
        if self.fleet.group is not None:
            self._clear_up_group(self.fleet.group)

    def _clear_up_group(self, group: SimulatedGroup) -> None:
        """Act as the owner of the machines: remove those that Navarch only reports."""
        observes = self._campaign.shape.adopted == "observe"
        for machine in list(self.fleet.machines.nodes.values()):
            record = self.fleet.records.node(node_key(POOL, machine.name))
            if record is not None and record.boot_id != machine.boot_id:
                record = None  # of an earlier machine, or boot
            never_booted = machine.powered_off and not machine.ready
            unfit = record is not None and record.boot_checked is False
            reported = record is not None and (record.lost or record.health == "unhealthy")
            left = never_booted or unfit or self._stopped_before_adoption(machine)
            if left or (observes and (machine.broken or reported)):
                group.remove(machine.name)

    def _stopped_before_adoption(self, machine: SimulatedMachine) -> bool:
        """Navarch does not adopt what its provider lists as stopped: it may be kept so."""
        provider_id = machine.instance.provider_id
        known = self.fleet.records.instance(node_key(POOL, machine.name))
        adopted = known is not None and known.provider_id == provider_id
        return self.fleet.cloud.machines[provider_id].stopped and not adopted

    # --- faults and requests ----------------------------------------------------------------------

    def _some_machine(self) -> SimulatedMachine | None:
        serving = self.fleet.machines.serving()
        return self._chance.choice(serving) if serving else None

    def _nodes_of_job(self, count: int) -> list[str]:
        """So many nodes of a job that has several."""
        workload = self.fleet.workload
        assert isinstance(workload, SimulatedGangs)
        jobs = [each for each in workload.running() if each.size > 1]
        return list(self._chance.choice(jobs).nodes)[:count] if jobs else []

    def _nodes_of_rack(self, count: int) -> list[str]:
        machine = self._some_machine()
        rack = machine.kind.rack if machine is not None else ""
        return [each.name for each in self.fleet.machines.serving() if each.kind.rack == rack][
            :count
        ]

    def _inject(self, fault: InjectedFault, step: CampaignStep) -> None:
        if fault.target in (JOB, RACK):
            some = self._nodes_of_job if fault.target == JOB else self._nodes_of_rack
            for name in some(fault.count):
                self.fleet.faults.inject(replace(fault, target=name, count=1))
        elif fault.target in (ALL, HALF, *FAULTS_OF):
            self.fleet.faults.inject(fault)
        elif (machine := self._some_machine()) is not None:
            self.fleet.faults.inject(replace(fault, target=machine.name))
            lasts = fault.seconds or 0.0
            if step.withdrawal:
                self._in(lasts / 2, partial(self._withdraw, machine, fault.kind))
            if step.withdrawal == "withdrawn-broken":
                broken = InjectedFault(
                    kind="xid_error", target=machine.name, xid_code=fault.xid_code
                )
                self._in(lasts / 4, partial(self._fail_if_up, machine, broken))

    def _in(self, seconds: float, action: Callable[[], Any]) -> None:
        self._timers.add(asyncio.get_running_loop().call_later(seconds, action))

    def _withdraw(self, machine: SimulatedMachine, kind: str) -> None:
        if not machine.process.dead:
            self.fleet.faults.recover(machine.name, kind)

    def _fail_if_up(self, machine: SimulatedMachine, fault: InjectedFault) -> None:
        if machine.instance in self.fleet.cloud.instances() and not machine.process.dead:
            self.fleet.faults.inject(fault)

    def _publish(self, verb: str, **body: Any) -> None:
        self.fleet.request(POOL, verb, body)

    def _request(self, action: OperatorAction) -> None:
        match action.verb:
            case "scale":
                self._publish("scale", nodes=action.nodes)
            case "cancel":
                if self._invariants.sagas.open:
                    self._publish(
                        "cancel", saga=self._chance.choice(list(self._invariants.sagas.open))
                    )
            case "resize-group":
                assert self.fleet.group is not None
                self.fleet.group.resize(action.nodes)
            case "relabel":
                self._relabel()
            case "queue":
                self.fleet.workload.loads[POOL] = Load(pending_jobs=action.nodes)
            case "stop" | "stop-running":
                self._stop(action)
            case "breaker":
                self._publish("breaker-open", reason=REASON)
                self._in(action.seconds, partial(self._publish, "breaker-close", reason=REASON))
            case _:
                if (machine := self._some_machine()) is not None:
                    self._request_about(action, machine.name)

    def _stop(self, action: OperatorAction) -> None:
        running = action.verb == "stop-running"
        self.fleet.order(STOP, StopRequest(reason=REASON, running=running))
        self._in(action.seconds, partial(self.fleet.order, RESUME, ResumeRequest()))

    def _relabel(self) -> None:
        """Change the pool's labels in the configuration, and restart every service with it."""
        self._labels += 1
        raw = settings_of(self._campaign.shape)
        raw["pools"][POOL]["labels"] = {"configured": str(self._labels)}
        settings = parse_settings("(fuzz)", json.dumps(raw), {})
        for service in self.fleet.services:
            service.reconfigure(settings)

    def _request_about(self, action: OperatorAction, node: str) -> None:
        match action.verb:
            case "hold":
                lasts = {"for": f"{action.seconds:g}s"}
                self._publish("hold", node=node, reason=REASON, **lasts)
            case "cordon":
                self._publish("cordon", node=node, reason=REASON)
                self._in(action.seconds, partial(self._publish, "uncordon", node=node))
            case _:
                self._publish(action.verb, node=node)
        if action.verb in ("drain", "cordon"):
            self._invariants.left_cordoned[node] = None


def group_of(shape: FleetShape) -> GroupSpec | None:
    """Return who makes the machines, where Navarch does not."""
    if not shape.adopted:
        return None
    return GroupSpec(
        pool=POOL, provider=PROVIDER, size=shape.nodes, reuses_names=shape.reuses_names
    )


def settings_of(shape: FleetShape) -> dict[str, Any]:
    """Return the configuration of the fleet."""
    pool: dict[str, Any] = {
        "provider": PROVIDER,
        "instance_type": "simulated",
        "gpu_count": GPUS,
        "min_nodes": shape.nodes,
        "max_nodes": shape.nodes + 3,
        "replace_order": shape.order,
        "budget": {
            "max_unavailable": shape.max_unavailable,
            "max_replacements": shape.max_replacements or "unlimited",
            "max_quarantined": "40%",
            "window": f"{WINDOW_SECONDS}s",
        },
        "health": {
            "lost_after": "30s",
            "incident": {"hold": "60s", "stage": "10s"},
            "flapping": {"window": f"{FLAPPING_SECONDS}s"},
            "remediation": {"type": shape.remediation},
        },
        "spares": shape.spares,
        "drain_timeout": f"{GANG_DRAIN_SECONDS if shape.gangs else DRAIN_SECONDS}s",
        "launch_timeout": f"{LAUNCH_SECONDS}s",
    }
    if shape.cordons_gpus:
        pool["health"]["cordon_scope"] = "gpu"
        pool["windows"] = [ALWAYS_SERVICE]
    if shape.together:
        pool |= {
            "zones": ZONES,
            "placement": {"together": "zone", "required": True},
            "min_nodes": 0,
        }
        pool["placement"]["gather"] = f"{GATHER_SECONDS}s"
    if shape.rack_nodes:
        pool |= {"rack": {"nodes": shape.rack_nodes}, "max_nodes": shape.nodes + shape.rack_nodes}
        pool["health"]["incident"]["window"] = f"{RACK_WINDOW_SECONDS}s"
    if shape.drift:
        pool |= {"drift": "replace", "windows": [ALWAYS_SERVICE]}
    if shape.expire_after_seconds:
        pool["expire_after"] = f"{shape.expire_after_seconds:.0f}s"
    pool |= _market_of(shape)
    if shape.idle_after_seconds:
        pool |= {"min_nodes": 1, "idle_after": f"{shape.idle_after_seconds:.0f}s"}
    if shape.queue:
        pool |= {"autoscaling": {"type": "queue"}, "metrics": METRICS, "cooldown": "10s"}
    if shape.adopted:
        pool |= {"nodes": "adopted", "mode": shape.adopted, "min_nodes": 0}
    notifier = GANG_NOTIFIER if shape.gangs else NOTIFIER
    return fleet_settings(
        *({POOL: pool}, [PROVIDER]),
        agent=FAST_HEARTBEATS,
        budget={"max_replacements": "unlimited"},
        instance_types={"types": {PROVIDER: {"simulated": TYPE}}} if shape.consolidates else {},
        notifier={"type": notifier},
    )


def _market_of(shape: FleetShape) -> dict[str, Any]:
    """Return the part of a pool that is about spot instances."""
    pool: dict[str, Any] = {}
    if shape.consolidates:
        rule = {"min_saving": 20, "min_age": f"{DRAIN_SECONDS + LAUNCH_SECONDS}s"}
        pool |= {"market": "spot", "consolidation": rule, "windows": [ALWAYS_SERVICE]}
        pool["fallback_after"] = f"{FALLBACK_SECONDS}s"
    if shape.interruption_seconds:
        after = f"{shape.interruption_seconds:.0f}s"
        pool |= {"market": "spot", "zones": ZONES, "interruption_penalty": after}
    if shape.on_demand_min:
        pool |= {"market": "spot", "on_demand_min": shape.on_demand_min, "fallback_after": "60s"}
    return pool
