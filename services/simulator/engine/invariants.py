"""What must never be, looked at after every step; and what must be so when all has come to rest.

Truth is what the simulated cloud, workload system and machines are really like; the services'
records are what is held against it. The first violation ends the run.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from schemas import subjects
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.node_events import Lost, Preempting, Returned, Verdict, node_codec
from schemas.node_records import node_key
from schemas.saga_log_entries import (
    SagaDone,
    SagaEntry,
    SagaStarted,
    SagaUnwound,
    StepExpired,
    StepStarted,
    StepSucceeded,
    saga_codec,
)
from schemas.topology import DEAD, DURABLES, EVENTS, HEALTH, INSTANCES, SAGAS
from services.bus.port import Stored
from services.pool_manager.sagas import DEFINITIONS
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine.announced_notices import AnnouncedNotices
from services.simulator.engine.scripted_agents import ScriptedAgents
from services.simulator.engine.simulated_cloud import SimulatedCloud
from services.simulator.engine.simulated_workload import SimulatedWorkload
from services.simulator.engine.simulation_context import SimulationContext
from services.simulator.engine.stored_records import StoredRecords
from services.simulator.engine.virtual_time import moment

RESETS_EACH: Final = 3
"""Resets and reboots for each replacement that may be: what the budget says by default."""
STORED_WITHIN_SECONDS: Final = 15.0
"""The rate counts decisions; this much later at most, where all is slow, a saga's log begins."""
CALLED_OFF_WITHIN_SECONDS: Final = 45.0
"""So long after a silent node was told to be back its replacement may still go on: whoever is to
call it off may be away."""
CLOCK_SECONDS: Final = 1.0
"""So much may lie between a service's look at the clock and what it then has stored."""
SILENT_SECONDS: Final = 15.0
"""A node that has not been heard for so long may be taken for lost."""

_instances = decoder(InstanceRecord)
_health = decoder(HealthRecord)


class ViolationError(AssertionError):
    """An invariant does not hold; `about` names the nodes and sagas that it is about."""

    def __init__(self, text: str, *about: str) -> None:
        """Say what does not hold."""
        super().__init__(text)
        self.about = about


class Invariants:
    """Looks at everything that is stored and at every effect."""

    def __init__(
        self,
        simulation: SimulationContext,
        cloud: SimulatedCloud,
        workload: SimulatedWorkload,
        agents: ScriptedAgents,
        pool: str,
    ) -> None:
        """Compare what is stored in `simulation` with what is true."""
        self._simulation = simulation
        self._cloud = cloud
        self._workload = workload
        self._agents = agents
        self._pool = pool
        self._records = StoredRecords(simulation.server)
        self.open: dict[str, SagaStarted] = {}
        """Sagas that have begun and not ended, by their logs."""
        self._begun_at: dict[str, datetime] = {}
        """Saga -> when its first entry was stored: services' clocks are wrong."""
        self._carried_out: dict[str, str] = {}
        """A person's request -> the saga that it began."""
        self._out_before: set[str] = set()
        """Sagas whose node was out of service before they began."""
        self._silent_then: set[str] = set()
        """Sagas whose node was silent, or recorded as lost, when they began."""
        self._heard: dict[str, float] = {}
        """When a node was told to be back, until it is told to be lost again."""
        self._barred: dict[str, float] = {}
        """Saga -> when it passed what cannot be taken back."""
        self._promoted: set[str] = set()
        """Sagas whose spare has gone into service: it is a node like any other from then on."""
        self.allowed: int = 1
        self.rate_max = 0
        """Nodes replaced within the window at most; 0: no bound."""
        self.window_seconds = 0.0
        self._begun: dict[bool, list[float]] = {False: [], True: []}
        """When replacements were begun, and resets and reboots."""
        self.drain_seconds = 0.0
        self._verdicts: dict[str, str] = {}
        self.left_cordoned: dict[str, None] = {}
        """Nodes that a person took out of service, and is to give back in the end."""
        self.spares = 0
        self.struck: set[str] = set()
        """Nodes whose hardware has ever failed."""
        self.announced: set[str] = set()
        """Nodes that the cloud has ever said it would take."""
        self._notices = AnnouncedNotices()
        self._drains_since: dict[str, datetime] = {}
        """Saga -> when its drain began."""
        self.broken: ViolationError | None = None
        """The first violation."""
        simulation.watchers.append(self._stored)

    def _fail(self, text: str, *about: str) -> None:
        if self.broken is None:
            self.broken = ViolationError(text, *about)
            self._simulation.note(f"VIOLATION: {text}")

    # --- after each thing stored --------------------------------------------------------------

    def _stored(self, stream: str, stored: Stored) -> None:
        if stream == SAGAS.name:
            self._saga(stored)
        elif stream == f"KV_{INSTANCES.name}" and stored.data:
            self._instance(_instances.decode(stored.data))
        elif stream == f"KV_{HEALTH.name}" and stored.data:
            self._judged(_health.decode(stored.data))
        elif stream == EVENTS.name:
            self._event(stored)

    def _saga(self, stored: Stored) -> None:
        entry = saga_codec.decode(stored.data)
        if not isinstance(entry, SagaEntry):
            self._fail(f"{stored.subject} holds no entry")
            return
        if isinstance(entry, SagaDone | SagaUnwound):
            ended = self.open.pop(entry.saga, None)
            # A node that was well is given back; a sick one's cordon is left to whoever asked.
            asked = ended is not None and ended.params.by and not ended.params.restores_service
            if ended is not None and asked and isinstance(entry, SagaUnwound):
                self.left_cordoned[ended.params.node] = None
        if isinstance(entry, StepSucceeded) and entry.step == "promote":
            self._promoted.add(entry.saga)
        self._drained(entry, stored.time)
        pivot = isinstance(entry, StepSucceeded) and entry.step == "admit"
        if pivot or (isinstance(entry, StepStarted) and entry.step == "terminate"):
            self._barred.setdefault(entry.saga, self._simulation.now())
        if not isinstance(entry, SagaStarted):
            return
        params = entry.params
        for saga, other in self.open.items():
            if self._about(other) & self._about(entry):
                self._fail(f"{entry.saga} begins while {saga} is open", entry.saga, params.node)
        if params.by and self._carried_out.setdefault(entry.cause, entry.saga) != entry.saga:
            other_ = self._carried_out[entry.cause]
            self._fail(f"{entry.saga} and {other_} begin for one request", entry.saga, params.node)
        self.open[entry.saga] = entry
        self._begun_at[entry.saga] = stored.time
        if DEFINITIONS[entry.kind].remediates and not params.by:
            self._disrupts(entry)

    def _drained(self, entry: SagaEntry, at: datetime) -> None:
        """The work is waited for until its time is over, or the cloud takes the node."""
        if isinstance(entry, StepStarted) and entry.step == "drain":
            self._drains_since[entry.saga] = at
        if not isinstance(entry, StepExpired) or entry.step != "drain":
            return
        saga = self.open[entry.saga]
        node, lasted = saga.params.node, at - self._drains_since[saga.saga]
        full = lasted >= timedelta(seconds=saga.params.drain_timeout_seconds - CLOCK_SECONDS)
        cut = saga.params.drain == "deadline" and not full and self._standing(node)
        if cut and not self._notices.takes(node, at):
            seconds = lasted.total_seconds()
            self._fail(f"the drain of {node} was cut short after {seconds:.0f} s", node, saga.saga)

    def _disrupts(self, entry: SagaStarted) -> None:
        """A node is taken out of service; one that was out already is taken out no more."""
        node = entry.params.node
        record = self._records.node(node_key(entry.params.pool, node))
        if record is not None and record.cordoned:
            self._out_before.add(entry.saga)
        machine = self._agents.named(node)
        lost = record is not None and record.lost
        if lost or (
            machine and self._simulation.now() - machine.last_heartbeat_at > SILENT_SECONDS
        ):
            self._silent_then.add(entry.saga)
        self._rate(entry)
        out = [
            saga
            for saga, each in self.open.items()
            if DEFINITIONS[each.kind].remediates
            and not each.params.by
            and saga not in self._out_before
        ]
        # The cloud waits for no budget, so neither does who leaves ahead of it.
        bound = entry.saga in out and node not in self.announced
        if bound and len(out) > self.allowed:
            self._fail(
                f"{len(out)} nodes are out of service where {self.allowed} may be: "
                f"{', '.join(out)}",
                *out,
            )

    def _rate(self, entry: SagaStarted) -> None:
        now, remedies = self._simulation.now(), DEFINITIONS[entry.kind].in_place
        window = self.window_seconds - STORED_WITHIN_SECONDS
        recent = [each for each in self._begun[remedies] if now - each < window]
        self._begun[remedies] = [*recent, now]
        most = self.rate_max * (RESETS_EACH if remedies else 1)
        if entry.params.node in self.announced:
            return
        if most and len(recent) >= most:
            self._fail(
                f"{len(recent) + 1} nodes were {'reset or rebooted' if remedies else 'taken out'} "
                f"within {self.window_seconds:.0f} s where {most} may be",
                entry.saga,
            )

    def _instance(self, record: InstanceRecord) -> None:
        if record.state != "terminated":
            return
        if self._standing(record.instance):
            self._fail(f"{record.instance} is recorded as gone, and stands", record.instance)

    def _judged(self, record: HealthRecord) -> None:
        noted = [each.id for each in record.recent]
        if len(set(noted)) != len(noted):
            self._fail(f"a fault of {record.node} was judged twice: {noted}", record.node)

    def _event(self, stored: Stored) -> None:
        event = node_codec.decode(stored.data)
        if isinstance(event, Verdict) and event.fault and event.status == "unhealthy":
            # After an uncordon that it has outlived, a fault is told of once more.
            again = event.cause if event.cause.startswith("uncordoned-") else ""
            told = self._verdicts.setdefault(f"{event.node}/{event.fault}/{again}", event.id)
            if told != event.id:
                self._fail(f"two verdicts on {event.fault}: {told} and {event.id}", event.node)
        if isinstance(event, Preempting):
            self._notices.told(event, stored.time)
        if isinstance(event, Returned):
            self._heard[event.node] = self._simulation.now()
        if isinstance(event, Lost):
            self._heard.pop(event.node, None)

    # --- after each effect at the cloud -------------------------------------------------------

    def made(self, instance: Instance) -> None:
        """A machine was made."""
        name = instance.name
        if (standing := self._standing(name)) > 1:
            self._fail(f"{name} stands {standing} times", name)
        record = self._records.instance(node_key(instance.pool, name))
        if record is None:
            self._fail(f"{name} was made without a record", name)
        elif record.state == "terminated":
            self._fail(f"{name} was made after its record said that it is gone", name)
        coming = {each.params.new_node for each in self.open.values()}
        if name not in coming:
            self._fail(f"{name} was made, and no open saga brings it", name)

    def _standing(self, name: str) -> int:
        return sum(each.name == name for each in self._cloud.standing())

    def look(self) -> None:
        """Raise what has been found."""
        if self.broken is not None:
            raise self.broken

    def ending(self, instance: Instance) -> None:
        """A machine is being ended; who allows it?"""
        name = instance.name
        node = self._agents.named(name)
        record = self._records.node(node_key(instance.pool, name))
        if node is None or record is None or record.admitted_at is None:
            return  # it never was in service
        now = self._simulation.now()
        by = next((e for e in self.open.values() if e.params.node == name), None)
        silent_now = now - node.last_heartbeat_at > SILENT_SECONDS
        if by is None or not DEFINITIONS[by.kind].removes_node:
            self._fail(f"{name} is ended, and no open saga removes it", name)
            return
        silent = silent_now or (by.saga in self._silent_then and not self._heard_in_time(by))
        asked = bool(by.params.by) or by.kind == "scale-down"
        reason = name in self.struck or name in self.announced or node.broken
        if not asked and not reason and not record.lost and not silent:
            self._fail(f"{name} is ended on the health path, and is healthy", name, by.saga)
        ordered = self._workload.ordered_at.get(name)
        drained = self._workload.is_drained(name)
        patience = timedelta(seconds=self.drain_seconds)
        begun = self._begun_at[by.saga]
        waited = ordered is not None and moment(now) >= begun + patience
        late = moment(now) - begun >= patience
        # Ahead of the cloud there is less time; whether a drain was cut for that is looked at then.
        if not (drained or waited or late or name in self.announced):
            self._fail(f"{name} is ended before it was drained", name, by.saga)

    def _heard_in_time(self, saga: SagaStarted) -> bool:
        """Whether a silent node was back long enough for its replacement to be called off."""
        heard = self._heard.get(saga.params.node)
        barred = self._barred.get(saga.saga, self._simulation.now())
        return heard is not None and barred - heard > CALLED_OFF_WITHIN_SECONDS

    # --- at rest ------------------------------------------------------------------------------

    def unrest(self) -> list[str]:
        """Why the fleet is not at rest; empty: it is as it should be."""
        return list(self._unrest())

    def _unrest(self) -> Iterator[str]:
        pool = self._records.pool(self._pool)
        if pool is None:
            yield f"pool {self._pool} is not recorded"
            return
        for saga in sorted(set(pool.open) | set(self.open)):
            yield f"{saga} is open"
        if pool.breaker.state != "closed":
            yield f"the breaker is {pool.breaker.state}: {pool.breaker.reason}"
        standing = [each.name for each in self._cloud.standing()]
        if len(standing) != pool.desired + self.spares:
            wanted = f"{pool.desired} and {self.spares} spares are wanted"
            yield f"{len(standing)} instances stand where {wanted}: {standing}"
        spares = sum(each.spare for each in self._records.live_nodes())
        if spares != self.spares:
            yield f"{spares} nodes are spares where {self.spares} are wanted"
        for instance in self._cloud.standing():
            yield from self._of(instance)
        for record in self._records.instances():
            if record.state not in ("running", "terminated"):
                yield f"the instance {record.instance} is {record.state}: {record.error}"
            if record.state == "running" and record.instance not in standing:
                yield f"{record.instance} runs by its record, and does not stand"
        yield from self._left_behind(standing)

    def _of(self, instance: Instance) -> Iterator[str]:
        name = instance.name
        record = self._records.node(node_key(instance.pool, name))
        truth = self._agents.named(name)
        if truth is None or not truth.ready or truth.broken:
            yield f"{name} stands and is not fit to serve"
        if record is None or record.state != "active":
            yield f"{name} stands and is {record.state if record else 'not recorded'}"
        elif record.lost or record.health == "unhealthy" or record.saga:
            yield f"{name} is lost={record.lost} health={record.health} saga={record.saga!r}"
        elif record.spare and name not in self._workload.cordoned:
            yield f"the spare {name} takes work"
        elif not record.spare and (record.cordoned or name in self._workload.cordoned):
            yield f"{name} is cordoned: {self._workload.cordoned.get(name, 'by its record alone')}"

    def _left_behind(self, standing: list[str]) -> Iterator[str]:
        state = self._simulation.server.state
        for letter in state.streams[DEAD.name].sequences(subjects.DEAD):
            stored = state.streams[DEAD.name].messages[letter]
            yield f"a dead letter: {stored.data.decode('utf-8', 'replace')[:300]}"
        for durable in DURABLES:
            stream = state.streams[durable.stream]
            info = state.consumers[durable.stream][durable.name].info(stream)
            if durable.name in LISTENING and (info["num_pending"] or info["num_ack_pending"]):
                yield f"{durable.name} has something left to do"
        for record in self._records.live_nodes():
            if record.node not in standing:
                yield f"{record.node} is {record.state} by its record, and does not stand"

    def waits_for_a_person(self) -> int | None:
        """The size of a pool that launches no more, since its new nodes were refused; else None."""
        pool = self._records.pool(self._pool)
        given_up = pool is not None and pool.refusals >= pool.spec.admission.attempts
        return pool.desired if pool is not None and given_up else None

    def cordoned(self) -> set[str]:
        """Nodes that are cordoned, are no spares, and that nothing is under way about."""
        found = self._records.live_nodes()
        busy: set[str] = set()
        for each in self.open.values():
            busy |= self._about(each)
        return {
            each.node
            for each in found
            if each.cordoned and not each.spare and each.node not in busy
        }

    def _about(self, saga: SagaStarted) -> set[str]:
        """The nodes that nothing else may be about meanwhile."""
        params = saga.params
        promotes = "" if saga.saga in self._promoted else params.promotes
        return {params.node, params.new_node, promotes} - {""}


LISTENING: Final = frozenset(each.name for each in DURABLES if not each.name.startswith("metrics"))
"""Durables whose service takes part in the simulation."""
