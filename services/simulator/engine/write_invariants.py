"""Invariants of single writes check acknowledgements, compare-and-set, and rates.

An acknowledged message is never delivered again. So what it calls for must be stored by then, and
in order: a record that is written over by one that was decided on earlier loses what it had.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from schemas import subjects
from schemas.fault_signature import RENEWALS
from schemas.headers import EXPECTED_LAST_SUBJECT_SEQ
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.node_events import (
    Fault,
    Lost,
    NodeEvent,
    Registered,
    Returned,
    Verdict,
    WorkGangs,
    WorkloadState,
    node_codec,
)
from schemas.node_records import NodeRecord, node_key
from schemas.offering_records import prices_key
from schemas.pool_records import OpenSaga, PoolRecord, removed_key
from schemas.saga_log_entries import (
    WHOLE,
    SagaUnwinding,
    SagaUnwound,
    StepStarted,
    UndoStarted,
    saga_codec,
)
from schemas.topology import (
    BUCKETS,
    HEALTH_EVENTS,
    HEARTBEATS,
    INSTANCES,
    LEASES,
    NODES,
    NOTIFIER_STEPS,
    OFFERINGS,
    POOL_NODE_EVENTS,
    POOL_SAGAS,
    POOLS,
    PROVISIONER_STEPS,
    SAGAS,
    TIMERS,
)
from services.bus.memory.jetstream.publish_rules import fires_at
from services.bus.port import Stored
from services.pool_manager.planner.disruption_budget import slot_seconds
from services.saga.definitions import DEFINITIONS
from services.simulator.engine.invariants import CLOCK_SECONDS, Invariants
from services.simulator.engine.simulation_context import (
    SimulationContext,
    StoredRecords,
    written_pool,
)
from services.simulator.engine.virtual_time import moment

COMPARED: Final = frozenset(
    f"KV_{each.name}" for each in BUCKETS if each not in (HEARTBEATS, LEASES)
)
"""Buckets whose records are written over a revision alone."""
OBSERVED: Final = (
    f"$KV.{OFFERINGS.name}.{prices_key('')}",
    f"$KV.{POOLS.name}.{removed_key('')}",
)
"""Begins of the subjects that are not: the last observation counts, and replicas write the same."""
NEVER_BACK: Final = ("saga_entry", "sagas", "health_at", "liveness_at", "workload_at", "gangs_at")
"""Fields of a node's record that only grow."""
KEPT: Final[Mapping[type[NodeEvent], str]] = {
    Verdict: "health_at",
    Lost: "liveness_at",
    Returned: "liveness_at",
    WorkloadState: "workload_at",
    WorkGangs: "gangs_at",
}
"""Event -> the field of the node's record that has its time once it is taken in."""
ENDING: Final = ("terminating", "leaked", "terminated")

_nodes = decoder(NodeRecord)
_instances = decoder(InstanceRecord)


class AckInvariants:
    """Looks at every acknowledgement: what the message calls for is stored."""

    def __init__(
        self, simulation: SimulationContext, invariants: Invariants, *, adopts: Callable[[], bool]
    ) -> None:
        """`adopts`: whether others make the machines, and give their names again."""
        self._simulation = simulation
        self._invariants = invariants
        self._records = StoredRecords(simulation.server)
        self._adopts = adopts
        self._taken_in: set[int] = set()
        """Entries of SAGAS that the pool-manager has acknowledged."""
        self._checks: dict[str, Callable[[Stored], str]] = {
            POOL_SAGAS.name: self._timer,
            PROVISIONER_STEPS.name: self._answer,
            NOTIFIER_STEPS.name: self._answer,
            POOL_NODE_EVENTS.name: self._node,
            HEALTH_EVENTS.name: self._fault,
        }
        simulation.server.on_acknowledged = self._on_acknowledged

    def _on_acknowledged(self, stream: str, durable: str, sequence: int) -> None:
        check, held = self._checks.get(durable), self._simulation.server.state.streams.get(stream)
        stored = held.messages.get(sequence) if held is not None else None
        if durable == POOL_SAGAS.name:
            self._taken_in.add(sequence)
        known = self._invariants
        if check is None or stored is None or known.destroyed or known.restored:
            return
        if wrong := check(stored):
            about = stored.subject.split(".")
            known.fail(f"{durable}: {stored.subject} is acknowledged, and {wrong}", *about)

    def _is_last(self, stored: Stored, saga: str) -> bool:
        """Whether a saga's log ends with an entry: it has not gone on."""
        last = self._simulation.server.state.streams[SAGAS.name].last(subjects.saga_tree(saga))
        return last is not None and last.sequence == stored.sequence

    def _timer(self, stored: Stored) -> str:
        """A step that has a deadline has a timer, or an earlier one of its saga will do."""
        entry = saga_codec.decode(stored.data)
        if not isinstance(entry, StepStarted) or not self._is_last(stored, entry.saga):
            return ""
        first = min((each for each in (entry.overdue, entry.deadline) if each), default=None)
        if first is None or first <= self._now():
            return ""
        held = self._simulation.server.state.streams[TIMERS.name].messages.values()
        timers = (fires_at(each.headers) for each in held if f".{entry.saga}-" in each.subject)
        if any(at is not None and at <= first for at in timers):
            return ""
        if any(at <= first for at in self._still_to_store(entry.saga)):
            return ""
        return f"no timer fires at {first:%H:%M:%S}"

    def _still_to_store(self, saga: str) -> Iterator[datetime]:
        """Yield the moments of a saga's steps whose beginning is not acknowledged yet."""
        for stored in self._simulation.server.state.streams[SAGAS.name].messages.values():
            if stored.sequence in self._taken_in or f".{saga}." not in stored.subject:
                continue
            entry = saga_codec.decode(stored.data)
            if isinstance(entry, StepStarted):
                yield from (each for each in (entry.overdue, entry.deadline) if each is not None)

    def _has_ended(self, stored: Stored, saga: str) -> bool:
        """Whether a saga's log had its end before an entry, which an operator published again."""
        log = self._simulation.server.state.streams[SAGAS.name]
        ends = (log.last(subjects.saga_entry(saga, WHOLE, each)) for each in ("done", "unwound"))
        return any(each is not None and each.sequence < stored.sequence for each in ends)

    def _answer(self, stored: Stored) -> str:
        """A command is answered, or its saga has gone on without it."""
        entry = saga_codec.decode(stored.data)
        if not isinstance(entry, StepStarted | UndoStarted) or not self._is_last(
            stored, entry.saga
        ):
            return ""
        if self._has_ended(stored, entry.saga):
            return ""
        deadline = entry.deadline if isinstance(entry, StepStarted) else None
        early = timedelta(seconds=CLOCK_SECONDS + self._simulation.skew_seconds)
        if deadline is not None and self._now() >= deadline - early:
            return ""
        return "has no answer"

    def _node(self, stored: Stored) -> str:
        """A node's record has what an event says, or something later."""
        event = node_codec.decode(stored.data)
        if not isinstance(event, NodeEvent) or self._adopts():
            return ""
        record = self._records.node(node_key(event.pool, event.node))
        if record is None or record.state == "terminated":
            return ""
        if isinstance(event, Registered):
            return "" if record.registered_at is not None else "the node is not registered"
        field = KEPT.get(type(event), "")
        at: datetime | None = getattr(record, field) if field else event.time
        late = at is None or at < event.time
        return f"the record's {field} is {at}, of {event.time}" if late else ""

    def _fault(self, stored: Stored) -> str:
        """A node's health has taken in a fault."""
        event = node_codec.decode(stored.data)
        if not isinstance(event, Fault) or self._adopts():
            return ""
        if event.node in self._invariants.flooding:
            return ""  # some of a flood are set aside
        key = node_key(event.pool, event.node)
        health, node = self._records.health_of(key), self._records.node(key)
        if health is None or event.boot_id in health.detail.get("refused", ()):
            return ""
        if node is not None and node.identity is not None and node.identity.refuses(event.boot_id):
            return ""
        judged = {each.id for each in health.recent}
        if event.id in judged or stored.sequence in health.detail.get("sequences", ()):
            return ""
        return "the node's health does not have it"

    def _now(self) -> datetime:
        return moment(self._simulation.now())


class CompareInvariants:
    """Looks at every record that is written: nothing was written over unseen."""

    def __init__(self, simulation: SimulationContext, invariants: Invariants) -> None:
        self._invariants = invariants
        self._nodes: dict[str, NodeRecord] = {}
        self._instances: dict[str, InstanceRecord] = {}
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        known = self._invariants
        if stream not in COMPARED or not stored.data:
            return
        compared = EXPECTED_LAST_SUBJECT_SEQ in stored.headers
        if not compared and not stored.subject.startswith(OBSERVED):
            known.fail(f"{stored.subject} is written whatever is there", stored.subject)
        if known.destroyed or known.restored:
            self._nodes.clear()
            self._instances.clear()
        elif stream == f"KV_{NODES.name}":
            self._node(stored.subject, _nodes.decode(stored.data))
        elif stream == f"KV_{INSTANCES.name}":
            self._instance(stored.subject, _instances.decode(stored.data))

    def _node(self, key: str, record: NodeRecord) -> None:
        before, self._nodes[key] = self._nodes.get(key), record
        if before is None or before.state == "terminated":
            return
        for field in NEVER_BACK:
            was, now = getattr(before, field), getattr(record, field)
            if was is not None and (now is None or now < was):
                self._fail(record.node, field, was, now)

    def _instance(self, key: str, record: InstanceRecord) -> None:
        before, self._instances[key] = self._instances.get(key), record
        if before is None or before.token != record.token:
            return
        others = before.created_at not in (None, record.created_at)
        if others or before.provider_id not in ("", record.provider_id):
            return  # others have made another one of its name
        if before.state in ENDING and record.state in ("intended", "running"):
            self._fail(record.instance, "state", before.state, record.state)
        if record.launch_calls < before.launch_calls:
            self._fail(record.instance, "launch_calls", before.launch_calls, record.launch_calls)

    def _fail(self, name: str, field: str, was: Any, now: Any) -> None:
        self._invariants.fail(f"{name}: a write sets {field} back from {was} to {now}", name)


class RateInvariants:
    """Counts the sagas that a pool's rates count: those that disrupted nothing are given back."""

    def __init__(self, simulation: SimulationContext, invariants: Invariants) -> None:
        self._invariants = invariants
        self._begun: dict[str, dict[str, tuple[str, str]]] = {}
        """Pool -> saga -> the rate in which it counts, and its slot."""
        self._counted: set[str] = set()
        """Sagas that give back what they have not used; an operator's are counted for good."""
        self._undone: set[str] = set()
        """Sagas that ended because their nodes were not cordoned."""
        self._cancelled: set[str] = set()
        """Those that were cancelled go on counting."""
        simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if stream == SAGAS.name:
            entry = saga_codec.decode(stored.data)
            if isinstance(entry, SagaUnwinding) and entry.cancelled:
                self._cancelled.add(entry.saga)
            if isinstance(entry, SagaUnwound) and entry.step == "cordon":
                self._undone |= {entry.saga} - self._cancelled
        elif (record := written_pool(stream, stored)) is not None:
            self._compare(record)

    def _compare(self, record: PoolRecord) -> None:
        known = self._begun.setdefault(record.name, {})
        width = slot_seconds(float(record.spec.budget.window))
        for saga, opened in record.open.items():
            if opened.counted:
                self._counted.add(saga)
            if saga not in known:
                slot = str(math.floor(opened.since.timestamp() / width) * width)
                known[saga] = rate_that_counts(opened), slot
        if self._invariants.destroyed or self._invariants.restored:
            return
        for saga in (self._undone & self._counted & known.keys()) - record.open.keys():
            del known[saga]
        for name in ("disruptions", "resets", "voluntary"):
            for slot, count in getattr(record, name).items():
                begun = [saga for saga, each in known.items() if each == (name, slot)]
                if count > len(begun):
                    self._invariants.fail(
                        f"the {name} of {record.name} count {count} sagas where {len(begun)} "
                        f"have disrupted a node so: {', '.join(begun)}",
                        *begun,
                    )


def rate_that_counts(opened: OpenSaga) -> str:
    """Return in which rate a saga counts: what has no fault spends nothing that faults need."""
    if DEFINITIONS[opened.kind].in_place:
        return "resets"
    announced = bool(opened.notice) and opened.action == "none"
    return "voluntary" if announced or opened.fault_signature in RENEWALS else "disruptions"


class WriteInvariants:
    """Check all of them."""

    def __init__(
        self, simulation: SimulationContext, invariants: Invariants, *, adopts: Callable[[], bool]
    ) -> None:
        """`adopts`: whether others make the machines, and give their names again."""
        CompareInvariants(simulation, invariants)
        RateInvariants(simulation, invariants)
        AckInvariants(simulation, invariants, adopts=adopts)
