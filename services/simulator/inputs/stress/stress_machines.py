"""The machines of a stress run: thousands of simulated machines, each in its slot.

Hardware, failures and agents come from `services.simulator.engine.agent_machines`. A fleet of
thousands adds: slots that say where a machine is and how long it boots, connections that take no
time, and one timer for the heartbeats and samples of all agents, because a task per agent would be
half of the work.
"""

import asyncio
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

import msgspec

from schemas import headers as h
from schemas import subjects
from schemas.gpu_samples import GpuSample
from schemas.messages import encode
from schemas.node_events import Telemetry
from schemas.node_records import HeartbeatRecord, node_key
from schemas.settings import AgentSettings
from schemas.topology import HEARTBEATS, TELEMETRY
from services.primitives.errors import Unavailable
from services.provisioner.provider_client.provider import Instance
from services.settings.xid_catalogues import XidCatalog
from services.simulator.engine.agent_machines import BOOT_SECONDS, COOL_CELSIUS, AgentMachines
from services.simulator.engine.hardware_failures import HardwareFailure, MachineSpec
from services.simulator.engine.simulated_machine import SimulatedMachine, gpus_of
from services.simulator.engine.simulation_context import SimulatedProcess, SimulationContext
from services.simulator.inputs.stress import failure_effects
from services.simulator.inputs.stress.failure_schedule import ScheduledFailure
from services.simulator.inputs.stress.stress_fleet import (
    GeneratedFleet,
    Slot,
    cold_start,
)
from services.simulator.inputs.stress.stress_format import StressSpec

TICK_SECONDS: Final = 1.0
"""Heartbeats and samples are published at multiples of this."""
UTILIZATION_PERCENT: Final = 70
SAMPLES_KEPT: Final = 1
"""Samples kept per node: no service reads older ones, and all would be half of the memory."""


@dataclass(slots=True)
class _AgentMessages:
    """The constant parts of an agent's messages."""

    beat_subject: str
    sample_subject: str
    gpus: msgspec.Raw
    hot: dict[int, int]
    """The hot GPUs that `gpus` reports."""
    used: int
    """The utilization that `gpus` reports, in percent."""


class InstantProcess(SimulatedProcess):
    """An agent whose connection takes no time, and is either cut or perfect."""

    async def there(self, call: str, about: str) -> None:
        """Arrive at once."""
        del call
        self._alive()
        if not self.up:
            raise Unavailable(f"{about}: the connection was lost")

    async def back(self, call: str, about: str) -> None:
        """Arrive at once."""


class TurnBuckets:
    """Spreads machines evenly over an interval: each has its turn once."""

    def __init__(self, seconds: float) -> None:
        self._ticks = max(round(seconds / TICK_SECONDS), 1)
        self._buckets: list[dict[str, SimulatedMachine]] = [{} for _ in range(self._ticks)]
        self._joined = 0

    def join(self, machine: SimulatedMachine) -> None:
        """Give a machine its turn."""
        self._joined += 1
        self._buckets[self._joined % self._ticks][machine.name] = machine

    def leave(self, machine: SimulatedMachine) -> None:
        """Remove a machine from the turns."""
        for bucket in self._buckets:
            if bucket.pop(machine.name, None) is not None:
                return

    def at(self, tick: int) -> Sequence[SimulatedMachine]:
        """The machines whose turn it is."""
        return list(self._buckets[tick % self._ticks].values())


class SlotMachines(AgentMachines):
    """Runs every machine of the run, in the slots of the fleet."""

    def __init__(
        self,
        simulation: SimulationContext,
        spec: StressSpec,
        fleet: GeneratedFleet,
        agent: AgentSettings,
        catalog: XidCatalog,
    ) -> None:
        """Fill the slots of `fleet`; publish as often as `agent` says."""
        super().__init__(simulation, self._spec_of)
        self._remedies = failure_effects.remedies(
            {each.code: each.action for each in catalog.codes}
        )
        """XID -> the mildest remedy that fixes it."""
        self._spec = spec
        self._fleet = fleet
        self._starts: Random = simulation.chance("machines")
        self._free = {pool: list(fleet.of_pool(pool)) for pool in fleet.pools}
        for each in self._free.values():
            heapq.heapify(each)
        self._first = set(range(len(fleet.slots)))
        """Slots that no machine has filled yet."""
        self._placed: dict[str, Slot] = {}
        """Instance name -> its slot, from the launch on."""
        self.places: dict[str, Slot] = {}
        """The same, gone machines included."""
        self._over: dict[str, list[SimulatedMachine]] = {}
        """Machines without a slot: launched before the ones they replace were gone."""
        self.at: dict[int, SimulatedMachine] = {}
        """Slot -> its machine."""
        self.booting = self._cold_start
        self._beats = TurnBuckets(agent.heartbeat_interval)
        self._samples = TurnBuckets(agent.telemetry_interval)
        self._beat_headers = {h.TTL: f"{agent.heartbeat_ttl:.0f}s"}
        self._agent_messages: dict[str, _AgentMessages] = {}
        """Node -> its agent's messages."""
        self.used: Callable[[str], int] = lambda _: UTILIZATION_PERCENT
        """Utilization of a node's GPUs, in percent."""
        self._tick = 0

    # --- launch and removal -----------------------------------------------------------------------

    def _slot_of(self, instance: Instance) -> Slot:
        """The slot of a machine; if its pool has no free slot, it shares one."""
        known = self._placed.get(instance.name)
        if known is None:
            free = self._free[instance.pool]
            number = heapq.heappop(free) if free else self._fleet.of_pool(instance.pool)[0]
            known = self._placed[instance.name] = self._fleet.slots[number]
        self.places[instance.name] = known
        return known

    def _spec_of(self, instance: Instance) -> MachineSpec:
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
        drawn = cold_start(self._spec.fleet_gen.startup, self._starts)
        given = self._spec.chaos.recovery.replace_cold_start
        return drawn if given is None else float(given)

    def appear(self, instance: Instance) -> None:
        """A machine was made: it boots."""
        super().appear(instance)
        machine, number = self.nodes[instance.provider_id], self._placed[instance.name].number
        if number in self.at:
            self._over.setdefault(instance.pool, []).append(machine)
        else:
            self.at[number] = machine

    def vanish(self, instance: Instance) -> None:
        """A machine is gone: its slot is free."""
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
                self._placed[successor.name] = self.places[successor.name] = slot
                self.at[slot.number] = successor
            else:
                del self.at[slot.number]
                heapq.heappush(self._free[instance.pool], slot.number)

    def restart(self, machine: SimulatedMachine) -> None:
        """Boot a machine; it is silent until its agent is up."""
        self._silence(machine)
        super().restart(machine)

    def _silence(self, machine: SimulatedMachine) -> None:
        self._beats.leave(machine)
        self._samples.leave(machine)
        self._agent_messages.pop(machine.name, None)

    def _process(self, name: str) -> SimulatedProcess:
        return InstantProcess(self._simulation, name)

    # --- heartbeats and samples -------------------------------------------------------------------

    def _begin_to_beat(self, node: SimulatedMachine) -> None:
        pool, name = node.instance.pool, node.name
        self._agent_messages[name] = _AgentMessages(
            f"$KV.{HEARTBEATS.name}.{node_key(pool, name)}",
            subjects.telemetry(pool, name),
            _encode_readings(node, used := self.used(name)),
            dict(node.hot),
            used,
        )
        self._beats.join(node)
        self._samples.join(node)
        self._beat(node)

    def _sample_from_now(self, machine: SimulatedMachine) -> None:
        """Do nothing: machines sample from boot on, and changes show at the next turn."""

    def publish_for_ever(self) -> None:
        """Publish the heartbeats and samples that are due, once a second."""
        self._tick += 1
        for machine in self._beats.at(self._tick):
            self._beat(machine)
        for machine in self._samples.at(self._tick):
            self._publish_sample(machine)
        asyncio.get_running_loop().call_later(TICK_SECONDS, self.publish_for_ever)

    def _beat(self, machine: SimulatedMachine) -> None:
        if not machine.process.up:
            return
        beat = HeartbeatRecord(instance=machine.name, **self._about(machine))
        subject = self._agent_messages[machine.name].beat_subject
        self._simulation.server.publish(subject, encode(beat), self._beat_headers)

    def _publish_sample(self, machine: SimulatedMachine) -> None:
        if not machine.ready or not machine.process.up:
            return
        messages, used = self._agent_messages[machine.name], self.used(machine.name)
        if (messages.hot, messages.used) != (machine.hot, used):
            messages.gpus, messages.hot, messages.used = (
                _encode_readings(machine, used),
                dict(machine.hot),
                used,
            )
        machine.sequence += 1
        gpus: Any = messages.gpus
        sample = Telemetry(
            id=f"{machine.boot_id}.{machine.sequence}",
            gpus=gpus,
            sequence=machine.sequence,
            **self._about(machine),
        )
        server, subject = self._simulation.server, messages.sample_subject
        server.publish(subject, encode(sample), {})
        server.state.purge(TELEMETRY.name, subject, keep=SAMPLES_KEPT, before=0)

    # --- failures ---------------------------------------------------------------------------------

    def target_of(self, scheduled: ScheduledFailure) -> SimulatedMachine | None:
        """The machine that a failure hits; None if the slot has none that can fail."""
        machine = self.at.get(scheduled.slot)
        if machine is None or not machine.ready or machine.process.dead:
            return None
        return None if any(each.lasting for each in machine.failures.values()) else machine

    def failure_of(self, scheduled: ScheduledFailure, gpu: int) -> HardwareFailure:
        """Return a scheduled failure as a failure of the machine."""
        now = self._simulation.clock.now()
        at = self._simulation.now()
        return failure_effects.hardware_failure(
            scheduled, gpu, at, now, self._remedies, self._spec.chaos.hot_celsius
        )

    def end_failure(self, machine: SimulatedMachine, scheduled: ScheduledFailure) -> bool:
        """End a failure; False if the machine or the failure is gone."""
        found = [each for each in machine.failures.values() if each.number == scheduled.number]
        if not found or self.nodes.get(machine.instance.provider_id) is not machine:
            return False
        self.recover(machine, found[0].name)
        return True


def _encode_readings(machine: SimulatedMachine, used: int) -> msgspec.Raw:
    """A machine's GPU readings, encoded; they rarely change."""
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
