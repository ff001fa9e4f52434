"""Records the pools of the configuration, and reports those that it no longer has."""

import logging
import secrets
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from schemas.instance_records import InstanceRecord
from schemas.launch_fingerprints import configured, sources_of
from schemas.messages import decoder
from schemas.pool_records import PoolRecord
from schemas.settings import PoolSpec
from schemas.topology import INSTANCES
from services.bus.bucket_mirror import readable_record
from services.pool_manager.planner.sizing.workload_names import found_names
from services.pool_manager.pool_store import Store
from services.runtime.process import Context
from services.settings.pool_differences import is_unlisted, size_within
from services.settings.setup_validation import user_data_digest
from services.settings.stored_pools import spec_to_store

log = logging.getLogger(__name__)

_instances: Final = decoder(InstanceRecord)


class ConfiguredPools:
    """Records what the configuration says of pools, and finds the pools that it does not name."""

    def __init__(self, context: Context, store: Store) -> None:
        """Record the pools of the context's settings in `store`."""
        self._bus = context.bus
        self._clock = context.clock
        self._store = store
        self._settings = context.settings
        self._directory = context.settings_file.parent if context.settings_file else Path()
        self._failures = context.instruments.failures

    async def record(self) -> None:
        """Give the bus its fleet id, and record the pools; log those that are not in the file."""
        settings = self._settings
        await self._store.claim_fleet(f"{settings.fleet}-{secrets.token_hex(3)}")
        for name in settings.pools:
            spec = spec_to_store(settings, name)
            await self._failures.attempt(f"pool {name}", partial(self._record_pool, name, spec))
        for record in await self._store.pools():
            if record.applied and record.name not in settings.pools:
                await self._store.change_pool(record.name, self._in_mode)
            if warning := await self.warning(record):
                log.warning("pool %s %s", record.name, warning, extra={"pool": record.name})

    async def warning(self, record: PoolRecord) -> str:
        """Return what a pool costs that is no longer configured, and what to do; else empty."""
        if not is_unlisted(record, self._settings.pools):
            return ""
        prices = []
        for entry in await self._bus.entries(INSTANCES, f"{record.name}.*"):
            instance = readable_record(entry, _instances)
            if instance is not None and instance.state != "terminated":
                prices.append(instance.dollars_per_hour)
        return unlisted_warning(record, prices)

    async def _record_pool(self, name: str, spec: PoolSpec) -> None:
        # Where only POOLS was lost, its nodes are in service still: none of them is surplus.
        nodes = await self._store.staying_nodes(name)
        desired = size_within(spec, len(nodes))
        names = found_names(nodes, self._clock.now()) if spec.workload_names else {}
        fresh = PoolRecord(name=name, spec=spec, desired=desired, workload_names=names)
        fresh = self._with_sources(None, fresh)
        if await self._store.create_pool(fresh):
            log.info("pool recorded", extra={"pool": name, "desired": desired})
            return

        def respecified(old: PoolRecord) -> PoolRecord:
            desired = size_within(spec, old.desired)
            ours = {"applied": "", "removing": ""}
            new = msgspec.structs.replace(old, spec=spec, desired=desired, **ours)
            return self._with_sources(old, new)

        await self._store.change_pool(name, respecified)

    def _in_mode(self, record: PoolRecord) -> PoolRecord:
        """A pool that people have made: it acts as the fleet does."""
        spec = msgspec.structs.replace(record.spec, mode=self._settings.mode)
        return self._with_sources(record, msgspec.structs.replace(record, spec=spec))

    def _with_sources(self, before: PoolRecord | None, record: PoolRecord) -> PoolRecord:
        """The record with what its launches take from the rest of this configuration."""
        user_data = user_data_digest(record.spec.user_data, self._directory)
        found = sources_of(record.spec, self._settings.providers, user_data)
        record = msgspec.structs.replace(record, launch_sources=found)
        return configured(before, record, self._clock.now())


def unlisted_warning(record: PoolRecord, prices: Collection[float]) -> str:
    """Return the pool's cost and what to do; `prices`: dollars per hour of its instances, or 0."""
    count, total = len(prices), sum(prices)
    cost = f" for {total:.2f} $/h" if total else " of unknown cost" if count else ""
    if total and (unknown := sum(1 for each in prices if not each)):
        cost += f" and the unknown cost of {unknown}"
    instances = "1 instance" if count == 1 else f"{count} instances"
    return (
        f"is not in the configuration (removed or renamed there) and is kept at its last settings: "
        f"{instances}{cost}, desired size {record.desired}; put it back under `pools:` and restart "
        f"the services, or remove it with its nodes: navarch down {record.name}"
    )
