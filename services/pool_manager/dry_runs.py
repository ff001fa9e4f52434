"""Answers what a request would do: the query `dry-run`. Nothing is written."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from schemas import subjects
from schemas.dry_run import DryRunRequest
from schemas.stops import StopState
from services.bus.port import Endpoint, Headers
from services.pool_manager.pool_requests import PoolRequests
from services.pool_manager.pool_store import Store
from services.pool_manager.queries import UnknownNameError
from services.pool_manager.reconciler import saga_params
from services.pool_manager.requests import pool_apply
from services.pool_manager.requests.request_decisions import decide, saga_asked_about
from services.pool_manager.requests.request_dry_run import dry_run, rehearsed
from services.primitives.clock import Clock
from services.saga.saga_state import SagaState

QUERY: Final = "dry-run"


class DryRuns:
    """Decides as if a request had come."""

    def __init__(
        self,
        clock: Clock,
        store: Store,
        pools: PoolRequests,
        log_of: Callable[[str], Awaitable[SagaState | None]],
        stops: Callable[[], StopState],
    ) -> None:
        """Answer from `store`; `log_of`: the log of a saga, where it has one."""
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
        return msgspec.json.encode(dry_run(request, asked, answer, snapshot, saga_params, now))

    def _pool_of(self, node: str) -> str:
        for record in self._store.nodes.records.values():
            if record.node == node:
                return record.pool
        raise UnknownNameError(f"there is no node {node!r}; see navarch list")
