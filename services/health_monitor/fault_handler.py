"""Handles what the health-monitor consumes: faults, registrations, uncordons, ends, timers.

The shell around `core`: each message is judged and decided on inside the store's compare-and-set,
verdicts go out under the id of what caused them. It decides nothing itself.
"""

import logging
from collections.abc import Callable, Hashable, Mapping
from datetime import timedelta
from typing import Final

import msgspec

from schemas import subjects
from schemas.enums import HealthStatus
from schemas.health_records import HealthRecord
from schemas.held_conditions import ConditionList
from schemas.messages import Invalid, Message, UnknownType
from schemas.node_events import (
    BootChecked,
    ConditionEnded,
    DrillStarted,
    Fault,
    MachineRefused,
    NodeEvent,
    Registered,
    Terminated,
    Uncordoned,
)
from schemas.node_records import NodeRecord, node_key
from schemas.saga_log_entries import TimerDue, timer_codec
from schemas.settings import HealthSpec, Settings
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS
from services.bus.port import Bus, Stored
from services.health_monitor.health_store import Decide, HealthStore
from services.health_monitor.rules import job_faults, node_health, open_conditions
from services.health_monitor.rules.delayed_conditions import delayed
from services.health_monitor.rules.drill_faults import drill_fault, is_drill, limited
from services.health_monitor.rules.fault_history import fault_of_boot, of_machine
from services.health_monitor.rules.gpu_health import ACTION_RANK
from services.health_monitor.rules.health_policy import Judgement, Policy
from services.health_monitor.rules.health_state import working_of
from services.health_monitor.rules.job_faults import JobFaultHistory
from services.health_monitor.rules.level_faults import is_over
from services.health_monitor.verdict_publisher import HealthInstruments, Performer
from services.primitives.clock import Clock
from services.primitives.errors import Retry
from services.runtime.consumer_loop import Received
from services.runtime.tracing import traceparent
from services.settings.drain_warnings import cordons_gpus

EARLIER: Final = timedelta(hours=1)
"""Longer than a machine waits for its adoption."""
SKEW: Final = timedelta(minutes=1)
"""Between the clocks of nats-server and the pool-manager, which noted the registration."""
FAULTS_MAX: Final = 256
"""Read of one machine; a GPU that is lost is among its first."""
log = logging.getLogger(__name__)

STATUS_RANK: Final[Mapping[HealthStatus, int]] = {
    "unknown": 0,
    "healthy": 0,
    "degraded": 10,
    "unhealthy": 20,
}


class EarlierFaults:
    """Reads the stored faults of a boot.

    Others may give the name of a node again before the cloud reports the first machine gone. What
    the second reports until then is taken for the first's, and is forgotten with it.
    """

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock

    async def registration(self, node: NodeRecord) -> tuple[Stored, Registered] | None:
        """The stored message with which a node's boot registered; None: it is not kept."""
        if node.registered_at is None:
            return None
        subject = subjects.node_event(node.pool, node.node, "registered")
        found = await self._bus.read_batch(
            EVENTS.name, subject, after=node.registered_at - SKEW, count=FAULTS_MAX
        )
        for stored in found:
            event = decode_stored(stored)
            if isinstance(event, Registered) and event.boot_id == node.boot_id:
                return stored, event
        return None

    async def read(self, pool: str, node: str, boot: str) -> list[tuple[Stored, Fault]]:
        """The faults that a boot has reported, oldest first, of the last EARLIER."""
        subject = subjects.node_event(pool, node, "fault")
        found = await self._bus.read_batch(
            EVENTS.name, subject, after=self._clock.now() - EARLIER, count=FAULTS_MAX
        )
        decoded = ((stored, decode_stored(stored)) for stored in found)
        return [
            (stored, fault)
            for stored, fault in decoded
            if isinstance(fault, Fault) and fault.boot_id == boot and not is_drill(fault)
        ]


class FaultHandler:
    """Judges what is reported of nodes."""

    def __init__(
        self,
        store: HealthStore,
        performer: Performer,
        policy: Callable[[], Policy],
        settings: Settings,
        instruments: HealthInstruments,
        jobs: JobFaultHistory,
        earlier: EarlierFaults,
    ) -> None:
        """`policy`: the one in force now; `jobs`: what their other nodes have."""
        self._performer = performer
        self._store = store
        self._policy = policy
        self._settings = settings
        self._cordons_gpus = {
            name for name, spec in settings.pools.items() if cordons_gpus(settings, spec)
        }
        self._instruments = instruments
        self._jobs = jobs
        self._earlier = earlier

    async def handle(self, received: Received[NodeEvent]) -> None:
        """Handle one message of HEALTH_EVENTS."""
        event = received.message
        seen = node_health.Trigger(event.id, received.stored.sequence, received.stored.time)
        match event:
            case Fault() if is_drill(event):
                return  # DrillStarted has been judged; an agent's own word for one is not taken
            case Fault():
                await self._fault_or_end(event, seen, first=received.deliveries == 1)
            case DrillStarted():
                await self._drill(event, seen)
            case ConditionEnded():
                await self._change(
                    event.pool,
                    event.node,
                    lambda record: open_conditions.decide_ended(record, event, seen),
                    boot=event.boot_id,
                )
            case BootChecked(ok=True):
                await self._over(fault_of_boot(event), seen)
            case BootChecked():
                await self._fault(fault_of_boot(event), seen, first=True)
            case Registered():
                await self._repeat_earlier(event)
                await self._change(
                    event.pool,
                    event.node,
                    lambda record: node_health.decide_registered(
                        of_machine(record, event, seen.sequence), event, seen
                    ),
                    boot=event.boot_id,
                )
            case Uncordoned():
                await self._uncordoned(event, seen)
            case MachineRefused():
                await self._refuse(event, seen)
            case Terminated():
                await self._store.remove(event.pool, event.node)
            case _:
                return

    async def listed(
        self, pool: str, node: str, listed: ConditionList | None, seen: node_health.Trigger
    ) -> bool:
        """Apply the conditions that a sample lists; False: they are of another boot, or older."""
        taken = True

        def decide(record: HealthRecord) -> node_health.Decision:
            nonlocal taken
            decided = open_conditions.decide_listed(record, listed, seen, self._judge(pool))
            taken = decided is not None
            return decided or (record, ())

        await self._change(pool, node, decide)
        return taken

    async def judge_again(self, pool: str, node: str, seen: node_health.Trigger) -> None:
        """Judge by another policy what holds on a node."""
        await self._change(
            pool,
            node,
            lambda record: open_conditions.decide_again(record, seen, self._judge(pool)),
        )

    async def _uncordoned(self, event: Uncordoned, seen: node_health.Trigger) -> None:
        """Clear the node; what still holds is judged at once."""

        def decide(record: HealthRecord) -> node_health.Decision:
            record, effects = node_health.decide_uncordoned(record, event, seen)
            record, more = open_conditions.decide_again(record, seen, self._judge(event.pool))
            return record, (*effects, *more)

        await self._change(event.pool, event.node, decide)

    async def register_again(self, node: NodeRecord) -> bool:
        """Handle a node's registration once more; False: it is not kept."""
        found = await self._earlier.registration(node)
        if found is None:
            return False
        stored, event = found
        await self.handle(Received(event, stored, deliveries=2))
        return True

    async def handle_timer(self, received: Received[TimerDue]) -> None:
        """Look at a node again: something that degraded it has worn off, or a delay is over."""
        due = received.message
        # Sequences of TIMERS are not those of EVENTS, so this one must not be remembered.
        seen = node_health.Trigger(f"{due.id}-{received.stored.sequence}", 0, received.stored.time)
        await self.review(due.pool, due.node, seen)

    async def review(self, pool: str, node: str, seen: node_health.Trigger) -> None:
        """Look at what wears off on a node, or begins to count."""
        await self._change(
            pool,
            node,
            lambda record: open_conditions.decide_reviewed(record, seen, self._judge(pool)),
        )

    async def _repeat_earlier(self, event: Registered) -> None:
        """Judge what an adopted node's machine reported before it was, or was again, a node.

        Its name was another node's; or its launch was undone, and operators adopt what it left.
        """
        pool = self._settings.pools.get(event.pool)
        launched = pool is None or pool.nodes == "launched"
        if launched and not await self._store.is_in_service(event.pool, event.node):
            return  # its launch is under way: all that it reports comes after its registration
        if await self._store.is_new(event.pool, event.node, event.boot_id):
            for stored, fault in await self._earlier.read(event.pool, event.node, event.boot_id):
                seen = node_health.Trigger(fault.id, stored.sequence, stored.time)
                await self._fault_or_end(fault, seen, first=False)

    async def _refuse(self, event: MachineRefused, seen: node_health.Trigger) -> None:
        """Judge the node's own machine alone, and again what it had reported before."""
        pool, node = event.pool, event.node
        await self._change(
            pool, node, lambda record: node_health.decide_machine_refused(record, event, seen)
        )
        judged = {note.id for note in (await self._store.read(pool, node)).record.recent}
        for stored, fault in await self._earlier.read(pool, node, event.machine.boot_id):
            if fault.id not in judged:
                # Its verdict is another fact than the one that the second machine has undone.
                again = node_health.Trigger(f"{event.id}-{fault.id}", 0, stored.time)
                await self._fault_or_end(fault, again, first=False)

    async def _fault_or_end(self, fault: Fault, seen: node_health.Trigger, *, first: bool) -> None:
        if is_over(fault):
            await self._over(fault, seen)
        else:
            await self._fault(fault, seen, first=first)

    async def _over(self, fault: Fault, seen: node_health.Trigger) -> None:
        def decide(record: HealthRecord) -> node_health.Decision:
            return node_health.decide_over(record, fault, seen)

        await self._change(fault.pool, fault.node, decide, boot=fault.boot_id)

    async def _fault(self, fault: Fault, seen: node_health.Trigger, *, first: bool) -> None:
        policy, health = self._policy(), self._health_of(fault.pool)
        judged: Judgement | None = None

        def decide(record: HealthRecord) -> node_health.Decision:
            nonlocal judged
            judged = self._judged(policy, record, fault, seen)
            if first and job_faults.waits(fault, judged) and not node_health.applied(record, seen):
                raise Retry(f"{fault.job}: what its other nodes have", job_faults.WAIT_SECONDS)
            return node_health.decide_fault(
                record,
                fault,
                judged,
                seen,
                unhealthy_after=health.unhealthy_after,
                cordons_gpus=fault.pool in self._cordons_gpus,
            )

        if fault.condition:
            await self._change(
                fault.pool,
                fault.node,
                lambda record: open_conditions.decide_begun(
                    record, fault, seen, self._judge(fault.pool)
                ),
                boot=fault.boot_id,
            )
            return
        await self._change(fault.pool, fault.node, decide, boot=fault.boot_id)
        if judged is not None:
            self._count(fault, judged)

    async def _drill(self, event: DrillStarted, seen: node_health.Trigger) -> None:
        """Report the fault of a drill, and judge it as far as the drill goes."""
        fault, policy = drill_fault(event), self._policy()
        health = self._health_of(event.pool)
        seen = node_health.Trigger(fault.id, seen.sequence, seen.now)

        def decide(record: HealthRecord) -> node_health.Decision:
            windows = working_of(record).windows
            judged = limited(policy.judge(fault, {}, seen.now), event, windows)
            return node_health.decide_fault(
                record, fault, judged, seen, unhealthy_after=health.unhealthy_after
            )

        await self._performer.report(fault)
        await self._change(event.pool, event.node, decide)

    def _health_of(self, name: str) -> HealthSpec:
        pool = self._settings.pools.get(name)
        return pool.health if pool is not None else HealthSpec()

    def _judge(self, pool: str) -> open_conditions.Judge:
        """Return what judges a pool's conditions by the policy in force."""
        policy, health = self._policy(), self._health_of(pool)

        def judge(
            record: HealthRecord, fault: Fault, seen: node_health.Trigger
        ) -> node_health.Decision:
            work = working_of(record)
            judged = policy.judge(fault, work.windows, seen.now)
            self._count(fault, delayed(work, fault, judged, seen.now.timestamp())[0])
            return node_health.decide_fault(
                record,
                fault,
                judged,
                seen,
                unhealthy_after=health.unhealthy_after,
                cordons_gpus=pool in self._cordons_gpus,
            )

        return judge

    def rank(self, event: NodeEvent) -> int:
        """Rank a message of a flooding node: what the policy would make of it alone."""
        fault = event
        if isinstance(event, BootChecked) and not event.ok:
            fault = fault_of_boot(event)
        if not isinstance(fault, Fault) or is_over(fault):
            return 0
        judged = self._policy().judge(fault, {}, fault.time)
        return STATUS_RANK[judged.result] + ACTION_RANK[judged.action]

    def _judged(
        self, policy: Policy, record: HealthRecord, fault: Fault, seen: node_health.Trigger
    ) -> Judgement:
        """What the policy makes of a fault, unless it is its job's."""
        windows = working_of(record).windows
        judged = policy.judge(fault, windows, seen.now)
        why = "" if judged.fatal else self._jobs.shared(fault, seen.now.timestamp())
        return job_faults.forgiven(judged, why, windows) if why else judged

    async def _change(
        self, pool: str, node: str, decide: Decide, *, boot: str | None = None
    ) -> None:
        def traced(record: HealthRecord) -> node_health.Decision:
            if boot and boot in record.detail.get("refused", ()):
                return record, ()
            after, effects = decide(record)
            if any(isinstance(effect, node_health.PublishVerdict) for effect in effects):
                after = msgspec.structs.replace(after, trace=traceparent())
            return after, effects

        await self._store.change(pool, node, traced, self._performer.perform, boot=boot)

    def _count(self, fault: Fault, judged: Judgement) -> None:
        self._instruments.judged.labels(fault.kind, judged.result).inc()
        for rule, reason in judged.raised:
            self._instruments.raised.labels(rule).inc()
            log.debug("condition raised", extra={"rule": rule, "reason": reason})


def decode_timer(stored: Stored) -> Message | UnknownType | Invalid:
    """Decode a timer that has fired."""
    return timer_codec.decode(stored.data)


def node_of(stored: Stored) -> str:
    """The node a fact is about: the key that keeps a node's facts in order."""
    subject = subjects.parse_node(stored.subject)
    return node_key(subject.pool, subject.node) if subject else stored.subject


def signature_of(event: NodeEvent) -> Hashable:
    """Return what equal messages of a node have in common; None: not the node's own message."""
    match event:
        case Fault():
            of_gpu = (event.gpu_index, event.pci)
            return event.kind, event.code, event.subcode, *of_gpu, is_over(event)
        case ConditionEnded():
            return "ended", event.condition, event.gpu_index
        case BootChecked(ok=ok):
            return "boot-checked", ok
        case Registered():
            return "registered"
        case _:
            return None


def timer_node_of(stored: Stored) -> str:
    """A timer's subject is one node's, so it keeps them in order."""
    return stored.subject
