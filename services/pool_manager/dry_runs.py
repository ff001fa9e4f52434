"""Answers what a request would do: the query `dry-run`. Nothing is written."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

import msgspec

from schemas import subjects
from schemas.dry_run import DryRun, DryRunRequest
from schemas.stops import StopState
from services.bus.port import Bus, Endpoint, Headers
from services.pool_manager.heartbeat_reader import HeartbeatReader
from services.pool_manager.node_use_reader import NodeUseReader
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.sizing.pool_size import removable, resize
from services.pool_manager.pool_requests import PoolRequests
from services.pool_manager.pool_store import Store
from services.pool_manager.queries import UnknownNameError
from services.pool_manager.reconciler import saga_params
from services.pool_manager.requests import pool_apply
from services.pool_manager.requests.request_decisions import decide, saga_asked_about
from services.pool_manager.requests.request_dry_run import dry_run, ends_work, rehearsed
from services.pool_manager.requests.request_replies import RequestDecision
from services.primitives.clock import Clock
from services.saga.saga_state import SagaState

QUERY: Final = "dry-run"
OWNERS_SECONDS_MAX: Final = 5.0
"""For the workload system's answer about whose work would end: an operator waits for it."""


class DryRuns:
    """Decides as if a request had come."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: Store,
        pools: PoolRequests,
        log_of: Callable[[str], Awaitable[SagaState | None]],
        stops: Callable[[], StopState],
    ) -> None:
        """Answer from `store`; `log_of`: the log of a saga, where it has one.

        `bus`: by it the workload system is asked whose work an order would end.
        """
        self._use = NodeUseReader(bus, clock, HeartbeatReader(bus))
        self._clock = clock
        self._store = store
        self._pools = pools
        self._log_of = log_of
        self._stops = stops

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return what answers the query, by its subject."""
        return {subjects.query(QUERY): self._answer}

    async def _answer(self, data: bytes, _: Headers) -> bytes:
        request = msgspec.json.decode(data, type=DryRunRequest)
        await self._store.nodes.caught_up()
        pool = request.pool or self._pool_of(request.node)
        now = self._clock.now()
        asked = rehearsed(request, pool, now)
        snapshot = await self._store.snapshot(pool)
        if snapshot is not None:
            snapshot = replace(snapshot, stops=self._stops())
        if asked.verb in pool_apply.VERBS:
            answer = await self._pools.decide(asked, snapshot)
        else:
            saga = saga_asked_about(asked, snapshot) if snapshot is not None else ""
            log = await self._log_of(saga) if saga else None
            answer = decide(asked, snapshot, now, log)
        result = dry_run(request, asked, answer, snapshot, saga_params, now)
        nodes = await self._ended(result, answer, snapshot, now)
        return msgspec.json.encode(await self._with_owners(result, nodes))

    async def _ended(
        self, result: DryRun, answer: RequestDecision, snapshot: PoolSnapshot | None, now: datetime
    ) -> list[str]:
        """Return the nodes whose work would end, as far as it is decided now."""
        if not result.accepted or snapshot is None or answer.record is None:
            return []
        if result.node:
            return [result.node] if ends_work(result) else []
        snapshot = replace(snapshot, record=answer.record)
        decided = resize(snapshot, PoolPlan(record=answer.record), now)
        if free := removable(snapshot, decided, now):
            use = await self._use.read_with_work(result.pool, free)
            decided = resize(replace(snapshot, use=use), PoolPlan(record=answer.record), now)
        return [each.node for each in decided.start.values() if each.kind == "scale-down"]

    async def _with_owners(self, result: DryRun, nodes: list[str]) -> DryRun:
        if not nodes:
            return result
        found = await self._use.work(result.pool, nodes, OWNERS_SECONDS_MAX)
        return msgspec.structs.replace(result, owners=found.owners, owners_unknown=found.unknown)

    def _pool_of(self, node: str) -> str:
        for record in self._store.nodes.records.values():
            if record.node == node:
                return record.pool
        raise UnknownNameError(f"there is no node {node!r}; see navarch list")
