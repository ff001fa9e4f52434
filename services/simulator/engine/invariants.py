"""Checks what must hold after every step of any simulation.

The truth is the state of the simulated cloud, workload system and machines; what the services have
recorded is compared with it. The first violation ends the run.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Final

from schemas import subjects
from schemas.dead_letters import DeadLetter, dead_codec
from schemas.fault_signature import RACK, RENEWALS
from schemas.headers import TTL
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.node_events import NodeEvent, ProviderNotice, Verdict, node_codec
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import PoolRecord
from schemas.saga_log_entries import (
    SagaDone,
    SagaEntry,
    SagaStarted,
    SagaUnwinding,
    SagaUnwound,
    StepExpired,
    StepStarted,
    StepSucceeded,
    UndoStarted,
    saga_codec,
)
from schemas.topology import (
    DEAD,
    EVENTS,
    HEALTH,
    HEARTBEATS,
    INSTANCES,
    NODES,
    POOLS,
    REQUESTS,
    SAGAS,
)
from services.bus.port import Stored
from services.pool_manager.planner.node_counts import is_for_silence
from services.provisioner.provider_client.provider import Instance
from services.saga.definitions import DEFINITIONS
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.node_liveness import CALLED_OFF_WITHIN_SECONDS, NodeLiveness
from services.simulator.engine.simulated_cloud import SimulatedCloud
from services.simulator.engine.simulated_workload import SimulatedWorkload
from services.simulator.engine.simulation_context import SimulationContext, StoredRecords
from services.simulator.engine.tracked_sagas import (
    AnnouncedNotices,
    NodeRemovals,
    TrackedSagas,
    nodes_of,
)
from services.simulator.engine.virtual_time import moment

EVERYTHING: Final = "everything"
"""In place of a stream: all were set back together."""
RECORDS: Final = frozenset({f"KV_{NODES.name}", f"KV_{POOLS.name}"})
"""They say which sagas have ended, whatever SAGAS has lost."""
STORED_WITHIN_SECONDS: Final = 15.0
"""A saga's log starts at most so much after its decision; the rate's own counts are as coarse."""
CLOCK_SECONDS: Final = 1.0
"""Between a service's reading of the clock and the write that depends on it."""

_instances = decoder(InstanceRecord)
_health = decoder(HealthRecord)
_nodes = decoder(NodeRecord)


class ViolationError(AssertionError):
    """An invariant does not hold; `about` names the nodes and sagas that it is about."""

    def __init__(self, text: str, *about: str) -> None:
        super().__init__(text)
        self.about = about


class Invariants:
    """Checks every write and every effect."""

    def __init__(
        self,
        simulation: SimulationContext,
        cloud: SimulatedCloud,
        workload: SimulatedWorkload,
        agents: AgentMachines,
    ) -> None:
        """Compare what is stored in `simulation` with what is true."""
        self._simulation = simulation
        self._cloud = cloud
        self._workload = workload
        self._agents = agents
        self._records = StoredRecords(simulation.server)
        self.sagas = TrackedSagas()
        self._acted: dict[str, None] = {}  # sagas whose first step has begun
        self._admitted: set[str] = set()
        """Nodes that were ever in service, by NODES, whatever it has lost since."""
        self.destroyed: dict[str, None] = {}
        """Streams that were destroyed or set back."""
        self._gone: dict[str, float] = {}
        """Instance -> when its record said that it is gone."""
        self._records_lost = 0
        """How often the records that say which sagas have ended were lost by themselves."""
        self.restores = 0
        """How often everything was set back together."""
        self._carried_out: dict[str, str] = {}
        self._cancelled: set[str] = set()
        """Sagas that an operator cancelled."""
        """An operator's request -> the saga that it began."""
        self.liveness = NodeLiveness(simulation.now)
        self._barred: dict[str, float] = {}
        """Saga -> how long its node had been beating when it passed what cannot be taken back."""
        self._verdicts: dict[str, Verdict] = {}
        self.left_cordoned: dict[str, None] = {}
        """Nodes that an operator took out of service, and uncordons in the end."""
        self.broken_nodes: set[str] = set()
        """Nodes whose hardware has ever failed."""
        self.misreported: set[str] = set()
        """Healthy nodes whose kernel log has ever shown a fatal fault."""
        self.preempted: set[str] = set()
        """Nodes that the cloud has ever announced it would take."""
        self.flooding: set[str] = set()
        """Nodes whose agents have ever published garbage."""
        self._notices = AnnouncedNotices()
        self._removals = NodeRemovals()
        self._drains_since: dict[str, datetime] = {}
        """Saga -> when its drain began."""
        self._drains_expired: set[str] = set()
        """Sagas that stopped waiting for the work."""
        self.violation: ViolationError | None = None
        """The first one."""
        self.violated: asyncio.Future[None] | None = None
        """Resolved by the first violation."""
        simulation.watchers.append(self._on_stored)

    def fail(self, text: str, *about: str) -> None:
        """Record the first violation, and end the run."""
        if self.violation is None:
            self.violation = ViolationError(text, *about)
            self._simulation.note(f"VIOLATION: {text}")
            if self.violated is not None and not self.violated.done():
                self.violated.set_result(None)

    @property
    def restored(self) -> bool:
        """Return whether everything was ever set back together."""
        return self.restores > 0

    def heartbeats_lost(self) -> None:
        """The server lost the heartbeats: no node beats until its next one is stored."""
        self.liveness.forget()

    def on_lost(self, stream: str) -> None:
        """A stream was destroyed, or set back: what was known of its content is known no more."""
        if stream == EVERYTHING:
            self.restores += 1
            self.liveness.lost.clear()
            self._notices.restored()
            self.sagas.restored()
            self._records_lost -= len(RECORDS)  # with the logs: they agree
            return
        self.destroyed[stream] = None
        self._records_lost += stream in RECORDS
        if stream in (EVENTS.name, f"KV_{HEALTH.name}"):
            self._verdicts.clear()
        if stream == f"KV_{HEARTBEATS.name}":
            self.heartbeats_lost()
        if stream == REQUESTS.name:
            self._carried_out.clear()  # a later request gets the sequence of an earlier one
        if stream == SAGAS.name:
            held = self._simulation.server.state.streams.get(stream)
            messages = held.messages.values() if held else ()
            self.sagas.set_back(messages, recorded=not self._records_lost)

    # --- after each write -----------------------------------------------------------------------

    def _on_stored(self, stream: str, stored: Stored) -> None:
        self.liveness.stored(stream, stored)
        if self._simulation.server.refusing:
            self._removals.writes_refused = True
        if stream == SAGAS.name:
            self._saga(stored)
        elif stream == f"KV_{NODES.name}" and stored.data:
            node = _nodes.decode(stored.data)
            self._lifetime(node.state, stored)
            if node.admitted_at is not None:
                self._admitted.add(node.node)
        elif stream == f"KV_{INSTANCES.name}" and stored.data:
            instance = _instances.decode(stored.data)
            self._lifetime(instance.state, stored)
            self._instance(instance)
            if instance.state == "terminated":
                self._gone[instance.instance] = self._simulation.now()
        elif stream == f"KV_{HEALTH.name}" and stored.data:
            self._health(_health.decode(stored.data))
        elif stream == EVENTS.name:
            self._event(stored)
        elif stream == DEAD.name:
            self._letter(stored)

    def _letter(self, stored: Stored) -> None:
        found, fatal = dead_codec.decode(stored.data), self._simulation.fatal_messages
        if not isinstance(found, DeadLetter):
            return
        about = subjects.parse_node(found.subject)
        garbage = about is not None and about.node in self.flooding
        if not garbage and not fatal.wrote(found.durable, found.stream, found.sequence, found.data):
            self.fail(f"a dead letter: {stored.data.decode('utf-8', 'replace')[:300]}")

    def _saga(self, stored: Stored) -> None:
        entry = saga_codec.decode(stored.data)
        if not isinstance(entry, SagaEntry):
            self.fail(f"{stored.subject} holds no entry")
            return
        if isinstance(entry, SagaStarted):
            self._begin(entry)
        elif isinstance(entry, SagaDone | SagaUnwound):
            self._end(entry)
        elif isinstance(entry, SagaUnwinding) and entry.cancelled:
            self._cancelled.add(entry.saga)
        elif isinstance(entry, StepSucceeded) and entry.step == "promote":
            self.sagas.promote(entry.saga)
        elif isinstance(entry, StepSucceeded) and entry.step == "terminate":
            # Under a wrong ID the machine may be left, for a sweep or an operator to end.
            ended = self.sagas.started(entry.saga)
            self._removals.by[ended.params.node] = ended
        elif isinstance(entry, StepStarted | UndoStarted) and entry.saga in self.sagas.cut_short:
            self.fail(f"{entry.saga} has ended, and begins with {entry.step} again", entry.saga)
        self._drained(entry, stored.time)
        overdue = self._removals.overdue(entry, stored.time)
        if overdue and not self.destroyed:
            self.fail(overdue, entry.saga)
        if isinstance(entry, StepStarted) and entry.saga not in self._acted:
            self._acted[entry.saga] = None
            self._acts(self.sagas.started(entry.saga))
        pivot = isinstance(entry, StepSucceeded) and entry.step == "admit"
        if pivot or (isinstance(entry, StepStarted) and entry.step == "terminate"):
            node = self.sagas.started(entry.saga).params.node
            self._barred.setdefault(entry.saga, self.liveness.beating_seconds(node))

    def _acts(self, saga: SagaStarted) -> None:
        """A saga takes its first step; until then it changes nothing."""
        node, pool = saga.params.node, self._records.pool(saga.params.pool)
        if wrong := self.liveness.forbids(saga):
            self.fail(wrong, saga.saga, node)
        if pool is None or saga.params.by or not DEFINITIONS[saga.kind].remediates:
            return
        well = node in self.misreported - self.broken_nodes and self._cloud.count(node)
        if well and self._in_wave(saga, pool):
            self.fail(f"{saga.saga} begins for a wave of false reports", saga.saga, node)

    def _begin(self, entry: SagaStarted) -> None:
        params = entry.params
        for node in sorted(nodes_of(entry)):
            for saga in self.sagas.about.get(node, ()):
                # Its log is lost, and it begins again, also with the promotion that it has made.
                again = self.sagas.vanished.get(saga)
                if again is not None and again.params.promotes == node:
                    continue
                self.fail(f"{entry.saga} begins while {saga} is open", entry.saga, params.node)
        if params.by and self._carried_out.setdefault(entry.cause, entry.saga) != entry.saga:
            other = self._carried_out[entry.cause]
            self.fail(f"{entry.saga} and {other} begin for one request", entry.saga, params.node)
        self.sagas.begin(entry)

    def _end(self, entry: SagaDone | SagaUnwound) -> None:
        ended = self.sagas.end(entry)
        if ended is None:
            return
        params = ended.params
        if isinstance(entry, SagaDone) and DEFINITIONS[ended.kind].removes_node:
            self._removals.by[params.node] = ended
        # A node that was healthy is given back; an unhealthy one's cordon is left to the operator.
        asked = params.by or entry.saga in self._cancelled
        if isinstance(entry, SagaUnwound) and asked and not params.restores_service:
            self.left_cordoned[params.node] = None

    def _drained(self, entry: SagaEntry, at: datetime) -> None:
        """A drain ends when the work has left, at its deadline, or ahead of the cloud's notice."""
        if getattr(entry, "step", "") != "drain":
            return
        if isinstance(entry, StepStarted):
            # The published deadline counts from the decision, which a slow service stores later. By
            # a clock that is ahead it ends early too.
            self._drains_since[entry.saga] = min(entry.time, at)
        saga = self.sagas.started(entry.saga)
        if isinstance(entry, StepSucceeded) and saga.params.drain != "immediate":
            self._confirmed(saga)
        if not isinstance(entry, StepExpired):
            return
        self._drains_expired.add(entry.saga)
        node, lasted = saga.params.node, at - self._drains_since[saga.saga]
        full = lasted >= timedelta(seconds=saga.params.drain_timeout_seconds - CLOCK_SECONDS)
        in_time = saga.params.drain == "immediate" or (saga.params.drain == "deadline" and full)
        cut = not in_time and not entry.requested and self._cloud.running(node) > 0
        if cut and not self._notices.takes(node, at):
            seconds = lasted.total_seconds()
            self.fail(f"the drain of {node} was cut short after {seconds:.0f} s", node, saga.saga)

    def _confirmed(self, saga: SagaStarted) -> None:
        """The notifier reported that no work is left; the workload system must agree."""
        node = saga.params.node
        if self._exists(saga) and not self._workload.is_drained(node):
            self.fail(f"{node} is reported as drained, and has work", node, saga.saga)

    def _exists(self, saga: SagaStarted) -> bool:
        """Whether the machine of a saga's node exists, not only another with its name."""
        node = saga.params.node
        record = self._records.instance(node_key(saga.params.pool, node))
        if record is None or not record.provider_id:
            return bool(self._cloud.count(node))
        return record.provider_id in self._cloud.machines

    def _in_wave(self, entry: SagaStarted, pool: PoolRecord) -> bool:
        """Whether a saga was decided on when the incident of its fault was known and open."""
        incident = pool.incidents.get(entry.params.fault_signature)
        if incident is None or incident.released:
            return False
        late = timedelta(seconds=STORED_WITHIN_SECONDS + pool.spec.health.incident.window)
        return moment(self._simulation.now()) > incident.last + late

    def _lifetime(self, state: str, stored: Stored) -> None:
        if (TTL in stored.headers) != (state == "terminated"):
            self.fail(f"{stored.subject} is {state}: what is gone expires, and nothing else does")

    def _instance(self, record: InstanceRecord) -> None:
        # Others may have made another of its name.
        exists = (
            record.provider_id in self._cloud.machines
            if self._cloud.adopts
            else self._cloud.count(record.instance)
        )
        lied = self._cloud.lied_about(record.instance)
        if record.state == "terminated" and exists and not lied and not self._came_late(record):
            self.fail(f"{record.instance} is recorded as gone, and exists", record.instance)

    def _came_late(self, record: InstanceRecord) -> bool:
        """Whether its machine was made too late for the list that a removal waits for.

        A request that has left cannot be stopped. The cloud may act on that of a replica that was
        cut off once the launch has been given up for longer than lists lag: after the list, and
        before or after the record is written. A sweep removes the machine. One made earlier than
        that, or for a replica that was not cut off, must be in the list.
        """
        if record.instance not in self._cloud.cut_off or record.terminating_at is None:
            return False
        waits = timedelta(seconds=self._cloud.list_lag_seconds - CLOCK_SECONDS)
        machines = (each.instance for each in self._cloud.machines.values())
        made = [each.created_at for each in machines if each.name == record.instance]
        return all(at is not None and at >= record.terminating_at + waits for at in made)

    def _health(self, record: HealthRecord) -> None:
        faults = [each.id for each in record.recent]
        if len(set(faults)) != len(faults):
            self.fail(f"a fault of {record.node} was judged twice: {faults}", record.node)

    def _event(self, stored: Stored) -> None:
        event = node_codec.decode(stored.data)
        if isinstance(event, Verdict) and event.fault and event.status == "unhealthy":
            # A fault that outlives an uncordon is reported once more.
            again = event.cause if event.cause.startswith("uncordoned-") else ""
            first = self._verdicts.setdefault(f"{event.node}/{event.fault}/{again}", event)
            # One that was lost is published again with its time. An older one repeats it as the
            # correction of an earlier verdict, which a replica published and did not save.
            if event.time > first.time:
                self.fail(f"two verdicts on {event.fault}: {first.id}, {event.id}", event.node)
        if isinstance(event, ProviderNotice):
            self._notices.add(event, stored.time)
        if isinstance(event, NodeEvent):
            self.liveness.published(event)

    # --- after each effect at the cloud ---------------------------------------------------------

    def on_made(self, instance: Instance) -> None:
        """A machine was made."""
        name = instance.name
        # One that was stopped does no work: it is removed as a leftover, if it is not recorded.
        if (count := self._cloud.running(name)) > 1:
            self.fail(f"{name} exists {count} times", name)
        record = self._records.instance(node_key(instance.pool, name))
        if record is None:
            if f"KV_{INSTANCES.name}" not in self.destroyed:  # else the launch records it again
                self.fail(f"{name} was made without a record", name)
        elif (
            record.state == "terminated"
            and name not in self._cloud.cut_off
            # What was on its way to the cloud by then is removed once it is made.
            and self._cloud.sent.get(name, 0.0) > self._gone.get(name, 0.0)
        ):
            self.fail(f"{name} was made after its record said that it is gone", name)
        brought = any(each.params.new_node == name for each in self.sagas.acting_on(name))
        if not brought and name not in self._cloud.cut_off:
            self.fail(f"{name} was made, and no open saga brings it", name)

    def on_ending(self, instance: Instance) -> None:
        """A machine is being ended: a saga must allow it."""
        name, node = instance.name, self._agents.machine_of(instance.name)
        launched = not self._cloud.adopts
        if node is None or (launched and name not in self._admitted):
            return  # it never was in service
        serves = self._cloud.running(name) and self.liveness.beating_seconds(name) > 0
        if self.restored and not serves:
            return  # it was stopped or silent, and that it was in service is forgotten
        by = self.removal_of(name)
        if by is None or not DEFINITIONS[by.kind].removes_node:
            self.fail(f"{name} is ended, and no open saga removes it", name)
            return
        barred = self._barred.get(by.saga, self.liveness.beating_seconds(name))
        excused = name in self.liveness.expired and not (self.restored or self.destroyed)
        silent = is_for_silence(by.kind, by.params) and barred <= CALLED_OFF_WITHIN_SECONDS
        # Whether it is old enough, drifted, or of a rack with a fault, was checked at the decision.
        old = by.params.fault_signature in RENEWALS | {RACK}
        requested = bool(by.params.by) or by.kind == "scale-down" or old
        reason = node.broken or name in self.broken_nodes | self.preempted | self.misreported
        if not requested and not reason and (excused or not silent):
            self.fail(f"{name} is ended on the health path, and is healthy", name, by.saga)
        if self.drain_is_over(by):
            return  # whether the drain was cut short was checked when it ended
        if not self._workload.is_drained(name):
            self.fail(f"{name} is ended before it was drained", name, by.saga)

    def removal_of(self, name: str) -> SagaStarted | None:
        """The saga that is about a node, or has removed it."""
        sagas = self.sagas.acting_on(name)
        return next((e for e in sagas if e.params.node == name), self._removals.by.get(name))

    def drain_is_over(self, saga: SagaStarted) -> bool:
        """Return whether a saga waits for the work no longer, whatever is left of it."""
        return saga.params.drain == "immediate" or saga.saga in self._drains_expired

    def forget(self, name: str) -> None:
        """A machine has the name of an earlier one."""
        for known in (self._admitted, self.broken_nodes, self.misreported, self.preempted):
            known.discard(name)
        self.left_cordoned.pop(name, None)
