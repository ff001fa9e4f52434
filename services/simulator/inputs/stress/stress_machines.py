"""The machines of a stress run: those of any simulation, thousands of them, each in its place.

Hardware, failures and agents come from `services.simulator.engine.agent_machines`. Here
is what a fleet of thousands needs besides: the plan says where each is and how long it boots,
connections take no time, and beats and samples of all agents run off one timer, because a task for
each would be half of the whole work.
"""

import asyncio
import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

import msgspec

from schemas import headers as h
from schemas import subjects
from schemas.messages import encode
from schemas.node_events import GpuSample, Telemetry
from schemas.node_records import HeartbeatRecord, node_key
from schemas.settings import AgentSettings
from schemas.topology import HEARTBEATS, TELEMETRY
from services.primitives.errors import Unavailable
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine.agent_machines import COOL_CELSIUS, AgentMachines
from services.simulator.engine.hardware_failures import HardwareFailure, MachineSpec
from services.simulator.engine.scripted_agents import BOOT_SECONDS
from services.simulator.engine.simulated_machine import SimulatedMachine, gpus_of
from services.simulator.engine.simulated_process import SimulatedProcess
from services.simulator.engine.simulation_context import SimulationContext
from services.simulator.inputs.stress import failure_effects
from services.simulator.inputs.stress.failure_schedule import ScheduledFailure
from services.simulator.inputs.stress.stress_fleet import (
    GeneratedFleet,
    Slot,
    replacement_cold_start,
)
from services.simulator.inputs.stress.stress_format import StressSpec

TICK_SECONDS: Final = 1.0
"""Agents speak at most so often, and at whole multiples of it."""
UTILIZATION_PERCENT: Final = 70
SAMPLES_KEPT: Final = 1
"""Of each node: no service reads older ones, and all would be half of the memory."""


@dataclass(slots=True)
class _AgentMessages:
    """What an agent says again and again, but for the moment of it."""

    beat_subject: str
    sample_subject: str
    gpus: msgspec.Raw
    hot: dict[int, int]
    """The hot GPUs that `gpus` reports."""
    used: int
    """The utilization that `gpus` reports, in percent."""


class InstantProcess(SimulatedProcess):
    """An agent whose connection takes no time, and is cut or perfect."""

    async def there(self, call: str, about: str) -> None:
        """Arrive at once."""
        del call
        self._alive()
        if not self.up:
            raise Unavailable(f"{about}: the connection was lost")

    async def back(self, call: str, about: str) -> None:
        """Nothing is in the way."""


class TurnBuckets:
    """Whose turn it is: each machine once in an interval, spread evenly over it."""

    def __init__(self, seconds: float) -> None:
        """Come round in `seconds`."""
        self._ticks = max(round(seconds / TICK_SECONDS), 1)
        self._buckets: list[dict[str, SimulatedMachine]] = [{} for _ in range(self._ticks)]
        self._joined = 0

    def join(self, machine: SimulatedMachine) -> None:
        """Take part."""
        self._joined += 1
        self._buckets[self._joined % self._ticks][machine.name] = machine

    def leave(self, machine: SimulatedMachine) -> None:
        """Take part no more."""
        for bucket in self._buckets:
            if bucket.pop(machine.name, None) is not None:
                return

    def at(self, tick: int) -> Sequence[SimulatedMachine]:
        """Those whose turn it is."""
        return list(self._buckets[tick % self._ticks].values())


class SlotMachines(AgentMachines):
    """Every machine of the run, in the slots of a fleet."""

    def __init__(
        self,
        simulation: SimulationContext,
        spec: StressSpec,
        fleet: GeneratedFleet,
        agent: AgentSettings,
        remedies: Mapping[int, str],
    ) -> None:
        """Stand in the slots of `fleet`; speak as often as `agent` says.

        `remedies`: XID -> the gentlest remedy that helps against it.
        """
        super().__init__(simulation, self._as_planned)
        self._remedies = remedies
        self._spec = spec
        self._fleet = fleet
        self._starts: Random = simulation.chance("machines")
        self._free = {pool: list(fleet.of_pool(pool)) for pool in fleet.pools}
        for each in self._free.values():
            heapq.heapify(each)
        self._first = set(range(len(fleet.slots)))
        """Slots that no machine has stood in."""
        self._placed: dict[str, Slot] = {}
        """Instance name -> its slot, from the launch on."""
        self._over: dict[str, list[SimulatedMachine]] = {}
        """Machines without a slot: they came before the one that they replace left."""
        self.at: dict[int, SimulatedMachine] = {}
        """Slot -> its machine."""
        self.booting = self._cold_start
        self._beats = TurnBuckets(agent.heartbeat_interval)
        self._samples = TurnBuckets(agent.telemetry_interval)
        self._beat_headers = {h.TTL: f"{agent.heartbeat_ttl:.0f}s"}
        self._agent_messages: dict[str, _AgentMessages] = {}
        """Node -> what its agent says."""
        self.used: Callable[[str], int] = lambda _: UTILIZATION_PERCENT
        """How much a node's GPUs are used, in percent."""
        self._tick = 0

    # --- coming and going ---------------------------------------------------------------------

    def _slot_of(self, instance: Instance) -> Slot:
        """The slot of a machine; one of a pool without a free slot shares another's."""
        known = self._placed.get(instance.name)
        if known is None:
            free = self._free[instance.pool]
            number = heapq.heappop(free) if free else self._fleet.of_pool(instance.pool)[0]
            known = self._placed[instance.name] = self._fleet.slots[number]
        return known

    def _as_planned(self, instance: Instance) -> MachineSpec:
        slot, template = self._slot_of(instance), self._fleet.pools[instance.pool]
        spec = MachineSpec(
            region=slot.region,
            zone=slot.zone,
            rack=slot.rack,
            instance_type=instance.instance_type,
            gpu_count=template.gpu_count,
        )
        gpu_type = template.gpu_type
        return replace(spec, gpu_type=gpu_type) if gpu_type else spec

    def _cold_start(self, instance: Instance) -> float:
        """How long a machine takes until its agent speaks."""
        slot = self._placed[instance.name]
        if self.nodes[instance.provider_id].boots > 1:
            return self._starts.uniform(*BOOT_SECONDS)
        if slot.number in self._first:
            self._first.discard(slot.number)
            return slot.cold_start_seconds
        startup, recovery = self._spec.fleet_gen.startup, self._spec.chaos.recovery
        return replacement_cold_start(startup, recovery, self._starts)

    def appear(self, instance: Instance) -> None:
        """A machine was made: it boots."""
        super().appear(instance)
        machine, number = self.nodes[instance.provider_id], self._placed[instance.name].number
        if number in self.at:
            self._over.setdefault(instance.pool, []).append(machine)
        else:
            self.at[number] = machine

    def vanish(self, instance: Instance) -> None:
        """A machine is ended: its agent says nothing more, and its slot is free."""
        machine = self.nodes.get(instance.provider_id)
        super().vanish(instance)
        if machine is None:
            return
        self._silence(machine)
        slot = self._placed.pop(machine.name)
        over = self._over.get(instance.pool, [])
        if machine in over:
            over.remove(machine)
        elif self.at.get(slot.number) is machine:
            if over:
                successor = over.pop(0)
                self._placed[successor.name] = slot
                self.at[slot.number] = successor
            else:
                del self.at[slot.number]
                heapq.heappush(self._free[instance.pool], slot.number)

    def restart(self, machine: SimulatedMachine) -> None:
        """Boot a machine; until its agent is up it is silent."""
        self._silence(machine)
        super().restart(machine)

    def _silence(self, machine: SimulatedMachine) -> None:
        self._beats.leave(machine)
        self._samples.leave(machine)
        self._agent_messages.pop(machine.name, None)

    def _process(self, name: str) -> SimulatedProcess:
        return InstantProcess(self._simulation, name)

    # --- what agents say ----------------------------------------------------------------------

    def _begin_to_beat(self, node: SimulatedMachine) -> None:
        pool, name = node.instance.pool, node.name
        self._agent_messages[name] = _AgentMessages(
            f"$KV.{HEARTBEATS.name}.{node_key(pool, name)}",
            subjects.telemetry(pool, name),
            _read(node, used := self.used(name)),
            dict(node.hot),
            used,
        )
        self._beats.join(node)
        self._samples.join(node)
        self._beat(node)

    def _sample_from_now(self, machine: SimulatedMachine) -> None:
        """It samples from its boot on; what has changed shows when its turn comes."""

    def speak_for_ever(self) -> None:
        """Beat and sample for every machine whose turn it is, once a second."""
        self._tick += 1
        for machine in self._beats.at(self._tick):
            self._beat(machine)
        for machine in self._samples.at(self._tick):
            self._publish_sample(machine)
        asyncio.get_running_loop().call_later(TICK_SECONDS, self.speak_for_ever)

    def _beat(self, machine: SimulatedMachine) -> None:
        if not machine.process.up:
            return
        beat = HeartbeatRecord(instance=machine.name, **self._about(machine))
        subject = self._agent_messages[machine.name].beat_subject
        self._simulation.server.publish(subject, encode(beat), self._beat_headers)
        machine.last_heartbeat_at = self._simulation.now()

    def _publish_sample(self, machine: SimulatedMachine) -> None:
        if not machine.ready or not machine.process.up:
            return
        voice, used = self._agent_messages[machine.name], self.used(machine.name)
        if (voice.hot, voice.used) != (machine.hot, used):
            voice.gpus, voice.hot, voice.used = _read(machine, used), dict(machine.hot), used
        machine.sequence += 1
        gpus: Any = voice.gpus
        sample = Telemetry(
            id=f"{machine.boot_id}.{machine.sequence}",
            gpus=gpus,
            sequence=machine.sequence,
            **self._about(machine),
        )
        server, subject = self._simulation.server, voice.sample_subject
        server.publish(subject, encode(sample), {})
        server.state.purge(TELEMETRY.name, subject, keep=SAMPLES_KEPT, before=0)

    # --- failures -----------------------------------------------------------------------------

    def target_of(self, scheduled: ScheduledFailure) -> SimulatedMachine | None:
        """The machine that a failure hits; None where the slot has none that can fail."""
        machine = self.at.get(scheduled.slot)
        if machine is None or not machine.ready or machine.process.dead:
            return None
        return None if any(each.lasting for each in machine.failures.values()) else machine

    def failure_of(self, scheduled: ScheduledFailure, gpu: int) -> HardwareFailure:
        """A scheduled failure, as it shows on a machine."""
        now = self._simulation.clock.now()
        at = self._simulation.now()
        return failure_effects.on_machine(scheduled, gpu, at, now, self._remedies)

    def end_failure(self, machine: SimulatedMachine, scheduled: ScheduledFailure) -> bool:
        """End a failure; False where the machine, or the failure, is gone by then."""
        found = [each for each in machine.failures.values() if each.number == scheduled.number]
        if not found or self.nodes.get(machine.instance.provider_id) is not machine:
            return False
        self.recover(machine, found[0].name)
        return True


def _read(machine: SimulatedMachine, used: int) -> msgspec.Raw:
    """What a machine's GPUs show, encoded: it is nearly always the same as before."""
    gpus = [
        GpuSample(
            index=gpu.index,
            uuid=gpu.uuid,
            utilization_percent=used,
            temperature_celsius=machine.hot.get(gpu.index, COOL_CELSIUS),
        )
        for gpu in gpus_of(machine)
    ]
    return msgspec.Raw(msgspec.json.encode(gpus))
