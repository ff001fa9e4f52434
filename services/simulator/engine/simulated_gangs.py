"""A simulated workload system with jobs of several nodes, and the notifier plugin that calls it.

A job has all of its nodes or none: it starts when enough of them are free, and stops on all of them
with the first that fails, is removed or loses its work. Then it waits, ahead of the others, to
start again. There is always another job.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from schemas.messages import decoder
from schemas.node_records import NodeRecord
from schemas.topology import NODES
from services.bus.port import Stored
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    RunningWork,
    WorkloadNodeState,
)
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.hardware_failures import RECLAIMS
from services.simulator.engine.simulated_machine import SimulatedMachine
from services.simulator.engine.simulated_workload import SimulatedNotifier, SimulatedWorkload
from services.simulator.engine.simulation_context import SimulationContext

JOBS: Final = 3
"""So many jobs run or wait at any time."""
NODES_MAX: Final = 4
"""Of one job."""
JOB_SECONDS: Final = (20.0, 400.0)
TICK_SECONDS: Final = 1.0
STOPS_SHARE: Final = 0.25
"""Of the failures of a machine, those that stop the job on it."""

_nodes = decoder(NodeRecord)


@dataclass(slots=True, eq=False)
class GangJob:
    """Describes one job that has several nodes."""

    name: str
    size: int
    """Nodes that it needs."""
    left_seconds: float
    """Until it ends, if nothing stops it."""
    nodes: dict[str, str] = field(default_factory=dict)
    """Those that it has, each with the boot that it runs in."""
    stays: bool = False
    """It ends only when it is evicted, or its drain is over."""
    refuses: bool = False
    """It is not even evicted."""


class SimulatedGangs(SimulatedWorkload):
    """The jobs, and where they run."""

    def __init__(self, simulation: SimulationContext) -> None:
        super().__init__(simulation)
        self._chance = simulation.chance("gangs")
        self._numbers = 0
        self._waiting: list[GangJob] = []
        self.on_node: dict[str, GangJob] = {}
        """Node -> the job that it runs."""
        self.ran: dict[str, dict[str, float]] = {}
        """Node -> the jobs that it has run, and until when."""
        self.began: dict[str, dict[str, float]] = {}
        """Node -> when these began there, the last time."""
        self._members: dict[str, str] = {}
        """Node in service -> its machine."""
        self._failed: set[tuple[str, str, float]] = set()
        """Failures whose effect on a job is known."""
        self._machines: AgentMachines | None = None
        simulation.watchers.append(self._on_stored)

    def begin(self, machines: AgentMachines) -> None:
        """Run jobs on these machines from now on."""
        self._machines = machines
        self._tick()

    def running(self) -> list[GangJob]:
        """Every job that runs."""
        return list(dict.fromkeys(self.on_node.values()))

    # --- jobs start and end -------------------------------------------------------------------

    def _tick(self) -> None:
        asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
        now = self.simulation.now()
        for job in self.running():
            for node in job.nodes:
                self.ran.setdefault(node, {})[job.name] = now
            lost = next((each for each in job.nodes if self._is_lost(job, each)), "")
            if lost:
                self.stop(lost, "fails")
            elif not job.stays:
                job.left_seconds -= TICK_SECONDS
                if job.left_seconds <= 0:
                    self._end(job)
        self._fill()
        self._place()

    def _fill(self) -> None:
        while len(self._waiting) + len(self.running()) < JOBS:
            self._numbers += 1
            size = self._chance.choice((1, *range(2, NODES_MAX + 1)))
            seconds = self._chance.uniform(*JOB_SECONDS)
            self._waiting.append(GangJob(f"job-{self._numbers}", size, seconds))

    def _place(self) -> None:
        free = [each for each in self._members if self._is_free(each)]
        for job in list(self._waiting):
            if job.size > len(free):
                continue
            taken, free = free[: job.size], free[job.size :]
            job.nodes = {node: self._boot_of(node) for node in taken}
            self._waiting.remove(job)
            for node in taken:
                self.on_node[node] = job
                self.ran.setdefault(node, {})[job.name] = self.simulation.now()
                self.began.setdefault(node, {})[job.name] = self.simulation.now()
            self.simulation.note(f"{job.name} starts on {', '.join(taken)}")

    def _end(self, job: GangJob) -> None:
        self.simulation.note(f"{job.name} ends on {', '.join(job.nodes)}")
        for node in job.nodes:
            del self.on_node[node]

    def stop(self, node: str, why: str) -> None:
        """The job on a node stops on all of its nodes, and waits to start again."""
        job = self.on_node.get(node)
        if job is not None:
            self.simulation.note(f"{job.name} stops, as {node} {why}")
            self._end(job)
            job.nodes, job.stays, job.refuses = {}, False, False
            self._waiting.insert(0, job)

    # --- its machines -------------------------------------------------------------------------

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if stream != f"KV_{NODES.name}" or not stored.data:
            return
        record = _nodes.decode(stored.data)
        machine = self._machine(record.node)
        if record.state == "active" and machine is not None:
            self._members[record.node] = machine.instance.provider_id

    def _machine(self, node: str) -> SimulatedMachine | None:
        return self._machines.machine_of(node) if self._machines is not None else None

    def _boot_of(self, node: str) -> str:
        machine = self._machine(node)
        return machine.boot_id if machine is not None and not machine.process.dead else ""

    def _is_free(self, node: str) -> bool:
        machine = self._machine(node)
        if machine is None or machine.process.dead or not machine.ready:
            return False
        same = self._members[node] == machine.instance.provider_id
        left_alone = node in self.cordoned or node in self.drained_at
        return same and not left_alone and node not in self.on_node

    def _is_lost(self, job: GangJob, node: str) -> bool:
        """Whether a machine of a job is gone, or has failed in a way that stops the job."""
        machine = self._machine(node)
        if machine is None or self._boot_of(node) != job.nodes[node]:
            return True
        for each in machine.failures.values():
            failure = (machine.boot_id, each.name, each.at)
            if each.kind not in RECLAIMS and failure not in self._failed:
                self._failed.add(failure)
                if self._chance.random() < STOPS_SHARE:
                    return True
        return False

    def leave(self, node: str) -> None:
        """A machine is gone."""
        self.stop(node, "is gone")
        self._members.pop(node, None)

    def interrupt(self, node: str) -> None:
        """A machine's GPUs are reset, or it reboots."""
        self.stop(node, "is reset")

    # --- requests of the notifier -------------------------------------------------------------

    def drain(self, node: str) -> None:
        """Let the job on a node end, as far as it does."""
        if node not in self.drained_at and (job := self.on_node.get(node)) is not None:
            now = self.simulation.now()
            job.refuses = job.refuses or now < self.endless_until
            job.stays = job.stays or job.refuses or now < self.late_until
        super().drain(node)

    def uncordon(self, node: str) -> None:
        """Use a node again; its job goes on."""
        super().uncordon(node)
        if (job := self.on_node.get(node)) is not None:
            job.stays = job.refuses = False

    def evict(self, node: str) -> bool:
        """Stop the job on a node, unless it refuses."""
        ended = super().evict(node)
        job = self.on_node.get(node)
        if job is None or job.refuses:
            return ended
        self.stop(node, "is evicted")
        return True

    def end_drains(self) -> None:
        """Complete the drains that would never end."""
        super().end_drains()
        for job in self.running():
            job.stays = job.refuses = False

    def is_drained(self, node: str) -> bool:
        """Return whether no work is left."""
        return super().is_drained(node) and node not in self.on_node

    def work_on(self, node: str) -> NodeWorkload:
        """Return what the workload system says of a node."""
        job = self.on_node.get(node)
        if job is None:
            return super().work_on(node)
        gang = job.name if job.size > 1 else ""
        work = RunningWork(id=job.name, owner="operator", gang=gang)
        return NodeWorkload(drained=False, running=(work,), total=1)


class GangNotifier(SimulatedNotifier):
    """The notifier plugin, of a workload system that reports which jobs share nodes."""

    async def node_states(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadNodeState]:
        """Return no states: the system knows nothing of nodes but their work."""
        del nodes
        return {}

    async def wait_for_node_change(self) -> None:
        """Nothing reports one."""
        await asyncio.Event().wait()
