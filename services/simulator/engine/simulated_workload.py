"""A simulated workload system, and the notifier plugin that calls it."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from schemas.settings import Setting
from services.notifier.workload.webhook_notifier import POLL_SECONDS
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    RunningWork,
    StepFailure,
    WorkloadAnswer,
    WorkloadOrder,
)
from services.pool_manager.autoscaling.metrics_sources import Load, SourceError
from services.primitives.clock import Clock
from services.simulator.engine.simulation_context import (
    CURRENT_SIMULATION,
    SimulationContext,
    current_process,
)

CALL_SECONDS_MAX: Final = 0.3
DRAIN_SECONDS_MAX: Final = 12.0
SLOW_SECONDS_MAX: Final = 30.0
UNTIL: Final = {
    "network": "away_until",
    "endless_drain": "endless_until",
    "no_drain_status": "no_status_until",
    "slow_orders": "slow_until",
    "refused_orders": "refusing_until",
    "late_work": "late_until",
    "returning_work": "returning_until",
}
"""Fault of the workload system -> its field with the fault's end."""


@dataclass(slots=True)
class SimulatedWorkload:
    """Simulates the workload system's view of the nodes."""

    simulation: SimulationContext
    cordoned: dict[str, str] = field(default_factory=dict)
    """Node -> why."""
    cordoned_gpus: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Node -> those that get no new work."""
    drained_at: dict[str, float] = field(default_factory=dict)
    """Node -> when its drain is complete."""
    away_until: float = 0.0
    """Until then every call fails."""
    endless_until: float = 0.0
    """Drains that begin before this never end."""
    no_status_until: float = 0.0
    """Until then no question about a drain is answered."""
    slow_until: float = 0.0
    """Until then every call takes long."""
    refusing_until: float = 0.0
    """Until then cordons and drains are refused."""
    late_until: float = 0.0
    """In drains that begin before this, work leaves only when it is evicted."""
    returning_until: float = 0.0
    """Until then work that has left comes back, once for each drain."""
    late: set[str] = field(default_factory=set)
    """Nodes whose work waits for its eviction."""
    returned: set[str] = field(default_factory=set)
    """Nodes whose work has come back since their drain began."""
    on_returned: Callable[[str], None] = lambda _: None
    """Called when work comes back to a node."""
    on_order: Callable[[str, WorkloadOrder], None] = lambda *_: None
    """Called with `cordon`, `uncordon`, `drain` or `evict` when an order has changed something."""
    loads: dict[str, Load] = field(default_factory=dict)
    """Pool -> its queue."""
    jobs: dict[str, int] = field(default_factory=dict)
    """Node -> how many jobs a scenario has it run, until it says otherwise."""
    is_another: Callable[[NodeReference], bool] = lambda _: False
    """Whether the node of this name is another machine than the one that is meant."""
    on_uncordoned: Callable[[str], None] = lambda _: None
    chance: Any = None

    def __post_init__(self) -> None:
        self.chance = self.simulation.chance("workload")

    def cordon(self, node: str, reason: str) -> None:
        """Place nothing new on a node."""
        if node not in self.cordoned:
            self.simulation.note(f"workload system cordons {node}")
        self.cordoned[node] = reason

    def uncordon(self, node: str) -> None:
        """Use a node again."""
        if self.cordoned.pop(node, None) is not None:
            self.simulation.note(f"workload system uncordons {node}")
        self.on_uncordoned(node)
        self.drained_at.pop(node, None)
        self.late.discard(node)
        self.returned.discard(node)

    def cordon_gpus(self, node: str, gpus: tuple[int, ...]) -> None:
        """Place nothing new on these GPUs of a node, and on no others."""
        self.simulation.note(f"workload system cordons of {node} the GPUs {gpus}")
        self.cordoned_gpus[node] = gpus

    def drain(self, node: str) -> None:
        """Begin to move the work off a node."""
        if node in self.drained_at:
            return
        now = self.simulation.now()
        seconds = self.chance.random() * DRAIN_SECONDS_MAX
        endless = now < self.endless_until
        if now < self.late_until and not endless:
            self.late.add(node)
        self.drained_at[node] = float("inf") if endless or node in self.late else now + seconds
        self.simulation.note(f"workload system drains {node}{' without end' if endless else ''}")

    def evict(self, node: str) -> bool:
        """End the work that is left, and say whether there was any that ends."""
        now = self.simulation.now()
        at = self.drained_at.get(node, float("inf"))
        if at <= now or (at == float("inf") and node not in self.late):
            return False
        self.drained_at[node] = now
        self.simulation.note(f"workload system evicts the work on {node}")
        return True

    def answers_drained(self, node: str) -> bool:
        """Return what the notifier is answered; from then on no work comes back."""
        drained = self.is_drained(node)
        if drained and self.simulation.now() < self.returning_until and node not in self.returned:
            self.drained_at[node] = self.simulation.now() + self.chance.random() * DRAIN_SECONDS_MAX
            self.simulation.note(f"work comes back to {node}")
            self.on_returned(node)
            drained = False
        self.returned.add(node)
        return drained

    def join(self, node: str) -> None:
        """A machine has joined, as a node of its own, whatever an earlier one of its name was."""
        self.cordoned.pop(node, None)
        self.cordoned_gpus.pop(node, None)
        self.drained_at.pop(node, None)
        self.late.discard(node)
        self.returned.discard(node)

    def work_on(self, node: str) -> NodeWorkload:
        """Return what the notifier is answered about a node."""
        if jobs := self.jobs.get(node, 0):
            named = tuple(RunningWork(id=f"job-{each}", owner="user") for each in range(jobs))
            return NodeWorkload(drained=False, running=named, total=jobs)
        return NodeWorkload(drained=self.answers_drained(node))

    def leave(self, node: str) -> None:
        """A machine is gone, and its work with it."""

    def interrupt(self, node: str) -> None:
        """A machine broke, and its work ends."""

    def recover(self) -> None:
        """End every fault of the workload system, except drains that have no end."""
        self.away_until = self.endless_until = self.no_status_until = 0.0
        self.slow_until = self.refusing_until = self.late_until = self.returning_until = 0.0

    def end_drains(self) -> None:
        """Complete the drains that would never end."""
        for node, at in self.drained_at.items():
            if at == float("inf"):
                self.drained_at[node] = self.simulation.now()

    def is_drained(self, node: str) -> bool:
        """Return whether no work is left."""
        return self.simulation.now() >= self.drained_at.get(node, float("inf"))


class SimulatedMetrics:
    """The metrics source plugin: the queue that `set_load` sets."""

    class Options(Setting, frozen=True, kw_only=True):
        """No options: the scenario sets the load."""

    def __init__(self, *, options: Options) -> None:
        del options
        self._workload: SimulatedWorkload = CURRENT_SIMULATION.get().parts["workload"]

    async def load(self, pool: str) -> Load:
        """Return the pool's queue."""
        workload = self._workload
        if workload.simulation.now() < workload.away_until:
            raise SourceError("the workload system is away")
        return workload.loads.get(pool, Load())

    async def close(self) -> None:
        """Nothing to close."""


class SimulatedNotifier:
    """The notifier plugin: calls the simulated workload system."""

    name = "simulated"
    confirms_drains = True
    """The workload system is asked."""
    reports_running = True
    """It is asked about any node."""
    batches = False
    """Each node is asked about by itself, as most receivers of webhooks are."""
    poll_seconds = POLL_SECONDS
    """As often as a webhook's status."""

    class Options(Setting, frozen=True, kw_only=True):
        """No options: faults are injected."""

    def __init__(self, *, options: Options, clock: Clock) -> None:
        del options, clock
        self._workload: SimulatedWorkload = CURRENT_SIMULATION.get().parts["workload"]
        self._process = current_process()

    async def _reach(self) -> None:
        workload, now = self._workload, self._workload.simulation.now
        slow = now() < workload.slow_until
        longest = SLOW_SECONDS_MAX if slow else CALL_SECONDS_MAX
        await asyncio.sleep(workload.chance.random() * longest)
        await self._process.alive()
        if now() < workload.away_until:
            raise ConnectionError("the workload system is away")

    async def _landing(self, call: Coroutine[Any, Any, None]) -> None:
        """Make a call; a slow one takes effect although its caller waits for it no more."""
        if self._workload.simulation.now() >= self._workload.slow_until:
            await call
            return
        landing = asyncio.get_running_loop().create_task(call)
        landing.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(landing)

    async def _order(self, order: WorkloadOrder) -> bool:
        """Whether there is the node that an order is about."""
        await self._reach()
        if self._workload.simulation.now() < self._workload.refusing_until:
            raise StepFailure("the workload system refuses", "INVALID")
        return not self._workload.is_another(order.node)

    async def cordon(self, order: WorkloadOrder) -> None:
        """Place nothing new on the node."""
        await self._landing(self._cordon(order))

    async def _cordon(self, order: WorkloadOrder) -> None:
        if not await self._order(order):
            return
        changed = order.node.node not in self._workload.cordoned
        self._workload.cordon(order.node.node, order.reason)
        if changed:
            self._workload.on_order("cordon", order)
        await self._process.effect("a cordon")

    async def uncordon(self, order: WorkloadOrder) -> None:
        """The node may be used again."""
        await self._landing(self._uncordon(order))

    async def _uncordon(self, order: WorkloadOrder) -> None:
        await self._reach()
        if self._workload.is_another(order.node):
            return
        changed = order.node.node in self._workload.cordoned
        self._workload.uncordon(order.node.node)
        if changed:
            self._workload.on_order("uncordon", order)
        await self._process.effect("an uncordon")

    async def cordon_gpus(self, order: WorkloadOrder) -> None:
        """Place nothing new on these GPUs."""
        if not await self._order(order):
            return
        self._workload.cordon_gpus(order.node.node, tuple(each.index for each in order.gpus))
        await self._process.effect("a cordon of GPUs")

    async def drain(self, order: WorkloadOrder) -> None:
        """Begin to move the work off the node."""
        await self._landing(self._drain(order))

    async def _drain(self, order: WorkloadOrder) -> None:
        if not await self._order(order):
            return
        changed = order.node.node not in self._workload.drained_at
        self._workload.drain(order.node.node)
        if changed:
            self._workload.on_order("drain", order)
        await self._process.effect("a drain")

    async def evict(self, order: WorkloadOrder) -> None:
        """End the work that is left, unless it refuses to leave."""
        await self._reach()
        if self._workload.is_another(order.node):
            return
        if self._workload.evict(order.node.node):
            self._workload.on_order("evict", order)
        await self._process.effect("an eviction")

    async def workloads(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadAnswer]:
        """Return whether no work is left on each."""
        await self._reach()
        if self._workload.simulation.now() < self._workload.no_status_until:
            raise ConnectionError("the workload system does not answer about drains")
        unknown = NodeWorkload(drained=True)
        is_another, work_on = self._workload.is_another, self._workload.work_on
        return {each.node: unknown if is_another(each) else work_on(each.node) for each in nodes}

    async def wait_for_change(self) -> None:
        """Nothing reports one."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing to close."""
