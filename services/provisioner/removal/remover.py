"""Removes instances: asks the provider, and believes nothing but its list.

A removal ends only with the confirmed absence. Until then it is tried again with back-off, for
ever; one that takes too long, or that the provider refuses, is recorded as leaked and told once.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from schemas.enums import ProviderErrorKind
from schemas.instance_records import InstanceRecord
from schemas.names import TOKEN
from schemas.node_records import node_key
from schemas.pool_events import InstanceLeaked
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.provisioner.instances import instance_decisions
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.instances.visibility import why_out_of_region
from services.provisioner.provider_client.provider import Instance
from services.provisioner.provider_client.provider_calls import Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.time_limits import TimeLimits
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

PUBLISHED_MAX = 10_000
"""Instances remembered as told of; forgetting them tells again."""


@dataclass(frozen=True, slots=True)
class NotRemoved:
    """One try did not remove it."""

    reason: str
    kind: ProviderErrorKind | None = None
    """None: the provider accepted, and lists it still."""


class Remover:
    """Removes what a record stands for."""

    def __init__(
        self, bus: Bus, clock: Clock, store: InstanceStore, providers: Providers, timing: TimeLimits
    ) -> None:
        """Work with these."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._providers = providers
        self._timing = timing
        self._told: set[str] = set()

    async def remove_until_gone(self, key: str, superseded: Callable[[], Awaitable[bool]]) -> bool:
        """Try until the provider confirms the absence; False where the saga went on without it."""
        tries = 0
        while not await self.try_removal(key):
            tries += 1
            if await superseded():
                return False
            await self._clock.sleep(self._timing.backoff_seconds(tries))
        return True

    async def try_removal(self, key: str) -> bool:
        """One try; True where nothing stands any more."""
        record = await self._store.get(key)
        if record is None or record.state == "terminated":
            return True
        standing = await self._try(record)
        if standing is None:
            await self._store.change(key, self._gone)
            return True
        await self._note(key, record, standing)
        return False

    async def _try(self, record: InstanceRecord) -> NotRemoved | None:
        try:
            calls = self._providers.get(record.provider)
            can = calls.provider.capabilities
            if unseen := why_out_of_region(record, can):
                return NotRemoved(unseen, "INVALID")
            listed = [] if record.provider_id else await calls.list_instances()
            for provider_id in instance_decisions.provider_ids_to_remove(record, listed):
                await calls.terminate(provider_id)
            # A list of many pages shows what was so when it was begun.
            asked_at = self._clock.now()
            listed = await calls.list_instances()
            for provider_id in instance_decisions.provider_ids_to_remove(record, listed):
                if provider_id != record.provider_id:
                    await calls.terminate(provider_id)
        except ProviderError as error:
            return NotRemoved(str(error), error.kind)
        lag = timedelta(seconds=can.list_lag_seconds)
        if instance_decisions.is_absent(record, listed, asked_at, lag):
            return None
        return NotRemoved(f"{record.provider} still lists it")

    def _gone(self, record: InstanceRecord | None) -> InstanceRecord | None:
        return record and instance_decisions.mark_terminated(record, self._clock.now())

    async def _note(self, key: str, record: InstanceRecord, standing: NotRemoved) -> None:
        """Keep the reason where people see it; call it a leak when it is one."""
        log.info("still there", extra={"instance": key, "reason": standing.reason})
        after = timedelta(seconds=self._timing.leak_after_seconds)
        now = self._clock.now()
        leak = instance_decisions.is_leak(record, standing.kind, now, after)
        if leak:
            await self._tell(record, standing.reason)
        # That a cloud takes a minute to remove a machine is no news, and not written each time.
        if leak or record.state == "leaked" or standing.kind is not None:
            reason = standing.reason

            def note(found: InstanceRecord | None) -> InstanceRecord | None:
                return found and instance_decisions.count_removal_attempt(
                    found, reason, now, leak=leak
                )

            await self._store.change(key, note)

    async def _tell(self, record: InstanceRecord, reason: str) -> None:
        """Publish the leak; before the record says so, as a crash between must not silence it."""
        event = InstanceLeaked(
            id=f"leaked-{node_key(record.pool, record.instance)}-{record.terminating_at}",
            time=self._clock.now(),
            cause=record.saga,
            pool=record.pool,
            instance=record.instance,
            provider=record.provider,
            provider_id=record.provider_id,
            reason=reason,
            dollars_per_hour=record.dollars_per_hour,
        )
        log.warning("instance leaked", extra={"instance": record.instance, "reason": reason})
        await publish_event(self._bus, event)

    async def publish_observed(self, provider: str, instance: Instance, why: str) -> None:
        """Tell people of an instance that would be removed if its pool did not only observe."""
        log.warning("would remove", extra={"instance": instance.name, "reason": why})
        if not TOKEN.match(instance.pool):
            return
        event = InstanceLeaked(
            id=f"observed-{provider}-{instance.provider_id}",
            time=self._clock.now(),
            pool=instance.pool,
            instance=instance.name,
            provider=provider,
            provider_id=instance.provider_id,
            reason=f"{why}; it would be removed, but the mode is observe",
            dollars_per_hour=instance.dollars_per_hour,
        )
        if event.id in self._told:
            return
        await publish_event(self._bus, event)
        if len(self._told) >= PUBLISHED_MAX:
            self._told.clear()
        self._told.add(event.id)

    async def remove_unrecorded(self, provider: str, provider_id: str) -> bool:
        """Remove an instance that no record names; False where that could not be asked now."""
        try:
            await self._providers.get(provider).terminate(provider_id)
        except ProviderError as error:
            log.warning(
                "surplus instance not removed; the sweep will try again",
                extra={"provider": provider, "provider_id": provider_id, "reason": str(error)},
            )
            return False
        return True
