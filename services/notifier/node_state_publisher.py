"""Publishes what workload systems say of nodes: their states, failed jobs, and gangs.

One replica does it at a time, under a lease. It keeps nothing: a replica that takes over compares
with the records again, and goes on after the last failure that was published.
"""

import asyncio
import hashlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from schemas.instance_records import InstanceRecord
from schemas.node_events import WorkFailed, WorkGangs, WorkloadState
from schemas.node_records import GANGS_MAX, NodeRecord, node_key
from schemas.node_work import RemainingWork
from schemas.topology import INSTANCES, NODES
from schemas.value_limits import NAME_CHARS_MAX
from services.bus.bucket_mirror import BucketView
from services.bus.port import Bus
from services.notifier.node_references import node_reference
from services.notifier.work_report import last_event
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import (
    FailedWork,
    NodeReference,
    NodeStateReporter,
    NodeWorkload,
    StepFailure,
    WorkloadAnswer,
    WorkloadNodeState,
)
from services.primitives.clock import Clock
from services.primitives.race import race
from services.runtime.event_publisher import publish_event

NODES_MAX: Final = 500
"""Nodes asked about at once; more are unhealthy only in a wave, which holds remediation."""
log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_SECONDS: Final = 5.0
"""Between two looks where the workload system does not report changes."""
GAP_SECONDS: Final = 0.5
"""Least time between two looks, however often it reports changes."""
AGAIN_SECONDS: Final = 10.0
"""Least time between two events about the state of one node: a flapping node does not flood."""
PENDING_SECONDS: Final = 600.0
"""After this time an event that the record still lacks is published again."""
FAILED_AGE_MAX: Final = timedelta(hours=1)
"""Older failures are not published of a node of which none was: it was just adopted."""
JOINS_WITHIN: Final = timedelta(minutes=2)
"""So long after its admission a node may be unknown to its workload system: slurmd may be late."""
GANGS: Final = "the workload system does not say which jobs share nodes; asking again"
STATES: Final = "the workload system does not say how its nodes are; asking again"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
PRESENT: Final = frozenset({"registered", "active", "leaving"})


async def nodes_by_reporter(
    notifiers: PoolNotifiers,
    nodes: Mapping[str, NodeRecord],
    instances: Mapping[str, InstanceRecord],
) -> dict[NodeStateReporter, dict[str, NodeReference]]:
    """Each notifier that reports on nodes, with those of these nodes that are of its pools."""
    pools: dict[str, dict[str, NodeReference]] = defaultdict(dict)
    for key, record in nodes.items():
        found = node_reference(record.pool, record.node, record, instances.get(key))
        pools[record.pool][key] = found
    reporters: dict[NodeStateReporter, dict[str, NodeReference]] = defaultdict(dict)
    for pool, references in pools.items():
        try:
            notifier = await notifiers.of(pool)
        except StepFailure:
            continue  # its cordons and drains report that
        if isinstance(notifier, NodeStateReporter):
            reporters[notifier] |= references
    return reporters


async def answers_of_each(
    reporters: Mapping[NodeStateReporter, dict[str, NodeReference]],
    ask: Callable[[NodeStateReporter, Sequence[NodeReference]], Awaitable[T]],
    failing: set[NodeStateReporter],
    problem: str,
) -> AsyncIterator[tuple[NodeStateReporter, dict[str, NodeReference], T]]:
    """Yield what each system answers about its nodes; one that fails is reported once.

    `failing`: those that failed the last time.
    """
    for reporter, references in reporters.items():
        try:
            answer = await ask(reporter, list(references.values()))
        except Exception as error:  # noqa: BLE001 - a notifier may be a third party's code
            if reporter not in failing:
                log.warning(problem, extra={"reason": str(error) or type(error).__name__})
            failing.add(reporter)
        else:
            failing.discard(reporter)
            yield reporter, references, answer


class GangPublisher:
    """Compares the gangs of unhealthy nodes with the records.

    Only those nodes are asked about, at an interval, so its cost does not grow with the fleet. What
    ran on a node when its drain began stays in its record until the saga ends, because others of
    the job may yet be found unhealthy.
    """

    def __init__(self, notifiers: PoolNotifiers, bus: Bus, clock: Clock) -> None:
        """Ask each pool's notifier, if it reports on nodes."""
        self._notifiers = notifiers
        self._bus = bus
        self._clock = clock
        self._published: dict[str, tuple[tuple[str, ...], float]] = {}
        """Node's key -> the gangs last published, and when."""

    async def run(
        self, nodes: BucketView[NodeRecord], instances: BucketView[InstanceRecord]
    ) -> None:
        """Compare for ever."""
        failing: set[NodeStateReporter] = set()
        while True:
            await nodes.caught_up()
            await instances.caught_up()
            keys = sorted(key for key, each in nodes.records.items() if is_asked_about(each))
            self._published = {
                key: last for key, last in self._published.items() if key in nodes.records
            }
            some = {key: nodes.records[key] for key in keys[:NODES_MAX]}
            reporters = await nodes_by_reporter(self._notifiers, some, instances.records)
            answered = answers_of_each(
                reporters, lambda each, asked: each.workloads(asked), failing, GANGS
            )
            async for _, asked, answers in answered:
                await self._compare(nodes.records, asked, answers)
            await self._clock.sleep(LOOK_SECONDS)

    async def _compare(
        self,
        records: Mapping[str, NodeRecord],
        asked: Mapping[str, NodeReference],
        answers: Mapping[str, WorkloadAnswer],
    ) -> None:
        now = self._clock.monotonic()
        for key, node in asked.items():
            answer, record = answers.get(node.node), records.get(key)
            if record is None or not isinstance(answer, NodeWorkload):
                continue
            gangs = gangs_of(record, answer)
            last, at = self._published.get(key, ((), float("-inf")))
            pending = last == gangs and now - at < PENDING_SECONDS
            if gangs == record.gangs or pending:
                continue
            time = self._clock.now()
            digest = hashlib.blake2b(f"{gangs} {time}".encode(), digest_size=6).hexdigest()
            event = WorkGangs(
                id=f"work-gangs-{node.node}-{digest}",
                pool=node.pool,
                node=node.node,
                time=time,
                gangs=gangs,
            )
            await publish_event(self._bus, event)
            self._published[key] = gangs, now


def is_asked_about(node: NodeRecord) -> bool:
    """Return whether a node is unhealthy, draining, or has gangs in its record. Pure."""
    draining = bool(node.saga) and node.cordoned
    unhealthy = node.health == "unhealthy" or node.lost
    in_service = node.state in ("active", "leaving")
    return in_service and (unhealthy or draining or bool(node.gangs))


def gangs_of(node: NodeRecord, answer: NodeWorkload) -> tuple[str, ...]:
    """The first few gangs on a node; during its saga also those that ran before. Pure."""
    before = node.gangs if node.saga else ()
    running = {each.gang[:NAME_CHARS_MAX] for each in answer.running if each.gang}
    return (*before, *sorted(running - set(before)))[:GANGS_MAX]


class NodeStatePublisher:
    """Compares the workload systems of all pools with the records."""

    def __init__(self, notifiers: PoolNotifiers, bus: Bus, clock: Clock) -> None:
        """Ask each pool's notifier, if it reports on nodes."""
        self._notifiers = notifiers
        self._bus = bus
        self._clock = clock
        self._published: dict[str, tuple[WorkloadState, float]] = {}
        """Node's key -> the last event about its state, and when it was published."""
        self._failures: dict[str, tuple[datetime, frozenset[str]]] = {}
        """Node's key -> time of the last failures published, and their IDs."""

    async def run(self) -> None:
        """Compare for ever."""
        nodes = BucketView(self._bus, NODES, NodeRecord)
        instances = BucketView(self._bus, INSTANCES, InstanceRecord)
        self._published.clear()
        self._failures.clear()
        gangs = GangPublisher(self._notifiers, self._bus, self._clock)
        done = await race(
            *(nodes.run(), instances.run()),
            *(self._look_for_ever(nodes, instances), gangs.run(nodes, instances)),
        )
        for each in done:
            if not each.cancelled():
                each.result()

    async def _look_for_ever(
        self, nodes: BucketView[NodeRecord], instances: BucketView[InstanceRecord]
    ) -> None:
        failing: set[NodeStateReporter] = set()
        while True:
            await asyncio.gather(nodes.caught_up(), instances.caught_up())
            present = {key: each for key, each in nodes.records.items() if each.state in PRESENT}
            reporters = await nodes_by_reporter(self._notifiers, present, instances.records)
            answered = answers_of_each(
                reporters, lambda each, asked: each.node_states(asked), failing, STATES
            )
            async for reporter, references, states in answered:
                for key, each in references.items():
                    record = nodes.records[key]
                    state = states.get(each.node) or unknown_state(record, self._clock.now())
                    if state is not None:
                        await self._compare(each, record, state, reporter.name)
            await self._clock.sleep(GAP_SECONDS)
            changes = (each.wait_for_node_change() for each in reporters if each not in failing)
            await race(self._clock.sleep(LOOK_SECONDS - GAP_SECONDS), *changes)

    async def _compare(
        self, node: NodeReference, record: NodeRecord, state: WorkloadNodeState, system: str
    ) -> None:
        key = node_key(node.pool, node.node)
        event = state_event(node, state, system, self._clock.now())
        last, at = self._published.get(key, (None, float("-inf")))
        age = self._clock.monotonic() - at
        # The record has an event a moment after it was published; or never, if it was rolled back.
        pending = last is not None and (record.workload_at or EPOCH) < last.time
        known = _said(last) if last and pending and age < PENDING_SECONDS else _recorded(record)
        if known != _said(event) and age >= AGAIN_SECONDS:
            await publish_event(self._bus, event)
            self._published[key] = event, self._clock.monotonic()
        if state.failed:
            await self._publish_failures(node, state.failed, system)

    async def _publish_failures(
        self, node: NodeReference, failed: Sequence[FailedWork], system: str
    ) -> None:
        key = node_key(node.pool, node.node)
        if key not in self._failures:
            last = await last_event(self._bus, WorkFailed, node.pool, node.node)
            since = last.time if last is not None else self._clock.now() - FAILED_AGE_MAX
            self._failures[key] = since, frozenset()
        for each in sorted(failed, key=lambda one: one.at):
            since, ids = self._failures[key]
            if not since <= each.at <= self._clock.now() or each.id in ids:
                continue
            await publish_event(self._bus, failure_event(node, each, system))
            same = ids if each.at == since else frozenset[str]()
            self._failures[key] = each.at, same | {each.id}


def unknown_state(node: NodeRecord, now: datetime) -> WorkloadNodeState | None:
    """Return what is said of a node unknown to its workload system; None: it may join soon. Pure.

    Without it a wrong name would show at the node's first cordon, when its hardware fails.
    """
    since = node.admitted_at
    if node.state != "active" or since is None or now - since < JOINS_WITHIN:
        return None
    reason = f"it has no node of this name; see `navarch workload check {node.pool}`"
    return WorkloadNodeState(ready=False, reason=reason)


def state_event(
    node: NodeReference, state: WorkloadNodeState, system: str, now: datetime
) -> WorkloadState:
    """Return the event about a state. Pure."""
    plain = state.ready and not state.cordoned
    return WorkloadState(
        id=f"workload-state-{node.node}-{now.timestamp():.6f}",
        pool=node.pool,
        node=node.node,
        time=now,
        system=system,
        ready=state.ready,
        cordoned=state.cordoned,
        reason="" if plain else " ".join(state.reason.split())[:NAME_CHARS_MAX],
        since=state.since if state.since and EPOCH <= state.since <= now else None,
    )


def failure_event(node: NodeReference, failed: FailedWork, system: str) -> WorkFailed:
    """Return the event about a failed job. Pure."""
    digest = hashlib.blake2b(f"{failed.id} {failed.at}".encode(), digest_size=6).hexdigest()
    work = RemainingWork(id=failed.id[:NAME_CHARS_MAX], owner=failed.owner[:NAME_CHARS_MAX])
    return WorkFailed(
        id=f"work-failed-{node.node}-{digest}",
        pool=node.pool,
        node=node.node,
        time=failed.at,
        system=system,
        work=work,
        reason=" ".join(failed.reason.split())[:NAME_CHARS_MAX],
    )


def _said(event: WorkloadState) -> tuple[bool, bool, str]:
    return event.ready, event.cordoned, event.reason


def _recorded(record: NodeRecord) -> tuple[bool, bool, str]:
    found = record.workload
    return (found.ready, found.cordoned, found.reason) if found else (True, False, "")
