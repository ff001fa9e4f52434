"""The workload system of a stress run: jobs wait in one queue per pool, and run on its nodes.

It keeps the notifier's contract: no job is placed on a cordoned node, and a node is drained when
its last job has ended. A job on a machine that fails or is removed is interrupted, and starts again
from the head of the queue.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from schemas.topology import NODES
from services.bus.port import Stored
from services.pool_manager.autoscaling.metrics_sources import Load
from services.simulator.engine.simulated_workload import SimulatedWorkload
from services.simulator.engine.simulation_context import SimulationContext
from services.simulator.inputs.stress.job_demand import Job

BUSY_PERCENT: Final = 90
"""GPU utilization of a node whose places are all taken."""


class _Node(msgspec.Struct, frozen=True, gc=False):
    """The fields of a node's record that say whether it can run jobs."""

    node: str
    pool: str = ""
    state: str = "launching"


_nodes = msgspec.json.Decoder(_Node)


@dataclass(slots=True)
class _Seat:
    """A node, as the workload system knows it."""

    number: int
    """In the order in which nodes joined: the oldest with room gets the job."""
    node: str
    pool: str
    broken: bool = False
    running: dict[int, asyncio.TimerHandle] = field(default_factory=dict)


@dataclass(slots=True)
class _Queue:
    waiting: deque[Job] = field(default_factory=deque)
    running: int = 0
    room: list[tuple[int, str]] = field(default_factory=list)
    """A heap of nodes that may have room, each with its number."""


class JobQueues(SimulatedWorkload):
    """Every pool's queue, and where its jobs run."""

    def __init__(
        self, simulation: SimulationContext, jobs: Sequence[Job], places: int, pools: Sequence[str]
    ) -> None:
        """Each node has so many `places` for these `jobs`."""
        super().__init__(simulation)
        self._coming = deque(jobs)
        self._places = places
        self._queues = {pool: _Queue() for pool in pools}
        self._seats: dict[str, _Seat] = {}
        self._jobs = {each.number: each for each in jobs}
        self._begun = 0.0
        self._joined = 0
        self._started: set[int] = set()
        self.arrived = self.finished = self.interrupted = 0
        self.waits: list[float] = []
        """How long each started job waited."""
        for pool in pools:
            self.loads[pool] = Load(pending_jobs=0, queue_depth=0)

    # --- the current state ------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Return how many jobs wait."""
        return sum(len(each.waiting) for each in self._queues.values())

    @property
    def running(self) -> int:
        """Return how many jobs run."""
        return sum(each.running for each in self._queues.values())

    def idle(self) -> dict[str, int]:
        """Return the nodes in service without a job, by pool."""
        found = dict.fromkeys(self._queues, 0)
        for seat in self._seats.values():
            found[seat.pool] += not seat.running and not seat.broken
        return found

    def longest(self) -> float:
        """The longest wait of a job that has not started."""
        found = (
            job.at for each in self._queues.values() for job in each.waiting
            if job.number not in self._started
        )  # fmt: skip
        now = self.simulation.now() - self._begun
        return max((now - at for at in found), default=0.0)

    def used(self, node: str) -> int:
        """Return the utilization of a node's GPUs, in percent."""
        seat = self._seats.get(node)
        return round(BUSY_PERCENT * len(seat.running) / self._places) if seat is not None else 0

    # --- jobs arrive and end ----------------------------------------------------------------------

    def begin(self) -> None:
        """Let jobs arrive from now on."""
        self._begun = self.simulation.now()
        self._next()

    def _next(self) -> None:
        if self._coming:
            at = self._begun + self._coming[0].at
            asyncio.get_running_loop().call_at(at, self._arrive)

    def _arrive(self) -> None:
        job = self._coming.popleft()
        self.arrived += 1
        self._queues[job.pool].waiting.append(job)
        self._place(job.pool)
        self._next()

    def _place(self, pool: str) -> None:
        """Start waiting jobs while there is room."""
        queue = self._queues[pool]
        while queue.waiting and queue.room:
            number, node = queue.room[0]
            seat = self._seats.get(node)
            if seat is None or seat.number != number or not self._takes(seat):
                heapq.heappop(queue.room)
                continue
            self._start(seat, queue.waiting.popleft())
        self._publish_load(pool)

    def _takes(self, seat: _Seat) -> bool:
        free = len(seat.running) < self._places
        left_alone = seat.node in self.cordoned or seat.node in self.drained_at
        return free and not seat.broken and not left_alone

    def _start(self, seat: _Seat, job: Job) -> None:
        now = self.simulation.now()
        if job.number not in self._started:
            self._started.add(job.number)
            self.waits.append(now - self._begun - job.at)
        loop = asyncio.get_running_loop()
        seat.running[job.number] = loop.call_at(now + job.seconds, self._finish, seat, job)
        self._queues[seat.pool].running += 1

    def _finish(self, seat: _Seat, job: Job) -> None:
        del seat.running[job.number]
        self._queues[seat.pool].running -= 1
        self.finished += 1
        self._has_room(seat)

    def _has_room(self, seat: _Seat) -> None:
        heapq.heappush(self._queues[seat.pool].room, (seat.number, seat.node))
        self._place(seat.pool)

    def _publish_load(self, pool: str) -> None:
        queue = self._queues[pool]
        waiting = len(queue.waiting)
        self.loads[pool] = Load(pending_jobs=waiting, queue_depth=waiting + queue.running)

    # --- nodes join, fail and leave ---------------------------------------------------------------

    def on_stored(self, stream: str, stored: Stored) -> None:
        """Follow node records: a node in service runs jobs until it is terminated."""
        if stream != f"KV_{NODES.name}" or not stored.data:
            return
        record = _nodes.decode(stored.data)
        if record.state == "active" and record.node not in self._seats:
            self._joined += 1
            seat = self._seats[record.node] = _Seat(self._joined, record.node, record.pool)
            self._has_room(seat)
        elif record.state == "terminated":
            self.leave(record.node)

    def leave(self, node: str) -> None:
        """A machine is gone: its jobs start again elsewhere."""
        self.interrupt(node)
        self._seats.pop(node, None)

    def interrupt(self, node: str) -> None:
        """A machine failed: its jobs start again elsewhere, and it gets none."""
        seat = self._seats.get(node)
        if seat is None:
            return
        seat.broken = True
        queue = self._queues[seat.pool]
        for number, timer in reversed(seat.running.items()):
            timer.cancel()
            queue.waiting.appendleft(self._jobs[number])
        self.interrupted += len(seat.running)
        queue.running -= len(seat.running)
        seat.running.clear()
        self._place(seat.pool)

    # --- requests of the notifier -----------------------------------------------------------------

    def uncordon(self, node: str) -> None:
        """Use a node again: it is repaired."""
        super().uncordon(node)
        seat = self._seats.get(node)
        if seat is not None:
            seat.broken = False
            self._has_room(seat)

    def drain(self, node: str) -> None:
        """Let a node's jobs end."""
        if node not in self.drained_at:
            self.simulation.note(f"workload system drains {node}")
        self.drained_at.setdefault(node, self.simulation.now())

    def evict(self, node: str) -> bool:
        """Nothing: jobs end with their machine."""
        del node
        return False

    def is_drained(self, node: str) -> bool:
        """Return whether the last job of a node has ended."""
        seat = self._seats.get(node)
        return node in self.drained_at and (seat is None or not seat.running)
