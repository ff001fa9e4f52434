"""Compares the providers' lists with the records, in both directions, at an interval.

One replica sweeps at a time, under a lease. The sweep finds what crashes left behind: instances
without a record, abandoned removals, unfinished launches. It never touches another fleet's
instances, nor a launch in progress.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from schemas.enums import NOT_LISTED
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import (
    FLEET_KEY,
    FleetRecord,
    PoolRecord,
    RemovedPool,
    pool_key,
    removed_key,
)
from schemas.sweeps import SweepRequest
from schemas.topology import INSTANCES, NODES, POOLS
from services.bus.bucket_mirror import readable
from services.bus.leases import Lease, repeat_while_held
from services.bus.port import Bus, Entry
from services.bus.record_bucket import RecordBucket
from services.primitives.clock import Clock
from services.primitives.errors import NavarchError
from services.provisioner.instances.instance_decisions import (
    down_reason,
    mark_listed,
    mark_terminating,
    record_from_tags,
    settle,
)
from services.provisioner.instances.instance_store import Change, InstanceStore
from services.provisioner.provider_client.provider import Instance
from services.provisioner.provider_client.provider_calls import Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.removal.empty_lists import empty_lists
from services.provisioner.removal.orphans import Orphans
from services.provisioner.removal.remover import Remover
from services.provisioner.removal.sweep_decisions import (
    REMOVALS,
    SweepAction,
    SweepInput,
    decide_sweep,
    due_actions,
    is_kept,
    is_named,
    is_of_fleet,
    is_unrecorded,
)
from services.provisioner.time_limits import TimeLimits
from services.runtime.failure_register import FailureRegister

log = logging.getLogger(__name__)

LEASE_NAME: Final = "provisioner.sweep"
ACTIONS_AT_ONCE_MAX: Final = 16
"""Actions of one sweep that are performed concurrently."""
LISTS: Final = "lists"
WHOLE_SECONDS: Final = 300.0
"""Between two sweeps that read NODES whole, for instances that run on without their node."""

NOTHING: Final = SweepRequest()

_node: Final = decoder(NodeRecord)
_pool: Final = decoder(PoolRecord)
_removed: Final = decoder(RemovedPool)


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What a sweep has found and would do."""

    differences: tuple[SweepAction, ...]
    due: tuple[SweepAction, ...]
    """Those of the differences that it would resolve now."""
    fleet_known: bool
    unlisted: Mapping[str, str]
    """Provider -> why it could not be listed."""


class NodesSeen(NamedTuple):
    """Nodes in service, those that are gone, and those whose instance has no record."""

    living: frozenset[str] = frozenset()
    departed: frozenset[str] = frozenset()
    unrecorded: Mapping[str, NodeRecord] = {}


class Sweeper:
    """The sweep of one replica."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: InstanceStore,
        providers: Providers,
        remover: Remover,
        limits: TimeLimits,
        observes: Callable[[str], bool] = lambda _: False,
        *,
        fleet_name: str = "",
        failures: FailureRegister | None = None,
    ) -> None:
        """`observes`: whether a pool is in observe mode, so that nothing of it is removed.

        `fleet_name` is the configured one: instances of its earlier stores are orphans. Lists that
        lack everything are reported to `failures`.
        """
        self._bus = bus
        self._fleet_records = RecordBucket(bus, POOLS, FleetRecord)
        self._clock = clock
        self._store = store
        self._providers = providers
        self._remover = remover
        self._limits = limits
        self.observes = observes
        self._fleet_name = fleet_name
        self._failures = failures
        self._orphans = Orphans(bus, clock, store, remover)
        self._first_seen: dict[tuple[str, str], datetime] = {}
        self._one_sweep = asyncio.Lock()
        self._whole_at = 0.0

    async def run(self, lease: Lease) -> None:
        """Sweep when this replica gets the lease, and then at the interval."""
        await repeat_while_held(
            lease,
            self._clock,
            self.sweep,
            every_seconds=self._limits.sweep_interval_seconds,
            look_seconds=self._limits.sweep_look_seconds,
            on_lost=self._forget_lists,
        )

    def _forget_lists(self) -> None:
        """Another replica looks at the lists, and reports what they lack."""
        if self._failures is not None:
            self._failures.update(LISTS, ())

    async def sweep(self, request: SweepRequest | None = None) -> tuple[SweepPlan, list[str]]:
        """Sweep once; return the plan and the outcome of each of its actions."""
        began = self._clock.monotonic()
        whole = request is not None or began >= self._whole_at
        limit = asyncio.Semaphore(ACTIONS_AT_ONCE_MAX)

        async def one(action: SweepAction) -> str:
            async with limit:
                try:
                    return "done" if await self._perform(action) else "not removed yet"
                except NavarchError as error:
                    log.warning("left for the next sweep", extra={"reason": str(error)})
                    return str(error)

        async with self._one_sweep:
            plan = await self.plan(request or NOTHING, whole=whole)
            if whole:
                self._whole_at = began + WHOLE_SECONDS
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(action)) for action in plan.due]
            return plan, [each.result() for each in tasks]

    async def plan(self, request: SweepRequest = NOTHING, *, whole: bool = True) -> SweepPlan:
        """Compare providers and records, and decide what a sweep would do; changes nothing.

        `whole`: also the nodes of instances of which records and lists agree.
        """
        fleet = await self._bus.get(POOLS, FLEET_KEY)
        # A list shows the state when it was started: later instances are not missing from it.
        now = self._clock.now()
        listed, unlisted = await self._list()
        # Read after the lists: an intention is recorded before its provider is called.
        found = await self._store.all_keys()
        records = {key: record for key, record in found.items() if record is not None}
        # An instance whose record cannot be read is neither unexpected nor gone: it is left alone.
        left_alone = {key for key, record in found.items() if record is None}
        listed = {
            name: [each for each in shown if node_key(each.pool, each.name) not in left_alone]
            for name, shown in listed.items()
        }
        if self._failures is not None:
            self._failures.update(LISTS, empty_lists(records.values(), listed, now))
        self._remember(listed, now)
        fleet_id = self._fleet_records.decode(fleet).id if fleet is not None else ""
        nodes = await self._nodes(fleet_id, listed, records, left_alone, whole=whole)
        seen = SweepInput(
            fleet=fleet_id,
            fleet_name=self._fleet_name,
            records_since=await self._records_since(fleet),
            serials=await self._serials(),
            adopt=frozenset(request.adopt),
            terminate=frozenset(request.terminate),
            records=records,
            listed=listed if fleet_id else {},
            can={name: each.provider.capabilities for name, each in self._providers.calls.items()},
            first_seen=dict(self._first_seen),
            living=nodes.living,
            departed=nodes.departed,
            unrecorded=nodes.unrecorded,
            admitted=await self._admitted(records.values(), now),
            now=now,
            grace=timedelta(seconds=self._limits.sweep_grace_seconds),
        )
        differences = decide_sweep(seen)
        due = due_actions(differences, self._limits.sweep_removals_max)
        return SweepPlan(differences, due, bool(fleet_id), unlisted)

    async def _admitted(
        self, records: Iterable[InstanceRecord], now: datetime
    ) -> dict[str, datetime]:
        """When each pool with instances that are kept last admitted a node."""
        found: dict[str, datetime] = {}
        for pool in sorted({each.pool for each in records if is_kept(each, now)}):
            entries = await self._bus.entries(NODES, f"{pool}.>")
            times = [node.admitted_at for _, node in readable(entries, _node) if node.admitted_at]
            found |= {pool: max(times)} if times else {}
        return found

    async def _serials(self) -> dict[str, int]:
        """The highest number that each pool has given; read after the lists, like the records."""
        removed = readable(await self._bus.entries(POOLS, removed_key("*")), _removed)
        found = {entry.key.partition(".")[2]: record.serial for entry, record in removed}
        for _, pool in readable(await self._bus.entries(POOLS, pool_key("*")), _pool):
            found[pool.name] = max(pool.serial, found.get(pool.name, 0))
        return found

    async def _records_since(self, fleet: Entry | None) -> datetime | None:
        """When INSTANCES was created, if after the fleet: what is older may have had a record."""
        if fleet is None:
            return None
        info = await self._bus.admin(f"STREAM.INFO.KV_{INSTANCES.name}", {})
        created = datetime.fromisoformat(info["created"])
        return created if created > fleet.time else None

    async def _list(self) -> tuple[dict[str, list[Instance]], dict[str, str]]:
        """Return each provider's list, and for those that could not be listed the reason."""
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
        """Measure the age of instances from their first listing; forget those that are gone."""
        for provider, instances in listed.items():
            shown = {(provider, each.provider_id) for each in instances}
            gone = [key for key in self._first_seen if key[0] == provider and key not in shown]
            for key in gone:
                del self._first_seen[key]
            for key in shown:
                self._first_seen.setdefault(key, now)

    async def _nodes(
        self,
        fleet: str,
        listed: dict[str, list[Instance]],
        records: dict[str, InstanceRecord],
        left_alone: Collection[str],
        *,
        whole: bool,
    ) -> NodesSeen:
        """The nodes of which records and lists disagree.

        A listed instance has no record, one that is running or was to be launched long ago is not
        listed, or one that others have made is neither recorded nor listed.
        """
        old = self._clock.now() - timedelta(seconds=self._limits.sweep_grace_seconds)
        can = {name: self._providers.get(name).provider.capabilities for name in listed}
        shown = {
            node_key(each.pool, each.name)
            for provider, instances in listed.items()
            for each in instances
            if can[provider].adopts or is_of_fleet(each.fleet, fleet, self._fleet_name)
        }
        wanted = {
            key
            for key, each in records.items()
            if each.provider in listed
            and (each.state == "running" or (each.state == "intended" and each.intended_at < old))
        }
        keys = (shown - records.keys()) | (wanted if whole else wanted - shown)
        adopts = any(each.adopts for each in can.values())
        if not keys and not adopts:
            return NodesSeen()
        entries = await self._bus.entries(NODES)
        nodes = {each.key: each.value for each in entries}
        known = keys & nodes.keys()
        living = frozenset(key for key in known if _in_service(nodes[key]))
        unrecorded = {
            entry.key: node
            for entry, node in (readable(entries, _node) if adopts else ())
            if entry.key not in left_alone and is_unrecorded(node, records.get(entry.key))
        }
        return NodesSeen(living, frozenset(known - living), unrecorded)

    async def _perform(self, action: SweepAction) -> bool:
        """Perform an action; False if an instance that should go is still listed."""
        key, provider, instance = action.key, action.provider, action.instance
        if action.kind in REMOVALS and self.observes(instance.pool):
            await self._remover.publish_observed(provider, instance, action.why)
            return True
        if action.kind != "keep-orphan":
            log.info("sweep", extra={"action": action.kind, "on": str(action)})
        match action.kind:
            case (
                "keep-orphan"
                | "orphan-departed"
                | "adopt-orphan"
                | "terminate-orphan"
                | "forget-instance"
            ):
                return await self._orphans.perform(action)
            case "adopt-joined":
                await self._orphans.adopt_joined(key, provider, instance)
            case "retire-joined":
                await self._orphans.retire_joined(key, action.why)
            case "remove-unexpected" | "end-launch":
                await self._store.change(key, self._must_go(action))
                return await self._remover.try_removal(key)
            case "remove-surplus":
                return await self._remove_surplus(action)
            case "retry-removal" | "confirm-removal":
                return await self._remover.try_removal(key)
            case "mark-down" | "mark-up":
                down = down_reason(instance)
                await self._store.change(key, lambda record: self._mark_down(record, down))
            case "adopt-instance" | "restore-record" | "mark-listed" | "mark-unlisted":
                await self._store.change(key, lambda record: self._correct(action, record))
        return True

    async def _remove_surplus(self, action: SweepAction) -> bool:
        """Remove an instance, unless a launch has recorded it since; False: not accepted."""
        instance = action.instance
        if is_named(instance):
            record = await self._store.get(action.key)
            if record is not None and record.provider_id == instance.provider_id:
                return True
        return await self._remover.remove_unrecorded(action.provider, instance.provider_id)

    def _mark_down(self, record: InstanceRecord | None, reason: str) -> InstanceRecord | None:
        if record is None or record.state != "running":
            return None
        since = (record.down_since or self._clock.now()) if reason else None
        return replace(record, down_since=since, down_reason=reason)

    def _correct(self, action: SweepAction, record: InstanceRecord | None) -> InstanceRecord | None:
        """Return the corrected record; None if it has changed since the sweep read it."""
        if action.kind == "restore-record":
            earlier = record is not None and record.state == "terminated"
            if record is not None and not (earlier and not action.instance.provider_id):
                return None
            record = self._new_record(action.provider, action.instance)
        elif record is None:
            return None
        elif action.kind != "adopt-instance":
            error = NOT_LISTED if action.kind == "mark-unlisted" else ""
            return replace(record, error=error) if record.state == "running" else None
        elif record.state != "intended":
            return None
        return settle(record, action.instance, self._clock.now(), action.provider).record

    def _must_go(self, action: SweepAction) -> Change:
        """The change of a record by which its instance, if there is one, is removed."""
        if action.kind == "end-launch":
            return self._end_launch
        return self._record_unexpected(action.provider, action.instance)

    def _end_launch(self, record: InstanceRecord | None) -> InstanceRecord | None:
        """Have it go; its request may still be under way, so lists say when there is nothing."""
        if record is None or record.state != "intended":
            return None
        return mark_terminating(record, self._clock.now())

    def _record_unexpected(self, provider: str, instance: Instance) -> Change:
        """Record that it must go, so that operators see it until it is gone."""

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            now = self._clock.now()
            if record is None:
                found = mark_listed(self._new_record(provider, instance), instance, now)
                return mark_terminating(found, now, "no record of it")
            if record.state == "terminated":
                # The record of a cancelled launch names no provider.
                return mark_listed(replace(record, provider=provider), instance, now)
            return None

        return decide

    def _new_record(self, provider: str, instance: Instance) -> InstanceRecord:
        return record_from_tags(provider, instance, self._clock.now())


def _in_service(value: bytes) -> bool:
    """Whether a node's record says that it is in service; an unreadable one may be."""
    try:
        state: str = _node.decode(value).state
    except msgspec.DecodeError:
        return True
    return state != "terminated"
