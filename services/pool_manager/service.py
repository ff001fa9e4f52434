"""The pool-manager's shell: node events, requests, sagas and timers come in; sagas begin.

One process of any number: every decision about a pool is a compare-and-set of its record, every
step of a saga a guarded append. The lease is only for the periodic look that makes good what a
crashed replica left half done.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from schemas.node_events import NodeEvent, Registered
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import PoolRecord
from schemas.saga_log_entries import TimerDue, timer_codec
from schemas.settings import Settings
from schemas.stored_messages import decode_stored
from schemas.topology import POOL_NODE_EVENTS, POOL_REQUESTS, POOL_SAGAS, POOL_TIMERS
from services.bus.leases import Lease
from services.bus.record_bucket import retry_conflicts
from services.pool_manager.answer_store import AnswerStore
from services.pool_manager.autoscaling.autoscaler_plugins import Finder, check_autoscaling
from services.pool_manager.autoscaling.autoscaling_loop import Autoscaling
from services.pool_manager.configured_pools import ConfiguredPools
from services.pool_manager.decision_log import log_event
from services.pool_manager.drill_endpoint import DrillOrders
from services.pool_manager.dry_runs import DryRuns
from services.pool_manager.fleet_stops import FleetStops
from services.pool_manager.hardware_store import HardwareList
from services.pool_manager.heartbeat_reader import HeartbeatTimes
from services.pool_manager.identity_acceptance import IdentityOrders
from services.pool_manager.idle_watch import IdleWatch
from services.pool_manager.instance_verifier import Verifier
from services.pool_manager.node_adoption import NodeAdoption
from services.pool_manager.node_event_limit import SENDER_LIMIT, node_of
from services.pool_manager.node_rebuilder import NodeRebuilder
from services.pool_manager.planner import node_projection
from services.pool_manager.planner.admission import rack_admission
from services.pool_manager.planner.node_identity import identity_facts
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.safety.holds import hold_event, with_hold
from services.pool_manager.planner.sizing.open_sagas import numbered
from services.pool_manager.plugin_switches import PluginSwitches
from services.pool_manager.pool_requests import PoolRequests
from services.pool_manager.pool_store import Store
from services.pool_manager.price_watch import PriceWatch
from services.pool_manager.queries import Queries
from services.pool_manager.reconciler import TIMER_OWNER, Reconciler
from services.pool_manager.remediator_plugins import Remediators
from services.pool_manager.removal_proposals import RemovalProposals
from services.pool_manager.requests import pool_apply
from services.pool_manager.requests.request_decisions import decide, saga_asked_about
from services.pool_manager.requests.request_replies import (
    QueuedRequest,
    RequestDecision,
    pool_of_request,
    read_stored_request,
)
from services.pool_manager.restore_detector import RestoreDetector
from services.pool_manager.saga_auditor import SagaAuditor
from services.pool_manager.saga_effects import SagaEffects
from services.pool_manager.saga_interventions import UndoPutOff
from services.pool_manager.unknown_nodes import UnknownNodes
from services.primitives.errors import BusError, Reject, Retry, Unavailable, UnreadableRecord
from services.runtime.consumer_loop import Consumer, Received
from services.runtime.event_publisher import publish_event
from services.runtime.failure_register import unreadable
from services.runtime.process import Context, Service
from services.runtime.stop_watch import StopWatch
from services.saga.coordinator import Coordinator
from services.saga.definitions import DEFINITIONS
from services.saga.saga_state import SagaState
from services.settings.problem_list import ProblemList

log = logging.getLogger(__name__)

LOGS: Final = "saga logs"
UNRECORDED: Final = "instances without nodes"
RESYNC_SECONDS: Final = 5.0
FIRST_RETRY_SECONDS: Final = 0.5
"""Of the first look, where the bus was away: what the last replica left waits for it."""
PREPARE_RETRY_SECONDS: Final = 0.25
BEATS_AWAITED: Final = 1.5
"""Heartbeat intervals in which every agent that is connected beats."""
REBUILT_SECONDS: Final = 0.2
"""Before a request that waits for the records is read again."""


async def build(context: Context) -> Service:
    """Put the service together; its pools are recorded before it takes its first message."""
    manager = PoolManager(context)
    await manager.prepare()
    return manager.service()


def check(settings: Settings, file: Path | None) -> None:
    """Raise ConfigurationError with every remediator, autoscaler and source that is wrong."""
    problems = ProblemList()
    for name, spec in settings.pools.items():
        with problems.collecting():
            Remediators({name: spec}, file)
        check_autoscaling(spec, name, file, problems)
    problems.raise_found()


class PoolManager:
    """Everything the pool-manager does, put together."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._bus = context.bus
        self._failures = context.instruments.failures
        self._put_off: dict[str, float] = {}
        """Pools and sagas that could not be processed -> when they are tried again."""
        self._clock = context.clock
        self.store = Store(context.bus, context.settings.budget)
        self._unknown = UnknownNodes(self.store)
        self._configured = ConfiguredPools(context, self.store)
        self._lease = Lease(context.bus, context.clock, "pool-manager.resync", context.replica)
        self._idle = IdleWatch(context.bus, context.clock, self.store, self._lease)
        self._stops = StopWatch(context.bus)
        self._prices = PriceWatch(context.bus, context.clock, self.store, self._lease)
        self._answers = AnswerStore(
            *(context.bus, context.clock, self.store, context.replica, self._stops)
        )
        self._reconciler = Reconciler(
            *(context.bus, context.clock, self.store),
            lambda: self._coordinator,
            Remediators(context.settings.pools, context.settings_file, context.plugins).of,
            float(context.settings.agent.heartbeat_ttl),
            *(self._idle.due, self._answers.note, self._stops),
        )
        self._fleet_stops = FleetStops(
            *(context.bus, context.clock, self.store, self._stops, self._reconciler.would_begin),
            frozenset(context.settings.providers),
        )
        self._hardware = HardwareList(context.bus, context.clock)
        self._effects = SagaEffects(
            context.bus, self.store, self._hardware, self._reconciler.reconcile
        )
        self._coordinator = Coordinator(
            *(context.bus, context.clock, DEFINITIONS, self._look, self._effects.project),
            TIMER_OWNER,
            make_up=self._effects.make_up,
            confirm=self._reconciler.interventions.confirm,
        )
        self._auditor = SagaAuditor(
            *(context.bus, context.clock, self.store, self._coordinator, self._effects),
            self._reconciler.begin_again,
        )
        self._pools = PoolRequests(
            *(context.clock, self.store, context.settings, context.settings_file)
        )
        self._finder = Finder(context.settings, context.settings_file, context.plugins)
        self._autoscaling = Autoscaling(
            *(context.bus, context.clock, self.store, self._lease, self._finder),
            *(context.settings, self._reconciler.reconcile, self._fleet_stops.stops_pool),
        )
        self._rebuilder = NodeRebuilder(context.bus, context.clock, self.store)
        self._detector = RestoreDetector(
            *(context.bus, context.clock, self.store),
            BEATS_AWAITED * float(context.settings.agent.heartbeat_interval),
        )
        self._adoption = NodeAdoption(
            *(context.bus, context.clock, self.store),
            *(self._rebuilder.last_events, self._reconciler.reconcile),
            float(context.settings.agent.heartbeat_ttl),
        )
        self._verifier = Verifier(
            context.bus, context.clock, self.store, self._lease, self._reconciler.reconcile
        )

    def service(self) -> Service:
        """Return the consumers, loops and endpoints."""
        about, stops = (self._bus, self._clock, self.store), self._stops.state
        return Service(
            description="Brings pools to their size and replaces what is unhealthy",
            consumers=(
                Consumer(
                    durable=POOL_NODE_EVENTS,
                    decode=decode_stored,
                    handle=self.on_node_event,
                    key=node_of,
                    limit=SENDER_LIMIT,
                ),
                Consumer(
                    durable=POOL_REQUESTS,
                    decode=lambda stored: read_stored_request(stored, is_open=self._bus.is_open),
                    handle=self.on_request,
                    key=pool_of_request,
                ),
                self._coordinator.consumer(POOL_SAGAS),
                Consumer(
                    durable=POOL_TIMERS,
                    decode=lambda stored: timer_codec.decode(stored.data),
                    handle=self.on_timer,
                    key=lambda stored: stored.subject,
                ),
            ),
            tasks=(
                *(self.store.nodes.run, self.store.health.run, self._hardware.view.run),
                *(self._stops.run, self._lease.keep, self._resync_for_ever),
                *(self._verifier.run, self._autoscaling.run, self._answers.run),
                partial(self._idle.run, self._reconciler.reconcile),
                partial(self._prices.run, self._reconciler.reconcile),
            ),
            endpoints={
                **Queries(
                    *(self.store, self._clock, self._context.settings, self._configured.warning),
                    HeartbeatTimes(self._bus, self._clock),
                    self._answers,
                ).endpoints(),
                **DryRuns(*about, self._pools, self._coordinator.state, stops).endpoints(),
                **self._hardware.endpoints(),
                **IdentityOrders(*about).endpoints(),
                **self._adoption.endpoints(),
                **PluginSwitches(self._bus, self._clock).endpoints(),
                **RemovalProposals(*about, stops).endpoints(),
                **DrillOrders(*about, stops).endpoints(),
                **self._fleet_stops.endpoints(),
            },
            close=self._close,
        )

    async def _close(self) -> None:
        await self._finder.close()
        await self._lease.release()

    async def _look(self, state: SagaState, seen: NodeRecord | None) -> NodeRecord | None:
        """The node a waiting step is about: the one that comes, else the one that comes back."""
        params, name = state.params, state.params.new_node or state.params.node
        is_it = seen is not None and (seen.pool, seen.node) == (params.pool, name)
        found = seen if is_it else await self.store.fresh_node(params.pool, name)
        return await self._placed(await self._hardware.looked_up(found))

    async def _placed(self, node: NodeRecord | None) -> NodeRecord | None:
        """A node that is still to be admitted, with whether it is where it belongs."""
        if node is None or node.state == "active" or node.launch is None:
            return node
        found = self.store.last_read(node.pool) or await self.store.pool(node.pool)
        record = found[0] if found is not None else None
        if record is None or record.spec.nodes != "launched":
            return node
        if record.spec.rack.nodes <= 1 and not record.spec.placement.required:
            return node
        await self.store.nodes.caught_up()
        others = self.store.nodes.of(node.pool)
        reason = rack_admission.why_misplaced(node, others, record)
        return msgspec.structs.replace(node, misplaced_reason=reason)

    # --- start --------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Give the bus its fleet id, and record the configured pools."""
        while True:
            try:
                await self._stops.read()
                await self._configured.record()
            except (Unavailable, UnreadableRecord) as error:
                found = [unreadable(error)] if isinstance(error, UnreadableRecord) else []
                self._failures.update("start", found)
                log.warning("cannot record the pools yet: %s", error)
                await self._clock.sleep(PREPARE_RETRY_SECONDS)
            else:
                self._failures.update("start", ())
                return

    # --- what comes in ------------------------------------------------------------------------

    async def on_node_event(self, received: Received[NodeEvent]) -> None:
        """Take a node's event into its record; then the saga that waits for the node goes on."""
        event, stored_at = received.message, received.stored.time
        if node_of(received.stored) != node_key(event.pool, event.node):
            raise Reject(f"says it is about {event.pool}/{event.node}; its subject says otherwise")

        def changed(record: NodeRecord | None) -> NodeRecord | None:
            after = node_projection.apply_event(record, event, stored_at, self.store.owners.of)
            if after is not None and after is not record and after.health_at == event.time:
                trace = received.stored.headers.get("traceparent", "")
                return msgspec.structs.replace(after, health_trace=trace)
            return after

        record, _, written = await self.store.changed_node(event.pool, event.node, changed)
        if record is None:
            await self._unknown.take(event)
            return
        for fact in identity_facts(record, event, stored_at):
            await publish_event(self._bus, fact)
        if record.saga:
            seen = record if written else None
            await self._coordinator.advance(record.saga, fresh=True, seen=seen)
        if not isinstance(event, Registered):
            await self._reconciler.reconcile(event.pool)

    async def on_request(self, received: Received[QueuedRequest]) -> None:
        """Answer one request; what it opened is recorded before the answer is published."""
        asked = received.message
        async with self.store.deciding(asked.pool):
            of_pool = asked.verb in pool_apply.VERBS
            answer = await (self._pools.answer(asked) if of_pool else self._answer(asked))
        if answer.hold is not None:
            await publish_event(self._bus, hold_event(answer.hold, asked.id, self._clock.now()))
        for event in (answer.event, *answer.more):
            await publish_event(self._bus, event)
            log_event(event)
        if answer.record is not None:
            await self._reconciler.reconcile(asked.pool)

    async def _answer(self, asked: QueuedRequest) -> RequestDecision:
        async def attempt() -> RequestDecision:
            snapshot = await self.store.snapshot(asked.pool)
            if not self.store.trusted:
                raise Retry("records that were lost are being rebuilt", REBUILT_SECONDS)
            state = await self._saga_asked_about(asked, snapshot) if snapshot else None
            answer = decide(asked, snapshot, self._clock.now(), state)
            if answer.entry is not None and state is not None:
                await self._coordinator.intervene(state, answer.entry)
            if (hold := answer.hold) is not None:
                # The pool's record is then written as it is: a replica that decided on the node as
                # it was before is refused, and decides again.
                await self.store.change_node(hold.pool, hold.node, partial(with_hold, hold=hold))
            if answer.record is not None and snapshot is not None:
                record = numbered(snapshot.record, answer.record)
                await self.store.save_pool(record, snapshot.revision)
            return answer

        return await retry_conflicts(attempt, f"pool {asked.pool}")

    async def _saga_asked_about(
        self, asked: QueuedRequest, snapshot: PoolSnapshot
    ) -> SagaState | None:
        """The log that a request is about, as it is now; begun first where that is still due.

        No request is refused because our own record is behind the log: it is answered when the
        record has caught up.
        """
        saga = saga_asked_about(asked, snapshot)
        if not saga:
            return None
        state = await self._coordinator.state(saga)
        if state is None and saga in snapshot.record.open:
            await self._reconciler.start_open(snapshot.record)
            state = await self._coordinator.state(saga)
        if saga in snapshot.record.open and (state is None or state.ended):
            why = "has no log" if state is None else "has ended"
            raise Retry(f"{saga} {why}, and the record of pool {asked.pool} has it open still")
        return state

    async def on_timer(self, received: Received[TimerDue]) -> None:
        """A step's deadline, or the moment at which a pool is to be looked at again."""
        due, fired_at = received.message, received.stored.time
        if due.saga:
            await self._coordinator.on_timer(due, fired_at)
        if due.pool:
            await self._reconciler.reconcile(due.pool)

    # --- the periodic look --------------------------------------------------------------------

    async def _resync_for_ever(self) -> None:
        """Make good what a crashed replica left between two writes.

        The first look needs no lease: whatever it decides is guarded like everything else.
        """
        first = True
        while True:
            shortened = self._coordinator.shortened
            if first or self._lease.held or shortened or not self.store.trusted:
                try:
                    await self._resync()
                    first = False
                except (BusError, Retry) as error:
                    log.warning("resync put off: %s", error)
            await self._clock.sleep(FIRST_RETRY_SECONDS if first else RESYNC_SECONDS)

    async def _resync(self) -> None:
        await self._fleet_stops.keep()
        lost = self.store.losses and not self.store.trusted
        if lost or not await self.store.fleet_is_recorded():
            await self._configured.record()
        if not self.store.trusted:
            await self._regain_trust()
        await self._in_isolation(LOGS, self._auditor.audit_logs)
        await self._in_isolation(UNRECORDED, self._rebuilder.rebuild_missing)
        seen = {LOGS, UNRECORDED}
        for record in await self.store.pools():
            seen.add(f"pool {record.name}")
            await self._in_isolation(
                f"pool {record.name}", partial(self._reconciler.reconcile, record.name)
            )
            seen |= await self._audit(record)
        for about in self._put_off.keys() - seen:
            del self._put_off[about]
            self._failures.end_work(about)
        stores = (self.store, self.store.nodes, self.store.health, self._hardware.view)
        found = [unreadable(each) for store in stores for each in store.unreadable.values()]
        self._failures.update("records", found)

    async def _regain_trust(self) -> None:
        """Record again what was lost, before anything is decided: at the start, and after a loss.

        A node that runs without a record would be launched once more.
        """
        pools = await self.store.pools()
        await self.store.nodes.caught_up()
        losses = self.store.losses
        self._coordinator.forget_cached()
        self._reconciler.forget_begun()
        await self._detector.await_heartbeats()
        outdated = bool(await self._detector.forgotten_nodes())
        await self._rebuilder.rebuild(pools, outdated=outdated)
        await self._detector.detect(pools)
        self.store.date(losses)
        await self._in_isolation(LOGS, self._auditor.audit_logs)
        for record in await self.store.pools():
            await self._audit(record)
        self.store.trust(losses)

    async def _audit(self, record: PoolRecord) -> set[str]:
        """Compare a pool's records with its sagas' logs; return what it was about."""
        about = f"nodes of pool {record.name}"
        seen = {about}
        for saga, opened in record.open.items():
            if not self.store.may_be_open(record.name, saga):
                continue  # it has ended since
            audit = partial(self._auditor.audit_saga, record.name, saga, opened)
            with suppress(UndoPutOff):
                await self._in_isolation(f"saga {saga}", audit)
            seen.add(f"saga {saga}")
        await self._in_isolation(about, partial(self._auditor.audit_nodes, record))
        return seen

    async def _in_isolation(self, about: str, work: Callable[[], Awaitable[object]]) -> None:
        """Process one pool or saga; what it raises is reported, and it is tried again later."""
        now = self._clock.monotonic()
        if now < self._put_off.get(about, 0.0):
            return
        self._put_off.pop(about, None)
        if not await self._failures.attempt(about, work):
            self._put_off[about] = now + self._failures.retry_seconds(about)
