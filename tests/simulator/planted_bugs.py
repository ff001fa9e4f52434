"""Plausible bugs of the services, planted one at a time: the fuzzer must find each."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from schemas import subjects
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import encode
from schemas.node_events import Returned
from schemas.node_records import GANGS_MAX, NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from services.bus.memory.memory_bus import MemoryBus
from services.bus.record_bucket import RecordBucket
from services.health_monitor.health_audit import HealthAudit
from services.health_monitor.health_store import HealthStore
from services.notifier import node_state_publisher, workload_steps
from services.notifier.alerts import alert_intake
from services.notifier.alerts.alert_intake import AlertIntake
from services.notifier.alerts.store_alerts import StoreAlerts
from services.notifier.store_watch import StoreWatch
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    WorkloadAnswer,
)
from services.pool_manager.autoscaling import autoscaling_loop
from services.pool_manager.planner import disruption_budget, pool_planner
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.remediation import gangs, remedy_selection, repair
from services.pool_manager.planner.safety import incidents
from services.pool_manager.planner.sizing import on_demand_floor
from services.pool_manager.service import PoolManager
from services.primitives.errors import BusError
from services.provisioner.instances import instance_decisions, instance_store
from services.provisioner.launch import launcher
from services.provisioner.launch.launch_lease import LaunchLease, LaunchLeases
from services.provisioner.offerings import interruptions
from services.provisioner.provider_client.provider import Instance
from services.runtime.consumer_loop import ConsumerLoop
from services.saga.coordinator import Coordinator
from services.simulator.engine.simulated_workload import SimulatedNotifier
from services.simulator.engine.virtual_time import TASK_OWNER

Plant = Callable[[pytest.MonkeyPatch], None]


def save_before_publish(patch: pytest.MonkeyPatch) -> None:
    """The health-monitor saves a decision before it publishes it, and no audit makes up for it."""
    change = HealthStore.change

    async def saving_first(
        self: HealthStore, pool: str, node: str, decide: Any, perform: Any, **more: Any
    ) -> None:
        effects: list[tuple[Any, Any]] = []

        def deciding(record: HealthRecord) -> Any:
            effects.clear()
            return decide(record)

        async def later(record: HealthRecord, effect: Any) -> None:
            effects.append((record, effect))

        await change(self, pool, node, deciding, later, **more)
        for record, effect in effects:
            await perform(record, effect)

    async def publish_nothing(self: HealthAudit, *_: Any) -> None:
        del self

    patch.setattr(HealthStore, "change", saving_first)
    patch.setattr(HealthAudit, "_publish_missing", publish_nothing)


def budget_in_memory(patch: pytest.MonkeyPatch) -> None:
    """The pool-manager counts only the nodes that it took out of service since it started."""
    begun: dict[Any, set[str]] = {}
    begin = remedy_selection.begin

    def remembering(*given: Any, **named: Any) -> tuple[str, OpenSaga, PoolRecord]:
        found = begin(*given, **named)
        begun.setdefault(TASK_OWNER.get(), set()).add(found[0])
        return found

    def unavailable(record: PoolRecord, nodes: Any) -> int:
        del nodes
        return len(begun.get(TASK_OWNER.get(), set()) & set(record.open))

    patch.setattr(remedy_selection, "begin", remembering)
    patch.setattr(disruption_budget, "unavailable", unavailable)


def no_adopt_before_retry(patch: pytest.MonkeyPatch) -> None:
    """The provisioner retries an ambiguous launch without looking for an instance that it made."""
    for module in (instance_decisions, launcher):
        patch.setattr(module, "find_adoptable", lambda *_: None)


def timer_in_process_memory(patch: pytest.MonkeyPatch) -> None:
    """Deadlines are timers in process memory, and nothing else resumes an open saga."""
    patch.setattr(PoolManager, "_resync_for_ever", _look_at_pools_alone)

    async def schedule(
        self: MemoryBus, owner: str, key: str, at: datetime, data: bytes, *, headers: Any = None
    ) -> None:
        async def fire() -> None:
            await asyncio.sleep((at - self._server.clock.now()).total_seconds())
            await self.publish(subjects.timer_due(owner, key), data, headers=headers)

        asyncio.get_running_loop().create_task(fire())

    patch.setattr(MemoryBus, "schedule", schedule)


def unanswered_counts_as_drained(patch: pytest.MonkeyPatch) -> None:
    """The notifier takes a question that fails for an empty node."""
    ask = SimulatedNotifier.workloads

    async def workloads(
        self: SimulatedNotifier, nodes: Sequence[NodeReference]
    ) -> Mapping[str, WorkloadAnswer]:
        try:
            return await ask(self, nodes)
        except ConnectionError:
            return {each.node: NodeWorkload(drained=True) for each in nodes}

    patch.setattr(SimulatedNotifier, "workloads", workloads)


def silence_never_ends(patch: pytest.MonkeyPatch) -> None:
    """The notifier sends an alert of a lost node and none of its return."""
    handle = AlertIntake.handle

    async def handle_others(self: AlertIntake, received: Any) -> None:
        if not isinstance(received.message, Returned):
            await handle(self, received)

    patch.setattr(AlertIntake, "handle", handle_others)


class _SharedLease:
    """A lease that every replica holds at once."""

    async def run(self, call: Awaitable[Any]) -> Any:
        """Run the call without regard to other replicas."""
        return await call


def launch_without_a_claim(patch: pytest.MonkeyPatch) -> None:
    """Every replica with the command requests the launch, from a cloud without tokens."""

    @asynccontextmanager
    async def acquired(*_: Any) -> AsyncIterator[_SharedLease]:
        yield _SharedLease()

    patch.setattr(LaunchLeases, "acquired", acquired)


def instances_are_kept(patch: pytest.MonkeyPatch) -> None:
    """The records of instances that are gone never expire."""
    patch.setattr(instance_store, "TERMINATED_TTL_SECONDS", 0)


def evicts_at_once(patch: pytest.MonkeyPatch) -> None:
    """The notifier ends work when it begins to drain the node, and not at the deadline."""

    def at_once(begun: datetime, deadline: datetime | None, _: datetime | None) -> datetime | None:
        return deadline and begun

    patch.setattr(workload_steps, "eviction_time", at_once)


async def _look_at_pools_alone(self: Any) -> None:
    while True:
        try:
            for record in await self.store.pools():
                await self._reconciler.reconcile(record.name)
        except BusError:
            pass
        await self._clock.sleep(5.0)


def alerts_without_limit(patch: pytest.MonkeyPatch) -> None:
    """Every alert is sent, however many there were."""
    patch.setattr(alert_intake, "limit_alert", lambda groups, alert: (groups, alert))


def refused_writes_are_kept_quiet(patch: pytest.MonkeyPatch) -> None:
    """The notifier does not ask the other services whose writes are refused."""

    async def found(_: StoreWatch) -> list[Any]:
        return []

    patch.setattr(StoreWatch, "_refused_to_others", found)


def store_alerts_in_memory(patch: pytest.MonkeyPatch) -> None:
    """A notifier that starts does not look for alerts that an earlier one began."""

    async def found(_: StoreAlerts) -> set[str]:
        return set()

    patch.setattr(StoreAlerts, "_begun_earlier", found)


def partners_wait(patch: pytest.MonkeyPatch) -> None:
    """Unhealthy nodes of one job are taken out of service one after another."""
    patch.setattr(gangs, "shared_reason", lambda *_: "")


def jobs_of_others(patch: pytest.MonkeyPatch) -> None:
    """The notifier takes what it published of one node for what runs on the next."""
    seen: set[str] = set()

    def mixed(node: NodeRecord, answer: NodeWorkload) -> tuple[str, ...]:
        seen.update(each.gang for each in answer.running if each.gang)
        return tuple(sorted({*node.gangs, *seen}))[:GANGS_MAX]

    patch.setattr(node_state_publisher, "gangs_of", mixed)


def observing_acts(patch: pytest.MonkeyPatch) -> None:
    """The mode of a pool is not read."""
    patch.setattr(pool_planner, "apply_mode", lambda _, decided, __: decided)


def adopted_is_launched(patch: pytest.MonkeyPatch) -> None:
    """The pool-manager fills the gaps of pools whose nodes others make."""
    resize = pool_planner.resize

    def resized(snapshot: PoolSnapshot, begun: PoolPlan, now: datetime) -> PoolPlan:
        spec = begun.record.spec
        launched = replace(begun.record, spec=replace(spec, nodes="launched"))
        decided = resize(snapshot, dataclasses.replace(begun, record=launched), now)
        return dataclasses.replace(decided, record=replace(decided.record, spec=spec))

    patch.setattr(pool_planner, "resize", resized)


def names_are_machines(patch: pytest.MonkeyPatch) -> None:
    """The provisioner takes what has a node's name for its machine."""

    def belongs(record: InstanceRecord, instance: Instance) -> bool:
        return instance.name == record.instance

    patch.setattr(instance_decisions, "belongs_to", belongs)


def spot_in_any_place(patch: pytest.MonkeyPatch) -> None:
    """The launch of what must not be spot is not marked as such."""
    patch.setattr(on_demand_floor, "with_markets", lambda record, *_: record)


def interruptions_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """No interruption counts when an offering is chosen."""
    patch.setattr(interruptions, "count", lambda *_: 0)


def gaps_wait(patch: pytest.MonkeyPatch) -> None:
    """A node whose instance is gone waits for the budget and the breaker like any other."""
    patch.setattr(repair, "_replace_gone", lambda _snapshot, actions, _obstacle, _now: actions)


def acknowledges_first(patch: pytest.MonkeyPatch) -> None:
    """Services acknowledge a message before they handle it."""
    settle = ConsumerLoop._settle

    async def settling(self: ConsumerLoop, delivery: Any, decoded: Any) -> str:
        await delivery.ack()
        return await settle(self, delivery, decoded)

    patch.setattr(ConsumerLoop, "_settle", settling)


def timers_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    """The coordinator stores no timer for a step's deadline."""

    async def remind(*_: Any) -> None:
        pass

    patch.setattr(Coordinator, "_remind", remind)


def fence_is_not_confirmed(patch: pytest.MonkeyPatch) -> None:
    """The provisioner requests a launch without looking whether its lease is still held."""
    patch.setattr(LaunchLease, "confirm", lambda _: None)


def writes_over_anything(patch: pytest.MonkeyPatch) -> None:
    """Records are written without comparing their revision."""

    async def write(self: RecordBucket[Any], key: str, record: Any, revision: int) -> int:
        del revision
        value, ttl = encode(record), self._ttl_seconds(record)
        return await self._bus.put(self._bucket, key, value, ttl_seconds=ttl)

    patch.setattr(RecordBucket, "write", write)


def rate_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    """A saga that has disrupted nothing goes on counting in the rate."""
    patch.setattr(pool_planner, "without_counted", lambda record, _: record)


def stops_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """The planner begins what a stop holds."""
    patch.setattr(pool_planner, "stopped", lambda _, decided, __: decided)


def what_has_no_fault_spends(patch: pytest.MonkeyPatch) -> None:
    """A notice and a renewal count in the rate of faults, as they did."""
    patch.setattr(disruption_budget, "for_no_fault", lambda _: False)


def grows_for_jobs_without_effect(patch: pytest.MonkeyPatch) -> None:
    """The pool-manager does not look whether a growth helped the jobs that it was for."""
    patch.setattr(autoscaling_loop, "judged", lambda record, *_: record)
    patch.setattr(autoscaling_loop, "is_awaited", lambda *_: False)


def keeps_quiet_about_growth(patch: pytest.MonkeyPatch) -> None:
    """The pool-manager waits for the effect of a growth, and never says that it had none."""
    patch.setattr(autoscaling_loop, "judged", lambda record, *_: record)


def silent_nodes_wait_for_people(patch: pytest.MonkeyPatch) -> None:
    """No node of a silence is tried, although others are heard."""
    patch.setattr(incidents, "_may_be_probed", lambda *_: False)


BUGS: dict[str, Plant] = {
    "grows for jobs without effect": grows_for_jobs_without_effect,
    "keeps quiet about growth": keeps_quiet_about_growth,
    "silent nodes wait for people": silent_nodes_wait_for_people,
    "what has no fault spends": what_has_no_fault_spends,
    "stops are ignored": stops_are_ignored,
    "acknowledges first": acknowledges_first,
    "timers are not stored": timers_are_not_stored,
    "fence is not confirmed": fence_is_not_confirmed,
    "writes over anything": writes_over_anything,
    "rate is not given back": rate_is_not_given_back,
    "gaps wait": gaps_wait,
    "spot in any place": spot_in_any_place,
    "interruptions are forgotten": interruptions_are_forgotten,
    "partners wait": partners_wait,
    "jobs of others": jobs_of_others,
    "observing acts": observing_acts,
    "adopted is launched": adopted_is_launched,
    "names are machines": names_are_machines,
    "save before publish": save_before_publish,
    "budget in memory": budget_in_memory,
    "no adopt before retry": no_adopt_before_retry,
    "timer in process memory": timer_in_process_memory,
    "launch without a claim": launch_without_a_claim,
    "silence never ends": silence_never_ends,
    "unanswered counts as drained": unanswered_counts_as_drained,
    "alerts without limit": alerts_without_limit,
    "evicts at once": evicts_at_once,
    "instances are kept": instances_are_kept,
    "refused writes are kept quiet": refused_writes_are_kept_quiet,
    "store alerts in memory": store_alerts_in_memory,
}
