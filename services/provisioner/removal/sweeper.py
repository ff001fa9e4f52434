"""Compares the providers' lists with the records, in both directions, at an interval.

One replica sweeps at a time, under a lease. The sweep finds what crashes left behind: instances
without a record, abandoned removals, unfinished launches. It never touches another fleet's
instances, nor a launch in progress.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from msgspec.structs import replace

from schemas.enums import NOT_LISTED
from schemas.instance_records import InstanceRecord
from schemas.node_records import node_key
from schemas.pool_records import (
    FLEET_KEY,
    FleetRecord,
)
from schemas.sweeps import SweepRequest
from schemas.termination_orders import Authority, SurplusInstance
from schemas.topology import POOLS
from services.bus.leases import Lease, repeat_while_held
from services.bus.port import Bus
from services.bus.record_bucket import RecordBucket
from services.primitives.clock import Clock
from services.primitives.errors import NavarchError
from services.provisioner.instances.instance_decisions import (
    down_reason,
    mark_listed,
    mark_terminating,
    record_from_tags,
    settle,
    with_surplus,
)
from services.provisioner.instances.instance_store import Change, InstanceStore
from services.provisioner.provider_client.provider import Instance
from services.provisioner.provider_client.provider_calls import Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.removal.empty_lists import empty_lists
from services.provisioner.removal.id_corrections import IdCorrections, Report, report_nothing
from services.provisioner.removal.orphans import Orphans
from services.provisioner.removal.proposals import GATED
from services.provisioner.removal.remover import Remover
from services.provisioner.removal.sweep_actions import REMOVALS, SweepAction, SweepInput
from services.provisioner.removal.sweep_decisions import decide_sweep, due_actions
from services.provisioner.removal.sweep_readings import SweepReadings
from services.provisioner.time_limits import TimeLimits

log = logging.getLogger(__name__)

LEASE_NAME: Final = "provisioner.sweep"
ACTIONS_AT_ONCE_MAX: Final = 16
"""Actions of one sweep that are performed concurrently."""
LISTS: Final = "lists"
WHOLE_SECONDS: Final = 300.0
"""Between two sweeps that read NODES whole, for instances that run on without their node."""

NOTHING: Final = SweepRequest()
HELD_BACK: Final = "held removals"
KEPT: Final = frozenset({"keep-orphan", "keep-unnamed", "note-unclear"})
"""What each sweep finds again, and leaves alone."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A plan has what a sweep has found, and would do."""

    differences: tuple[SweepAction, ...]
    due: tuple[SweepAction, ...]
    """Those of the differences that it would resolve now."""
    fleet_known: bool
    unlisted: Mapping[str, str]
    """Provider -> why it could not be listed."""


class Sweeper:
    """Sweep as one replica."""

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
        report: Report = report_nothing,
    ) -> None:
        """`observes`: whether a pool is in observe mode, so that nothing of it is removed.

        `fleet_name` is the configured one: instances of its earlier stores are orphans. What needs
        an operator goes to `report`.
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
        self._orphans = Orphans(bus, clock, store, remover)
        self._readings = SweepReadings(bus, clock, providers, limits, fleet_name)
        self._ids = IdCorrections(bus, clock, store, report)
        self._publish = report
        self.proposals = remover.proposals
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
        self._publish(LISTS, ())

    async def sweep(self, request: SweepRequest | None = None) -> tuple[SweepPlan, list[str]]:
        """Sweep once; return the plan and the outcome of each of its actions."""
        began = self._clock.monotonic()
        whole = request is not None or began >= self._whole_at
        limit = asyncio.Semaphore(ACTIONS_AT_ONCE_MAX)
        by = operator_authority(request or NOTHING, self._clock.now())

        async def one(action: SweepAction) -> str:
            async with limit:
                try:
                    return "done" if await self._perform(action, by) else "not removed yet"
                except NavarchError as error:
                    log.warning("left for the next sweep", extra={"reason": str(error)})
                    return str(error)

        async with self._one_sweep:
            plan = await self.plan(request or NOTHING, whole=whole)
            if whole:
                self._whole_at = began + WHOLE_SECONDS
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(action)) for action in plan.due]
            self._report(plan.due)
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
        raw = {key: record for key, record in found.items() if record is not None}
        records, canonical = self._readings.canonical(raw)
        # An instance whose record cannot be read is neither unexpected nor gone: it is left alone.
        left_alone = {key for key, record in found.items() if record is None}
        listed = {
            name: [each for each in shown if node_key(each.pool, each.name) not in left_alone]
            for name, shown in listed.items()
        }
        self._publish(LISTS, empty_lists(records.values(), listed, now))
        self._remember(listed, now)
        fleet_id = self._fleet_records.decode(fleet).id if fleet is not None else ""
        nodes = await self._readings.nodes(fleet_id, listed, records, left_alone, whole=whole)
        seen = SweepInput(
            fleet=fleet_id,
            fleet_name=self._fleet_name,
            records_since=await self._readings.records_since(fleet),
            serials=await self._readings.serials(),
            adopt=frozenset(request.adopt),
            terminate=frozenset(request.terminate),
            records=records,
            listed=listed if fleet_id else {},
            can={name: each.provider.capabilities for name, each in self._providers.calls.items()},
            first_seen=dict(self._first_seen),
            living=nodes.living,
            departed=nodes.departed,
            unrecorded=nodes.unrecorded,
            admitted=await self._readings.admitted(records.values(), now),
            canonical=canonical,
            now=now,
            grace=timedelta(seconds=self._limits.sweep_grace_seconds),
        )
        several = [each.key for each in decide_sweep(seen) if each.kind == "note-unclear"]
        if several:
            seen = dataclasses.replace(seen, machines=await self._readings.machines(several))
        differences = decide_sweep(seen)
        due = due_actions(differences, self._limits.sweep_removals_max)
        return SweepPlan(differences, due, bool(fleet_id), unlisted)

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

    def _report(self, due: Sequence[SweepAction]) -> None:
        """Report what an operator must look at."""
        self._ids.report(due)
        proposed = [each for each in due if each.kind in GATED]
        self._publish(HELD_BACK, self.proposals.report(proposed))

    async def _perform(self, action: SweepAction, operator: Authority) -> bool:
        """Perform an action; False if an instance that should go is still listed."""
        key, provider, instance = action.key, action.provider, action.instance
        observed = action.kind in REMOVALS and self.observes(instance.pool)
        if observed and not action.by_operator:
            await self._remover.publish_observed(provider, instance, action.why)
            return True
        if action.kind not in KEPT:
            log.info("sweep", extra={"action": action.kind, "on": str(action)})
        match action.kind:
            case "keep-unnamed" | "note-unclear":  # a command makes a removal of the latter
                return not action.by_operator or await self._remover.remove_unnamed(
                    provider, instance, operator
                )
            case (
                "keep-orphan"
                | "orphan-departed"
                | "adopt-orphan"
                | "terminate-orphan"
                | "forget-instance"
                | "adopt-joined"
                | "retire-joined"
            ):
                return await self._orphans.perform(action, operator)
            case "remove-unexpected" | "remove-surplus":
                return await self._remove(action, operator)
            case "retry-surplus":
                return await self._remover.remove_surplus(key)
            case "remove-late" | "end-launch" | "retry-removal" | "confirm-removal":
                await self._order(action)
                return await self._remover.try_removal(key)
            case "correct-id":
                await self._ids.correct(action)
            case "doubt-id":
                await self._store.amend(key, lambda found: _doubted(found, instance), "running")
            case "mark-down" | "mark-up" | "mark-listed" | "mark-unlisted":
                await self._store.amend(key, partial(self._marked, action), "running")
            case _:
                await self._store.change(key, lambda record: self._correct(action, record))
        return True

    async def _remove(self, action: SweepAction, operator: Authority) -> bool:
        """Remove what no order means, by a command or a proof; False: it is held back."""
        key = action.key
        by = operator if action.by_operator else await self.proposals.authority(action)
        if by is None:
            return False
        if action.kind == "remove-unexpected":
            await self._store.change(key, self._record_unexpected(action, by))
            return await self._remover.try_removal(key)
        one = SurplusInstance(
            provider=action.provider, provider_id=action.instance.provider_id, authority=by
        )

        def beside(found: InstanceRecord) -> InstanceRecord:
            # A launch may have recorded it since.
            return found if found.provider_id == one.provider_id else with_surplus(found, one)

        await self._store.amend(key, beside)
        return await self._remover.remove_surplus(key)

    def _marked(self, action: SweepAction, record: InstanceRecord) -> InstanceRecord:
        if action.kind in ("mark-listed", "mark-unlisted"):
            return replace(record, error=NOT_LISTED if action.kind == "mark-unlisted" else "")
        reason = down_reason(action.instance)
        since = (record.down_since or self._clock.now()) if reason else None
        return replace(record, down_since=since, down_reason=reason)

    def _correct(self, action: SweepAction, record: InstanceRecord | None) -> InstanceRecord | None:
        """Return the corrected record; None if it has changed since the sweep read it."""
        if action.kind == "restore-record":
            earlier = record is not None and record.state == "terminated"
            if record is not None and not (earlier and not action.instance.provider_id):
                return None
            record = self._new_record(action.provider, action.instance)
        elif record is None or record.state != "intended":
            return None
        return settle(record, action.instance, self._clock.now(), action.provider).record

    async def _order(self, action: SweepAction) -> None:
        """Have the record say that an instance must go, by its own order or its launch's."""
        if action.kind == "remove-late":
            await self._store.change(action.key, self._record_unexpected(action, None))
        elif action.kind == "end-launch":
            await self._store.amend(action.key, self._end_launch, "intended")

    def _end_launch(self, record: InstanceRecord) -> InstanceRecord:
        """Have it go; its request may still be under way, so lists say when there is nothing."""
        now = self._clock.now()
        return mark_terminating(record, now, Authority(kind="launch", saga=record.saga, at=now))

    def _record_unexpected(self, action: SweepAction, by: Authority | None) -> Change:
        """Record that it must go, by a new order or its record's, so that operators see it."""
        provider, instance = action.provider, action.instance

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            now = self._clock.now()
            if record is None and by is not None:
                found = mark_listed(self._new_record(provider, instance), instance, now)
                return mark_terminating(found, now, by, "no record of it")
            if record is not None and record.state == "terminated":
                # The record of a cancelled launch names no provider.
                return mark_listed(replace(record, provider=provider), instance, now, by)
            return None

        return decide

    def _new_record(self, provider: str, instance: Instance) -> InstanceRecord:
        return record_from_tags(provider, instance, self._clock.now())


def operator_authority(request: SweepRequest, now: datetime) -> Authority:
    """Return the authority of an operator's command."""
    names = " ".join(request.terminate)
    return Authority(kind="operator", request=f"sweep --terminate {names}", by=request.by, at=now)


def _doubted(record: InstanceRecord, instance: Instance) -> InstanceRecord:
    """Return a record whose ID was listed as another node's, unless it was corrected since."""
    doubted = record.provider_id == instance.provider_id
    return replace(record, id_doubted=True) if doubted else record
