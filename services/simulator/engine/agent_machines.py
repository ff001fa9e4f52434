"""Simulated machines: failing hardware under the agent's own code.

A failure is written into a kernel log or shows in an NVML sample, and the agent's own reporter
makes a fault of it. Like real agents, these publish a fact again until the bus has stored it, and
they answer diagnose, reset-gpu and reboot. A failure lasts until it recovers or a remedy helps;
after a remedy that does not help it shows again.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from agent.delivery.spool import OutgoingEvent
from agent.fault_reporter import FaultReporter
from agent.node_monitor import REGISTER_AGAIN_SECONDS
from agent.observations import dated_use
from agent.own_record import missing_events
from schemas import subjects
from schemas.agent_commands import ActionResult, DiagnoseRequest, RebootRequest, ResetRequest
from schemas.gpu_samples import GpuSample
from schemas.headers import TRACEPARENT
from schemas.messages import encode
from schemas.node_events import Telemetry
from schemas.node_records import GpuUse, HeartbeatRecord, node_key
from schemas.topology import HEARTBEATS, INTAKE
from services.bus.port import Headers
from services.primitives.errors import BusError
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine.hardware_failures import (
    RECLAIMS,
    REMEDIES,
    HardwareFailure,
    MachineSpec,
    diagnosis,
)
from services.simulator.engine.simulated_machine import (
    SimulatedMachine,
    boot_checked,
    gpu_of,
    gpu_uuid,
    notice_of,
    registered,
    report_failure,
    reporter_of,
)
from services.simulator.engine.simulation_context import (
    SimulatedProcess,
    SimulationContext,
    StoredRecords,
)

AGAIN_SECONDS: Final = 0.5
BEAT_SECONDS: Final = 3.0
BEAT_TTL_SECONDS: Final = 9
HUNG_SECONDS: Final = 1.0
"""How often a hung agent checks whether it still is."""
BOOT_SECONDS: Final = (3.0, 15.0)
GPUS: Final = 8
SAMPLE_SECONDS: Final = 15.0
COOL_CELSIUS: Final = 45
RESET_SECONDS: Final = 4.0
GOING_DOWN_SECONDS: Final = 0.5
AGAIN_BROKEN_SECONDS: Final = 5.0
"""After a remedy that did not fix the failure."""
DIAGNOSE_SECONDS: Final = 2.0


class AgentMachines:
    """Runs every machine of a fleet, and its agent."""

    def __init__(
        self, simulation: SimulationContext, spec_of: Callable[[Instance], MachineSpec]
    ) -> None:
        self._simulation = simulation
        self._chance = simulation.chance("agents")
        self._records = StoredRecords(simulation.server)
        self.nodes: dict[str, SimulatedMachine] = {}
        """Provider ID -> machine."""
        self._by_name: dict[str, SimulatedMachine] = {}
        self.never_boot = 0
        """So many of the next machines never boot."""
        self.beat_seconds = BEAT_SECONDS
        self.beat_ttl_seconds = BEAT_TTL_SECONDS
        self.spec_of = spec_of
        self.loads: dict[str, float] = {}
        """Pool -> utilization of its GPUs, in percent."""
        self.failing_boot_checks = 0
        """So many of the next machines fail their boot checks."""
        self.reused = 0
        """So many of the next machines have the hardware that was terminated last."""
        self._given_back = ""
        self.sample_seconds = SAMPLE_SECONDS
        self.on_reset: Callable[[str, bool], None] = lambda *_: None
        """Called when a machine's GPUs are reset, or it reboots; and whether the cloud began it."""
        self.booting: Callable[[Instance], float] | None = None
        """How long a machine takes until its agent speaks; None: a few seconds."""

    # --- life -------------------------------------------------------------------------------------

    def appear(self, instance: Instance) -> None:
        """A machine was made: it boots."""
        process = self._process(instance.provider_id)
        machine = SimulatedMachine(instance, process, self.spec_of(instance))
        self.nodes[instance.provider_id] = self._by_name[machine.name] = machine
        back = self._given_back
        if self.reused and back and all((n.hardware or k) != back for k, n in self.nodes.items()):
            self.reused -= 1
            machine.hardware = back
        if self.never_boot:
            self.never_boot -= 1
            self._simulation.note(f"{instance.name} never boots")
            machine.powered_off = True
            return
        if self.failing_boot_checks:
            self.failing_boot_checks -= 1
            failure = HardwareFailure(
                kind="boot_failure",
                at=self._simulation.now(),
                began=self._simulation.clock.now(),
                message="faulty as delivered",
            )
            machine.failures[failure.name] = failure
            machine.broken = True
        self._start(machine)

    def vanish(self, instance: Instance) -> None:
        """A machine is gone, and its agent with it; the cloud may launch it again."""
        machine = self.nodes.pop(instance.provider_id, None)
        if machine is not None:
            self._given_back = machine.hardware or instance.provider_id
            machine.process.crash()
            if self._by_name.get(machine.name) is machine:
                del self._by_name[machine.name]

    def serving(self) -> list[SimulatedMachine]:
        """Machines whose boot check has passed and that are not broken, oldest first."""
        return [each for each in self.nodes.values() if each.ready and not each.broken]

    def machine_of(self, name: str) -> SimulatedMachine | None:
        """Return the machine of a node."""
        return self._by_name.get(name)

    def names(self) -> list[str]:
        """Every node that has a machine, oldest first."""
        return [each.name for each in self.nodes.values()]

    def _process(self, name: str) -> SimulatedProcess:
        return SimulatedProcess(self._simulation, name)

    def _start(self, machine: SimulatedMachine) -> None:
        booting = self.booting
        seconds = booting(machine.instance) if booting else self._chance.uniform(*BOOT_SECONDS)
        machine.powered_off = False
        machine.process.spawn(self._live(machine, seconds))
        if self._used_percent(machine) is not None:
            self._sample_from_now(machine)

    def restart(self, machine: SimulatedMachine) -> None:
        """Boot a machine, whether it is powered off or up."""
        if not machine.process.dead:
            machine.process.crash()
        machine.process = self._process(machine.instance.provider_id)
        machine.boots += 1
        machine.ready = 0.0
        machine.lines = 0
        machine.reporter = None
        machine.samples = {}
        machine.sampling = False
        self._start(machine)

    def reboot(self, instance: Instance, *, by_cloud: bool = False) -> None:
        """The provider reboots a machine, for Navarch or on its own account."""
        machine = self.nodes.get(instance.provider_id)
        if machine is not None:
            boots = machine.boots
            self._apply(machine, "reboot", by_cloud=by_cloud)
            if machine.boots == boots:
                self.restart(machine)

    def _begin_to_beat(self, node: SimulatedMachine) -> None:
        node.process.spawn(self._beat_for_ever(node))

    async def _live(self, node: SimulatedMachine, boot_seconds: float) -> None:
        await asyncio.sleep(boot_seconds)
        self._begin_to_beat(node)
        name, pool = node.name, node.instance.pool
        for verb, endpoint in (
            ("diagnose", self._diagnose),
            ("reset-gpu", self._reset),
            ("reboot", self._reboot),
        ):
            subject = subjects.node_command(pool, name, verb)
            await node.process.bus.answer(subject, partial(endpoint, node))
        await self._boot(node)
        while True:
            each = await node.outbox.get()
            await self._send(node, each)
            if each not in node.sent:
                node.sent.append(each)

    async def _boot(self, node: SimulatedMachine) -> None:
        await self._send(node, registered(node, self._about(node)))
        await asyncio.sleep(self._chance.random())
        await self._send(node, boot_checked(node, self._about(node)))
        node.ready = self._simulation.now()
        for failure in list(node.failures.values()):
            if failure.kind != "boot_failure":
                self._show_later(node, failure)
        for notice in node.announced.values():
            self.reporter(node).notice(notice)

    async def _beat_for_ever(self, node: SimulatedMachine) -> None:
        key = node_key(node.instance.pool, node.name)
        while True:
            await self._awake(node)
            beat = HeartbeatRecord(
                instance=node.name,
                gpu_use=self._gpu_use(node),
                admitted_at=node.admission.at,
                sagas=node.admission.sagas,
                credentials_until=node.reported_expiry(self._simulation.now()),
                unwritable=INTAKE.name in node.process.bus.unwritable_streams(),
                **self._about(node),
            )
            try:
                ttl = self.beat_ttl_seconds
                await node.process.bus.put(HEARTBEATS, key, encode(beat), ttl_seconds=ttl)
                self._read_record(node, key)
            except BusError:
                pass  # the next heartbeat says the same
            await asyncio.sleep(self.beat_seconds)

    def _read_record(self, node: SimulatedMachine, key: str) -> None:
        """Take in what an agent reads in its node's record."""
        if (revision := self._records.node_revision(key)) != node.read_revision:
            record, node.read_revision = self._records.node(key), revision
            node.admission = node.admission.with_record(record)
            missing = missing_events(record, node.boot_id)
            node.forgotten = missing.registration or missing.checks
        again = self._simulation.now() - node.ready >= REGISTER_AGAIN_SECONDS
        if node.forgotten and node.ready and again:
            self._simulation.note(f"{node.name} registers again")
            node.ready = self._simulation.now()
            node.registrations += 1
            node.outbox.put_nowait(registered(node, self._about(node)))
            node.outbox.put_nowait(boot_checked(node, self._about(node)))

    async def _awake(self, node: SimulatedMachine) -> None:
        while left := node.silent_seconds(self._simulation.now()):  # noqa: ASYNC110 - a moment
            await asyncio.sleep(min(left, HUNG_SECONDS))

    async def _send(self, node: SimulatedMachine, event: OutgoingEvent) -> None:
        headers = {TRACEPARENT: event.trace} if event.trace else {}
        while True:
            await self._awake(node)
            try:
                await node.process.bus.publish(
                    event.subject, event.data, msg_id=event.msg_id, headers=headers
                )
            except BusError:
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return

    def _about(self, node: SimulatedMachine) -> dict[str, Any]:
        now = self._simulation.clock_of(node.name).now()
        return {"time": now, "pool": node.instance.pool, "node": node.name}

    def hang(self, node: SimulatedMachine, seconds: float) -> None:
        """A node publishes nothing for a while."""
        self._simulation.note(f"{node.name} says nothing for {seconds:.0f} s")
        node.hung_until = self._simulation.now() + seconds

    def power_off(self, node: SimulatedMachine) -> None:
        """A machine is powered off; its instance still exists."""
        self._simulation.note(f"{node.name} is dead")
        node.broken = node.powered_off = True
        node.process.crash()

    def repeat(self, machine: SimulatedMachine, count: int) -> None:
        """Have an agent publish its last facts again, in any order."""
        again = list(machine.sent)[-count:]
        self._chance.shuffle(again)
        self._simulation.note(f"{machine.name} publishes {len(again)} facts again")
        for each in again:
            machine.outbox.put_nowait(each)

    # --- failures ---------------------------------------------------------------------------------

    def fail(self, machine: SimulatedMachine, failure: HardwareFailure) -> None:
        """Add a failure, which lasts until it recovers."""
        code = f" {failure.xid_code}" if failure.kind == "xid_error" else ""
        self._simulation.note(f"{machine.name}: {failure.kind}{code} {failure.message}".rstrip())
        machine.failures[failure.name] = failure
        machine.broken = True
        self._show(machine, failure)

    def show_again(self, name: str) -> None:
        """Show a machine's failures to its agent again."""
        machine = self.machine_of(name)
        if machine is not None and machine.ready:
            for failure in list(machine.failures.values()):
                self._show(machine, failure)

    def recover(self, machine: SimulatedMachine, name: str = "") -> None:
        """End one failure, or all of them."""
        for each in [name] if name else list(machine.failures):
            failure = machine.failures.pop(each, None)
            if failure is None:
                continue
            self._simulation.note(f"{machine.name}: {each} is over")
            self._undo(machine, failure)
        machine.broken = machine.unfit

    def _undo(self, machine: SimulatedMachine, failure: HardwareFailure) -> None:
        match failure.kind:
            case "temperature":
                machine.hot.pop(gpu_of(machine, failure), None)
                for each in machine.failures.values():
                    if each.kind == "temperature":
                        machine.hot[gpu_of(machine, each)] = each.temperature
            case "network":
                if not any(each.kind == "network" for each in machine.failures.values()):
                    self._simulation.network.cut.pop(machine.process.name, None)
                    machine.process.update_connection()
            case "power_off":
                if machine.powered_off:
                    self.restart(machine)
            case "preemption" | "retirement":
                self.reporter(machine).notice_over(notice_of(machine, failure).digest)

    def _show_later(self, machine: SimulatedMachine, failure: HardwareFailure) -> None:
        asyncio.get_running_loop().call_later(AGAIN_BROKEN_SECONDS, self._show, machine, failure)

    def _show(self, machine: SimulatedMachine, failure: HardwareFailure) -> None:
        """Show a failure to the agent."""
        if machine.failures.get(failure.name) is not failure or machine.process.dead:
            return
        match failure.kind:
            case "temperature":
                machine.hot[gpu_of(machine, failure)] = failure.temperature
                self._sample_from_now(machine)
            case "network":
                self._simulation.network.cut[machine.process.name] = 1
                machine.process.update_connection()
            case "power_off":
                self.power_off(machine)
            case _:
                report_failure(self.reporter(machine), machine, failure)

    def reporter(self, machine: SimulatedMachine) -> FaultReporter:
        """Return the reporter of this boot."""
        if machine.reporter is None:
            machine.reporter = reporter_of(machine, self._simulation.clock_of(machine.name))
        return machine.reporter

    # --- samples ----------------------------------------------------------------------------------

    def load(self, target: str, percent: float) -> None:
        """Set the utilization of the GPUs of a pool or a node."""
        self.loads[target] = percent
        for node in self.nodes.values():
            if target in (node.instance.pool, node.name):
                self._sample_from_now(node)

    def _used_percent(self, machine: SimulatedMachine) -> float | None:
        """None: nothing was set."""
        return self.loads.get(machine.name, self.loads.get(machine.instance.pool))

    def _gpu_use(self, machine: SimulatedMachine) -> GpuUse | None:
        used, now = self._used_percent(machine), self._simulation.clock.now()
        machine.gpu_use = dated_use(machine.gpu_use, None if used is None else used > 0, now)
        return machine.gpu_use

    def _sample_from_now(self, machine: SimulatedMachine) -> None:
        if not machine.sampling:
            machine.sampling = True
            machine.process.spawn(self._sample_for_ever(machine))

    async def _sample_for_ever(self, machine: SimulatedMachine) -> None:
        subject = subjects.telemetry(machine.instance.pool, machine.name)
        while True:
            await self._awake(machine)
            if machine.ready:
                machine.sequence += 1
                try:
                    await machine.process.bus.publish(subject, encode(self._sample(machine)))
                except BusError:
                    self._simulation.note(f"a sample of {machine.name} is lost")
            await asyncio.sleep(self.sample_seconds)

    def _sample(self, machine: SimulatedMachine) -> Telemetry:
        used = self._used_percent(machine) or 0.0
        gpus = tuple(
            GpuSample(
                index=i,
                uuid=gpu_uuid(machine, i),
                utilization_percent=round(used),
                temperature_celsius=machine.hot.get(i, COOL_CELSIUS),
            )
            for i in range(machine.kind.gpu_count)
        )
        return Telemetry(
            id=f"{machine.boot_id}.{machine.sequence}",
            gpus=gpus,
            sequence=machine.sequence,
            **self._about(machine),
        )

    # --- commands ---------------------------------------------------------------------------------

    async def _diagnose(self, machine: SimulatedMachine, data: bytes, _: Headers) -> bytes:
        asked = msgspec.json.decode(data, type=DiagnoseRequest)
        await asyncio.sleep(DIAGNOSE_SECONDS)
        return encode(diagnosis(machine.failures.values(), asked.checks or ("boot",)))

    async def _reset(self, machine: SimulatedMachine, data: bytes, _: Headers) -> bytes:
        msgspec.json.decode(data, type=ResetRequest)
        await asyncio.sleep(RESET_SECONDS)
        self._simulation.note(f"{machine.name} resets its GPUs")
        self._apply(machine, "reset_gpu")
        at = self._simulation.clock_of(machine.name).now()
        return encode(ActionResult(ok=True, detail="simulated", boot_id=machine.boot_id, at=at))

    async def _reboot(self, machine: SimulatedMachine, data: bytes, _: Headers) -> bytes:
        asked = msgspec.json.decode(data, type=RebootRequest)
        at = self._simulation.clock_of(machine.name).now()
        if asked.boot_id == machine.boot_id:
            self._simulation.note(f"{machine.name} reboots")
            asyncio.get_running_loop().call_later(GOING_DOWN_SECONDS, self._go_down, machine)
        return encode(ActionResult(ok=True, detail="simulated", boot_id=machine.boot_id, at=at))

    def _go_down(self, machine: SimulatedMachine) -> None:
        if self.nodes.get(machine.instance.provider_id) is machine and not machine.process.dead:
            self._apply(machine, "reboot")
            self.restart(machine)

    def _apply(self, machine: SimulatedMachine, remedy: str, *, by_cloud: bool = False) -> None:
        """Apply a remedy; a failure that it does not fix shows again."""
        self.on_reset(machine.name, by_cloud)
        for name, failure in list(machine.failures.items()):
            if failure.kind in RECLAIMS:
                continue  # no remedy withdraws the cloud's notice
            if REMEDIES.index(remedy) >= REMEDIES.index(failure.fixed_by):
                self.recover(machine, name)
            elif remedy == "reset_gpu":
                self._show_later(machine, failure)
