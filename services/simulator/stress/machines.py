"""The machines of a stress run: the clouds that make them, and the agents that speak for them.

Thousands of agents share one connection and one timer: a beat is stored without a task of its own.
Healthy machines send no samples; what levels would show is told as the fact that an agent tells.
"""

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import msgspec

from schemas import headers as h
from schemas import subjects
from schemas.messages import encode
from schemas.node_events import FACTS, BootChecked, GpuIdentity, NodeEvent, Registered
from schemas.records import HeartbeatRecord, node_key
from schemas.settings import AgentSettings
from schemas.topology import HEARTBEATS
from services.provisioner.provider import Instance, ProvisionRequest
from services.simulator.cloud import Cloud
from services.simulator.stress import faults
from services.simulator.stress.failures import Failure
from services.simulator.stress.fleet import Fleet, Slot, replacement_cold_start
from services.simulator.stress.format import StressSpec
from services.simulator.world import World

TICK_SECONDS: Final = 1.0
CHECK_SECONDS_MAX: Final = 2.0
PROBE_SECONDS: Final = 60.0
"""How often an agent tells that the backend still does not answer."""
PROBES_MAX: Final = 10
AGENT: Final = AgentSettings()
BEAT_TICKS: Final = round(AGENT.heartbeat_interval / TICK_SECONDS)


@dataclass(slots=True)
class Machine:
    """One machine, what its agent does, and what is true of it."""

    instance: Instance
    slot: Slot
    gpus: int
    up: bool = False
    """Its boot check has passed."""
    broken: bool = False
    """Something of it has failed for good."""
    silent: int = 0
    """So many failures keep its agent from speaking."""
    gone: bool = False
    facts: int = 0
    spool: list[NodeEvent] = field(default_factory=list)
    ongoing: dict[int, Failure] = field(default_factory=dict)
    beat_headers: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its node's name."""
        return self.instance.name


class PlacedCloud(Cloud):
    """A provider whose machines stand where the plan says."""

    place: Callable[[ProvisionRequest], Slot]

    def make(self, request: ProvisionRequest) -> Instance:
        """Make a machine in the next free slot of its pool."""
        slot = self.place(request)
        return Cloud.make(
            self, msgspec.structs.replace(request, region=slot.region, zone=slot.zone)
        )


class Machines:
    """Every machine of the run."""

    def __init__(self, world: World, spec: StressSpec, fleet: Fleet) -> None:
        """Stand in the slots of `fleet`."""
        self._world = world
        self._spec = spec
        self._fleet = fleet
        self._chance: Random = world.chance("machines")
        self._free = {pool: list(fleet.of_pool(pool)) for pool in fleet.pools}
        for each in self._free.values():
            heapq.heapify(each)
        self._first = set(range(len(fleet.slots)))
        """Slots that no machine has stood in."""
        self._placed: dict[str, Slot] = {}
        """Instance name -> its slot, from the launch on."""
        self._over: dict[str, list[Machine]] = {}
        """Machines that stand beside the plan: they came before the one that they replace left."""
        self.of: dict[str, Machine] = {}
        """Provider id -> machine."""
        self.at: dict[int, Machine] = {}
        """Slot -> the machine that stands there."""
        self.named: dict[str, Machine] = {}
        self._beats: list[dict[str, Machine]] = [{} for _ in range(BEAT_TICKS)]
        self._tick = 0

    # --- coming and going ---------------------------------------------------------------------

    def place(self, request: ProvisionRequest) -> Slot:
        """Where a machine is to stand; a pool without a free slot has it beside the others."""
        known = self._placed.get(request.name)
        if known is None:
            free = self._free[request.pool]
            number = heapq.heappop(free) if free else self._fleet.of_pool(request.pool)[0]
            known = self._placed[request.name] = self._fleet.slots[number]
        return known

    def appear(self, instance: Instance) -> None:
        """A machine was made: it boots."""
        slot = self._placed[instance.name]
        template = self._fleet.pools[instance.pool]
        machine = Machine(instance, slot, template.gpu_count)
        machine.beat_headers = {h.TTL: f"{AGENT.heartbeat_ttl:.0f}s"}
        self.of[instance.provider_id] = self.named[instance.name] = machine
        if slot.number in self.at:
            self._over.setdefault(instance.pool, []).append(machine)
        else:
            self.at[slot.number] = machine
        fleet_gen = self._spec.fleet_gen
        if slot.number in self._first:
            self._first.discard(slot.number)
            seconds = slot.cold_start_seconds
        else:
            recovery = self._spec.chaos.recovery
            seconds = replacement_cold_start(fleet_gen.startup, recovery, self._chance)
        self._later(seconds, self._boot, machine)

    def vanish(self, instance: Instance) -> None:
        """A machine is ended: its agent says nothing more, and its slot is free."""
        machine = self.of.pop(instance.provider_id, None)
        if machine is None:
            return
        machine.gone, machine.up = True, False
        self.named.pop(machine.name, None)
        self._placed.pop(machine.name, None)
        for bucket in self._beats:
            bucket.pop(machine.name, None)
        over = self._over.get(instance.pool, [])
        if machine in over:
            over.remove(machine)
        elif self.at.get(machine.slot.number) is machine:
            if over:
                heir = over.pop(0)
                heir.slot = machine.slot
                self.at[machine.slot.number] = heir
            else:
                del self.at[machine.slot.number]
                heapq.heappush(self._free[instance.pool], machine.slot.number)

    def _later(self, seconds: float, what: Callable[..., Any], *args: Any) -> None:
        asyncio.get_running_loop().call_later(seconds, what, *args)

    def _boot(self, machine: Machine) -> None:
        if machine.gone:
            return
        boot_id = f"{machine.instance.provider_id}-boot"
        gpus = tuple(
            GpuIdentity(index=index, uuid=f"GPU-{machine.name}-{index}")
            for index in range(machine.gpus)
        )
        registered = Registered(
            id=f"{boot_id}.registered",
            instance=machine.name,
            boot_id=boot_id,
            gpus=gpus,
            rack=machine.slot.rack,
            **self._about(machine),
        )
        self._say(machine, registered)
        self._beats[(self._tick + machine.slot.number) % BEAT_TICKS][machine.name] = machine
        self._beat(machine)
        self._later(self._chance.random() * CHECK_SECONDS_MAX, self._checked, machine, boot_id)

    def _checked(self, machine: Machine, boot_id: str) -> None:
        if machine.gone:
            return
        machine.up = True
        about = self._about(machine)
        checked = BootChecked(id=f"{boot_id}.boot-checked", ok=True, boot_id=boot_id, **about)
        self._say(machine, checked)

    # --- what agents say ----------------------------------------------------------------------

    def beat_for_ever(self) -> None:
        """Beat for every machine whose turn it is, once a second."""
        bucket = self._beats[self._tick % BEAT_TICKS]
        self._tick += 1
        for machine in list(bucket.values()):
            self._beat(machine)
        self._later(TICK_SECONDS, self.beat_for_ever)

    def _beat(self, machine: Machine) -> None:
        if machine.silent:
            return
        beat = HeartbeatRecord(instance=machine.name, **self._about(machine))
        key = node_key(machine.instance.pool, machine.name)
        subject = f"$KV.{HEARTBEATS.name}.{key}"
        self._world.server.publish(subject, encode(beat), machine.beat_headers)

    def _about(self, machine: Machine) -> dict[str, Any]:
        now = self._world.clock.now()
        return {"time": now, "pool": machine.instance.pool, "node": machine.name}

    def _say(self, machine: Machine, event: NodeEvent) -> None:
        if machine.silent:
            machine.spool.append(event)
            return
        subject = subjects.node_event(event.pool, event.node, FACTS[type(event)])
        self._world.server.publish(subject, encode(event), {h.MSG_ID: event.id})

    # --- what happens to them -----------------------------------------------------------------

    def strike(self, failure: Failure, gpu: int) -> Machine | None:
        """Have a failure; None where nothing stands there that could fail."""
        machine = self.at.get(failure.slot)
        if machine is None or not machine.up or machine.broken:
            return None
        machine.ongoing[failure.number] = failure
        machine.broken = failure.fatal
        if failure.type == "network":
            machine.silent += 1
        else:
            self._tell(machine, failure, gpu % machine.gpus, 1)
        return machine

    def _tell(self, machine: Machine, failure: Failure, gpu: int, times: int) -> None:
        if machine.gone or failure.number not in machine.ongoing:
            return
        machine.facts += 1
        about = self._about(machine) | {
            "id": f"{machine.instance.provider_id}.fact.{machine.facts}",
            "boot_id": f"{machine.instance.provider_id}-boot",
            "sequence": machine.facts,
        }
        fault = faults.told(failure.type, failure.xid, gpu, machine.gpus, about=about)
        if fault is not None:
            self._say(machine, fault)
        if failure.type == "backend_error" and times < PROBES_MAX:
            self._later(PROBE_SECONDS, self._tell, machine, failure, gpu, times + 1)

    def pass_by(self, machine: Machine, failure: Failure, gpu: int) -> bool:
        """Have a failure pass; False where the machine is gone by then."""
        if machine.gone or machine.ongoing.pop(failure.number, None) is None:
            return False
        if failure.type == "network":
            machine.silent -= 1
            if not machine.silent:
                self._beat(machine)
                spool, machine.spool = machine.spool, []
                for event in spool:
                    self._say(machine, event)
        machine.facts += 1
        about = self._about(machine) | {
            "id": f"{machine.instance.provider_id}.fact.{machine.facts}",
            "boot_id": f"{machine.instance.provider_id}-boot",
            "sequence": machine.facts,
        }
        over = faults.told_of_end(failure.type, gpu % machine.gpus, about=about)
        if over is not None:
            self._say(machine, over)
        return True
