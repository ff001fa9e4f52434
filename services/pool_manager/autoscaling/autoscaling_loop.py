"""Asks each pool's Autoscaler at each interval, in the replica that holds the lease.

What comes of it is one compare-and-set of the pool's record, as of a person's `scale`; bringing the
pool to that size is the reconciler's work. A source that does not answer, or an autoscaler that
raises, leaves its pool as it is.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from schemas.autoscaling_advice import AutoscalingAdvice
from schemas.pool_records import PoolRecord
from schemas.settings import Settings
from services.bus.leases import Lease
from services.bus.port import Bus
from services.pool_manager.autoscaling.autoscaler_plugins import Finder, Found
from services.pool_manager.autoscaling.autoscalers import PoolMetrics, PoolState, stay
from services.pool_manager.autoscaling.gpu_utilization import PoolUtilization
from services.pool_manager.autoscaling.growth_effect import (
    BUSY_PERCENT,
    AddedNodes,
    is_awaited,
    judged,
    not_helped,
    with_growth,
    without_unserved,
)
from services.pool_manager.autoscaling.metrics_sources import Load, SourceError, for_pool
from services.pool_manager.autoscaling.scaling_decision import (
    decide,
    unanswered,
    unfollowed,
    with_advice,
)
from services.pool_manager.autoscaling.sizing_log import SizingLog
from services.pool_manager.planner import event_outbox
from services.pool_manager.pool_store import Store
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Conflict, Retry
from services.primitives.plugin_boundary import PluginFailedError

log = logging.getLogger(__name__)

INTERVAL_SECONDS_MIN: Final = 1.0


class Autoscaling:
    """Asks the autoscalers."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: Store,
        lease: Lease,
        finder: Finder,
        settings: Settings,
        reconcile: Callable[[str], Awaitable[None]],
        stopped: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Ask while `lease` is held; no pool that is `stopped`."""
        self._stopped = stopped
        self._bus = bus
        self._clock = clock
        self._store = store
        self._lease = lease
        self._finder = finder
        self._interval = max(float(settings.server.autoscale_interval), INTERVAL_SECONDS_MIN)
        self._reconcile = reconcile
        self._used: dict[str, PoolUtilization] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, asyncio.Task[None]] = {}
        """Pools that are being asked about in tasks of their own."""
        self._decisions = SizingLog()

    async def run(self) -> None:
        """Ask at each interval, for ever."""
        try:
            while True:
                await self._clock.sleep(self._interval)
                if self._lease.held:
                    await self._round()
                else:
                    self._stop()
        finally:
            self._stop()

    def _stop(self) -> None:
        """Leave the samples to the replica that holds the lease."""
        for task in (*self._following.values(), *self._waiting.values()):
            task.cancel()
        self._following.clear()
        self._used.clear()

    async def _round(self) -> None:
        try:
            records = await self._store.pools()
        except BusError as error:
            log.info("autoscaling put off: %s", error)
            return
        for record in records:
            if self._stopped(record.name):
                continue
            found = self._finder.of(record) if record.spec.autoscaling else None
            if found is None or not found.may_wait:
                await self._attempt(record, found)
            elif record.name not in self._waiting:
                # It may take long, and the other pools do not wait for it.
                task = asyncio.create_task(self._attempt(record, found))
                self._waiting[record.name] = task
                task.add_done_callback(partial(self._waited, record.name))

    def _waited(self, pool: str, _: "asyncio.Task[None]") -> None:
        self._waiting.pop(pool, None)

    async def _attempt(self, record: PoolRecord, found: Found | None) -> None:
        try:
            await self._look(record, found)
        except (BusError, Retry, Conflict) as error:
            log.info("not scaled", extra={"pool": record.name, "reason": str(error)})
        except Exception:
            log.exception("pool %s is not scaled; the others are", record.name)

    async def _look(self, record: PoolRecord, found: Found | None) -> None:
        if found is not None and found.autoscaler is not None:
            await self._one(record.name, found)
        elif not (record.spec.autoscaling or record.spec.idle_after) and record.advice is not None:
            await self._note(record.name, None)

    async def _one(self, pool: str, found: Found) -> None:
        load, silent = await self._load(pool, found)
        stored = await self._store.pool(pool)
        if stored is None:
            return
        record, revision = stored
        metrics = self._metrics(pool, for_pool(load, record.spec.labels), silent)
        now, kind, again = self._clock.now(), found.kind, self._interval
        added = self._added(record)
        if not silent:
            record = judged(record, metrics, added, now)
        unhelped = not_helped(record, metrics, added.idle)
        state = self._state(record, without_unserved(metrics, unhelped))
        try:
            recommended = await found.recommend(state)
        except PluginFailedError as error:
            await self._note(pool, unanswered("failed", kind, str(error), now, again))
            return
        if is_awaited(record, metrics, recommended.target_nodes):
            recommended = stay(state, "whether the last growth helped is not known yet")
        change = decide(record, revision, recommended, kind, now)
        advice = unfollowed(record, recommended, kind, now, again)
        if change is None:
            if silent:
                advice = unanswered("source", kind, silent, now, again)
            if record == stored[0]:
                await self._note(pool, advice)
            else:
                await self._store.save_pool(with_advice(record, advice) or record, revision)
                await self._reconcile(pool)
            self._decisions.log(kind, state, recommended, None, advice)
            return
        # Its event is kept in the record, and published by the reconciler.
        grown = with_growth(change.record, record.desired, metrics, now)
        await self._store.save_pool(event_outbox.pending_events(grown, [change.event]), revision)
        self._decisions.log(kind, state, recommended, change, None)
        await self._reconcile(pool)

    async def _note(self, pool: str, advice: AutoscalingAdvice | None) -> None:
        """Write down what is not followed, where that is news."""
        stored = await self._store.pool(pool)
        if stored is not None and (record := with_advice(stored[0], advice)) is not None:
            await self._store.save_pool(record, stored[1])

    def _state(self, record: PoolRecord, metrics: PoolMetrics) -> PoolState:
        return PoolState(
            pool=record.name,
            current_nodes=record.desired,
            ready_nodes=len(self._serving(record.name)),
            min_nodes=record.spec.min_nodes,
            max_nodes=record.spec.max_nodes,
            gpus_per_node=self._gpus_per_node(record),
            metrics=metrics,
            interval_seconds=self._interval,
            now=self._clock.now(),
        )

    def _added(self, record: PoolRecord) -> AddedNodes:
        """Return what came of the last growth."""
        growth, at = record.growth, self._clock.now().timestamp()
        used = self._watched(record.name)
        admitted = {
            node.node: node.admitted_at
            for node in self._store.nodes.of(record.name)
            if growth is not None and node.state == "active"
            if node.admitted_at and node.admitted_at >= growth.at
        }
        return AddedNodes(
            admitted=tuple(admitted.values()),
            least_busy=used.least_busy(admitted, at),
            idle=used.count(self._serving(record.name), at, BUSY_PERCENT),
        )

    def _serving(self, pool: str) -> list[str]:
        """Nodes that work can be placed on."""
        return [
            node.node
            for node in self._store.nodes.of(pool)
            if node.state == "active" and not node.cordoned and not node.lost
        ]

    def _gpus_per_node(self, record: PoolRecord) -> int:
        """As configured, else as the pool's nodes report."""
        nodes = self._store.nodes.of(record.name)
        return record.spec.gpu_count or max((len(each.gpus) for each in nodes), default=0)

    def _metrics(self, pool: str, load: Load, silent: str) -> PoolMetrics:
        used = self._watched(pool)
        serving = self._serving(pool)
        busy = load.utilization
        if busy is None:
            busy = used.now(serving, self._clock.now().timestamp())
        # A silent source's own utilization is not known: the agents' is no continuation of it.
        history = used.noted(None if silent else busy, len(serving))
        return PoolMetrics(
            utilization=busy,
            pending_jobs=load.pending_jobs,
            queue_depth=load.queue_depth,
            waiting=load.waiting,
            busy_nodes=load.busy_nodes,
            not_for_nodes=load.not_for_nodes,
            not_for_pool=load.not_for_pool,
            source_problem=silent,
            utilization_history=tuple(each for each, _ in history),
            ready_nodes_history=tuple(ready for _, ready in history),
        )

    def _watched(self, pool: str) -> PoolUtilization:
        """The pool's samples, followed from now on."""
        task = self._following.get(pool)
        if task is None or task.done():
            if task is not None and not task.cancelled() and (error := task.exception()):
                log.warning("samples of pool %s: %s; followed again", pool, error)
            self._used.setdefault(pool, PoolUtilization(self._bus, pool))
            self._following[pool] = asyncio.create_task(self._used[pool].follow())
        return self._used[pool]

    async def _load(self, pool: str, found: Found) -> tuple[Load, str]:
        """What the pool's source knows, and why it knows nothing."""
        if found.source is None:
            return Load(), ""
        try:
            return await found.source.load(pool), ""
        except SourceError as error:
            reason = str(error) or "it says no reason"
            log.warning("pool %s: its queue is not known: %s", pool, reason)
            return Load(), reason
