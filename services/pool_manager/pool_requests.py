"""Makes and removes pools that operators request: the shell of `requests.pool_apply`.

The code that reads the configuration reads such a pool, too; it may name the providers of the
configuration, and no variable of this process's environment.
"""

from pathlib import Path

import msgspec

from schemas.operator_requests import ApplyRequest, RemoveRequest
from schemas.settings import REMEDIATOR_PLUGINS, Settings
from services.bus.record_bucket import retry_conflicts
from services.pool_manager.autoscaling.autoscaler_plugins import Found
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.remediator import BUILT_IN
from services.pool_manager.pool_store import Store
from services.pool_manager.requests import pool_apply
from services.pool_manager.requests.pool_apply import ParsedApply
from services.pool_manager.requests.request_replies import (
    QueuedRequest,
    RefusedError,
    RequestDecision,
    read_request,
)
from services.primitives.clock import Clock
from services.primitives.errors import ConfigurationError, Conflict
from services.settings.plugin_loader import load_plugin
from services.settings.settings_file import requested_pool
from services.settings.stored_pools import stored_spec


class PoolRequests:
    """Answers `apply` and `remove`."""

    def __init__(
        self,
        clock: Clock,
        store: Store,
        settings: Settings,
        file: Path | None,
    ) -> None:
        """`settings`: its pools cannot be changed here, and its providers may be named."""
        self._clock = clock
        self._store = store
        self._settings = settings
        self._directory = file.parent if file else Path()

    async def answer(self, asked: QueuedRequest) -> RequestDecision:
        """Decide and write; the answer is to be published then."""

        async def attempt() -> RequestDecision:
            snapshot = await self._store.snapshot(asked.pool)
            answer = await self.decide(asked, snapshot)
            if answer.record is None:
                return answer
            if snapshot is not None:
                await self._store.save_pool(answer.record, snapshot.revision)
            elif not await self._store.create_pool(answer.record):
                raise Conflict(f"pool {asked.pool} exists already")
            return answer

        return await retry_conflicts(attempt, f"pool {asked.pool}")

    async def decide(self, asked: QueuedRequest, snapshot: PoolSnapshot | None) -> RequestDecision:
        """Decide about a pool as it is in the snapshot, and write nothing."""
        configured, now = asked.pool in self._settings.pools, self._clock.now()
        request = _read(asked)
        if isinstance(request, RemoveRequest):
            return pool_apply.removed(asked, request, snapshot, now, configured=configured)
        return pool_apply.applied(
            asked,
            self._wanted(asked.pool, request),
            snapshot,
            now,
            configured=configured,
            mode=self._settings.mode,
            removal=None if snapshot else await self._store.removal(asked.pool),
        )

    def _wanted(self, pool: str, request: ApplyRequest | str) -> ParsedApply:
        if isinstance(request, str):
            return ParsedApply(ApplyRequest(spec={}), None, request)
        try:
            spec = requested_pool(pool, request.spec, self._settings, self._directory)
            load_plugin(REMEDIATOR_PLUGINS, spec.health.remediation, None, BUILT_IN, "bus")
            Found(msgspec.structs.replace(spec, metrics=None), pool, None, origin="bus")
        except ConfigurationError as error:
            key = error.key.removeprefix(f"pools.{pool}").lstrip(".")
            return ParsedApply(request, None, str(ConfigurationError(error.problem, key=key)))
        return ParsedApply(request, stored_spec(spec))


def _read(asked: QueuedRequest) -> ApplyRequest | RemoveRequest | str:
    """The request, or what is wrong with it."""
    try:
        found = read_request(asked)
    except RefusedError as error:
        return error.reason
    assert isinstance(found, ApplyRequest | RemoveRequest)
    return found
