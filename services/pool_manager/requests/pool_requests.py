"""Makes and removes pools that people ask for: the shell of `applying`.

What they say of a pool is read by the code that reads the configuration; it may name the providers
of the configuration, and none of this process's environment.
"""

from pathlib import Path

from schemas.operator_requests import ApplyRequest, RemoveRequest
from schemas.settings import REMEDIATOR_PLUGINS, Settings
from services.bus.record_bucket import retry_conflicts
from services.pool_manager.autoscaling.autoscaler_plugins import Found
from services.pool_manager.planner.remediation.remediator import BUILT_IN
from services.pool_manager.pool_store import Store
from services.pool_manager.requests import pool_apply
from services.pool_manager.requests.pool_apply import Wanted
from services.pool_manager.requests.request_replies import Answer, Asked, RefusedError, read
from services.primitives.clock import Clock
from services.primitives.errors import ConfigurationError, Conflict
from services.settings.plugin_loader import load_plugin
from services.settings.settings_file import requested_pool


class PoolRequests:
    """Answers `apply` and `remove`."""

    def __init__(
        self,
        clock: Clock,
        store: Store,
        settings: Settings,
        file: Path | None,
    ) -> None:
        """`settings`: whose pools are nobody else's, and whose providers a pool may name."""
        self._clock = clock
        self._store = store
        self._settings = settings
        self._directory = file.parent if file else Path()

    async def answer(self, asked: Asked) -> Answer:
        """Decide and write; the answer is to be published then."""
        configured = asked.pool in self._settings.pools
        request = _read(asked)

        async def attempt() -> Answer:
            world, now = await self._store.world(asked.pool), self._clock.now()
            if isinstance(request, RemoveRequest):
                answer = pool_apply.removed(asked, request, world, now, configured=configured)
            else:
                wanted = self._wanted(asked.pool, request)
                answer = pool_apply.applied(
                    asked,
                    wanted,
                    world,
                    now,
                    configured=configured,
                    mode=self._settings.mode,
                    removal=None if world else await self._store.removal(asked.pool),
                )
            if answer.record is None:
                return answer
            if world is not None:
                await self._store.save_pool(answer.record, world.revision)
            elif not await self._store.create_pool(answer.record):
                raise Conflict(f"pool {asked.pool} exists already")
            return answer

        return await retry_conflicts(attempt, f"pool {asked.pool}")

    def _wanted(self, pool: str, request: ApplyRequest | str) -> Wanted:
        if isinstance(request, str):
            return Wanted(ApplyRequest(spec={}), None, request)
        try:
            spec = requested_pool(pool, request.spec, self._settings, self._directory)
            load_plugin(REMEDIATOR_PLUGINS, spec.health.remediation, None, BUILT_IN)
            Found(spec, pool, None, make=False)
        except ConfigurationError as error:
            key = error.key.removeprefix(f"pools.{pool}").lstrip(".")
            return Wanted(request, None, str(ConfigurationError(error.problem, key=key)))
        return Wanted(request, spec)


def _read(asked: Asked) -> ApplyRequest | RemoveRequest | str:
    """The request, or what is wrong with it."""
    try:
        found = read(asked)
    except RefusedError as error:
        return error.reason
    assert isinstance(found, ApplyRequest | RemoveRequest)
    return found
