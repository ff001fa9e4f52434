"""Compares what providers list with what the records say, both ways, again and again.

One replica at a time does it, under a lease: when it gets the lease, and then at an interval. It
finds what crashes left behind: instances without a record, removals that nobody pursues, launches
that nobody finished. It never touches another fleet's instances, nor a launch under way.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import FLEET_KEY, FleetRecord
from schemas.saga_params import LaunchSpec
from schemas.topology import NODES, POOLS
from services.bus.leases import Lease, repeat_while_held
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import NavarchError, Reject
from services.provisioner.instances import instance_decisions
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import Instance
from services.provisioner.provider_client.provider_calls import Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.removal.remover import Remover
from services.provisioner.time_limits import TimeLimits

log = logging.getLogger(__name__)

LEASE_NAME: Final = "provisioner-sweep"
AT_ONCE_MAX: Final = 16
"""Actions of one sweep that are under way together."""

_fleet: "msgspec.json.Decoder[Any]" = decoder(FleetRecord)
_node: "msgspec.json.Decoder[Any]" = decoder(NodeRecord)


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What a sweep has found, before anything is done."""

    seen: instance_decisions.SweepInput
    actions: tuple[instance_decisions.SweepAction, ...]
    unlisted: Mapping[str, str]
    """Provider -> why it could not be listed."""


class Sweeper:
    """The sweep of one replica."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: InstanceStore,
        providers: Providers,
        remover: Remover,
        timing: TimeLimits,
        observed: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Work with these; of a pool that is `observed` nothing is removed, only told."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._providers = providers
        self._remover = remover
        self._timing = timing
        self._observed = observed
        self._first_seen: dict[tuple[str, str], datetime] = {}
        self._alone = asyncio.Lock()

    async def run(self, lease: Lease) -> None:
        """Sweep whenever it is due and the lease is ours, for ever."""
        await repeat_while_held(
            lease,
            self._clock,
            self.sweep,
            every_seconds=self._timing.sweep_interval_seconds,
            look_seconds=self._timing.sweep_look_seconds,
        )

    async def sweep(self) -> tuple[instance_decisions.SweepAction, ...]:
        """One sweep; what it did, or tried."""
        look, _ = await self.swept()
        return look.actions

    async def swept(self) -> tuple[SweepPlan, list[str]]:
        """One sweep; what it found, and what came of each action."""
        gate = asyncio.Semaphore(AT_ONCE_MAX)

        async def one(action: instance_decisions.SweepAction) -> str:
            async with gate:
                try:
                    return "done" if await self._perform(action) else "still stands"
                except NavarchError as error:
                    log.warning("left for the next sweep", extra={"reason": str(error)})
                    return str(error)

        async with self._alone:
            look = await self.look()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(action)) for action in look.actions]
            return look, [each.result() for each in tasks]

    async def plan(self) -> tuple[instance_decisions.SweepAction, ...]:
        """What a sweep would do now; touches nothing."""
        return (await self.look()).actions

    async def look(self) -> SweepPlan:
        """What stands at providers and in records, and what a sweep would do; touches nothing."""
        fleet = await self._bus.get(POOLS, FLEET_KEY)
        # A list shows what was so when it was begun: what came up meanwhile is not missing from it.
        now = self._clock.now()
        listed, unlisted = await self._list()
        # Only now: an intention is recorded before its provider is asked.
        records = await self._store.all()
        self._remember(listed, now)
        fleet_id = _fleet_id(fleet.value) if fleet is not None else ""
        sighting = instance_decisions.SweepInput(
            fleet=fleet_id,
            records=records,
            listed=listed if fleet_id else {},
            can={name: each.provider.capabilities for name, each in self._providers.calls.items()},
            first_seen=dict(self._first_seen),
            living=await self._living(fleet_id, listed, records),
            now=now,
            grace=timedelta(seconds=self._timing.sweep_grace_seconds),
        )
        return SweepPlan(
            sighting,
            instance_decisions.decide_sweep(sighting, self._timing.sweep_removals_max),
            unlisted,
        )

    def observes(self, pool: str) -> bool:
        """Whether nothing of this pool is removed, only told."""
        return self._observed(pool)

    async def _list(self) -> tuple[dict[str, list[Instance]], dict[str, str]]:
        """What each provider lists; and which could not be listed, and why."""
        names = list(self._providers.calls)
        found = await asyncio.gather(
            *(self._providers.calls[name].list_instances() for name in names),
            return_exceptions=True,
        )
        listed: dict[str, list[Instance]] = {}
        unlisted: dict[str, str] = {}
        for name, result in zip(names, found, strict=True):
            if isinstance(result, ProviderError):
                log.warning("not listed", extra={"provider": name, "reason": str(result)})
                unlisted[name] = str(result)
            elif isinstance(result, BaseException):
                raise result
            else:
                listed[name] = result
        return listed, unlisted

    def _remember(self, listed: dict[str, list[Instance]], now: datetime) -> None:
        """Count the age of what is listed from when it was seen first; forget what is gone."""
        for provider, instances in listed.items():
            shown = {(provider, each.provider_id) for each in instances}
            gone = [key for key in self._first_seen if key[0] == provider and key not in shown]
            for key in gone:
                del self._first_seen[key]
            for key in shown:
                self._first_seen.setdefault(key, now)

    async def _living(
        self, fleet: str, listed: dict[str, list[Instance]], records: dict[str, InstanceRecord]
    ) -> frozenset[str]:
        """Of the listed instances without a record, those that are nodes in service."""
        keys = {
            key
            for instances in listed.values()
            for each in instances
            if each.fleet == fleet and (key := node_key(each.pool, each.name)) not in records
        }
        if not keys:
            return frozenset()
        nodes = {each.key: each.value for each in await self._bus.entries(NODES)}
        return frozenset(key for key in keys if key in nodes and _lives(nodes[key]))

    async def _perform(self, action: instance_decisions.SweepAction) -> bool:
        """Do it; False where what should go still stands."""
        if isinstance(
            action, instance_decisions.RemoveUnexpected | instance_decisions.RemoveSurplus
        ) and self._observed(action.instance.pool):
            await self._remover.publish_observed(action.provider, action.instance, action.why)
            return True
        log.info("sweep", extra={"action": type(action).__name__, "on": str(action)})
        match action:
            case instance_decisions.RemoveUnexpected(key, provider, instance):
                await self._store.change(key, self._standing(provider, instance))
                return await self._remover.try_removal(key)
            case instance_decisions.RemoveSurplus(provider, instance):
                return await self._remover.remove_unrecorded(provider, instance.provider_id)
            case instance_decisions.RetryRemoval(key):
                return await self._remover.try_removal(key)
            case instance_decisions.AdoptInstance(key, instance):
                await self._store.change(key, self._adopting(instance))
            case instance_decisions.RestoreRecord(key, provider, instance):
                await self._store.change(key, self._restoring(provider, instance))
            case instance_decisions.UpdateListingError(key, error):
                await self._store.change(key, _noting(error))
        return True

    def _standing(self, provider: str, instance: Instance) -> Any:
        """Record that it is to go, so that people see it until it is gone."""

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            now = self._clock.now()
            if record is None:
                found = _found(provider, instance, now)
                return instance_decisions.mark_terminating(
                    instance_decisions.mark_listed(found, instance, now), now, "no record of it"
                )
            if record.state == "terminated":
                # A tombstone of an undone launch knows no provider.
                record = replace(record, provider=provider)
                return instance_decisions.mark_listed(record, instance, now)
            return None

        return decide

    def _adopting(self, instance: Instance) -> Any:
        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            if record is None or record.state != "intended":
                return None
            return instance_decisions.settle(record, instance, self._clock.now()).record

        return decide

    def _restoring(self, provider: str, instance: Instance) -> Any:
        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            if record is not None:
                return None
            now = self._clock.now()
            return instance_decisions.settle(_found(provider, instance, now), instance, now).record

        return decide


def _found(provider: str, instance: Instance, now: datetime) -> InstanceRecord:
    """A record for an instance that has none, from what its tags say."""
    launch = LaunchSpec(
        fleet=instance.fleet,
        provider=provider,
        instance_type=instance.instance_type,
        region=instance.region,
    )
    return instance_decisions.intended_record(instance.pool, instance.name, launch, "", now)


def _fleet_id(value: bytes) -> str:
    try:
        return str(_fleet.decode(value).id)
    except msgspec.DecodeError as error:
        raise Reject(f"the key {FLEET_KEY} in {POOLS.name} cannot be read: {error}") from error


def _lives(value: bytes) -> bool:
    """Whether a node's record says that it is in service; one that cannot be read may be."""
    try:
        state: str = _node.decode(value).state
    except msgspec.DecodeError:
        return True
    return state != "terminated"


def _noting(error: str) -> Any:
    def decide(record: InstanceRecord | None) -> InstanceRecord | None:
        if record is None or record.state != "running":
            return None
        return replace(record, error=error)

    return decide
