"""Compares the providers' lists with the records, in both directions, at an interval.

One replica sweeps at a time, under a lease. The sweep finds what crashes left behind: instances
without a record, abandoned removals, unfinished launches. It never touches another fleet's
instances, nor a launch in progress.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from schemas.enums import NOT_LISTED
from schemas.instance_records import InstanceRecord
from schemas.node_records import node_key
from schemas.pool_records import FLEET_KEY, FleetRecord
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
    mark_terminated,
    mark_terminating,
    record_from_tags,
    settle,
    with_surplus,
)
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import Instance
from services.provisioner.provider_client.provider_calls import Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.removal.empty_lists import empty_lists
from services.provisioner.removal.id_corrections import IdCorrections, Report
from services.provisioner.removal.orphans import Orphans
from services.provisioner.removal.proposals import GATED
from services.provisioner.removal.remover import Remover
from services.provisioner.removal.sweep_actions import REMOVALS, SweepAction, SweepInput, SweepKind
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
ORDERS: Final = frozenset({"remove-unexpected", "remove-late", "end-launch", "terminate-orphan"})
RETRIES: Final = frozenset({"retry-removal", "confirm-removal", "retry-surplus"})
REMOVED: Final = ORDERS | RETRIES
"""What ends with an attempt to remove the instance of the record."""


class SweepPlan(NamedTuple):
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
        report: Report = lambda *_: None,
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
        self._performers: dict[SweepKind, Callable[[SweepAction], Awaitable[None]]] = {
            "keep-orphan": self._orphans.keep,
            "orphan-departed": self._orphans.keep_departed,
            "adopt-orphan": self._orphans.adopt,
            "adopt-joined": lambda e: self._orphans.adopt_joined(e.key, e.provider, e.instance),
            "retire-joined": lambda e: self._orphans.retire_joined(e.key, e.why),
            "correct-id": self._ids.correct,
        }
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
            on_lost=partial(self._publish, LISTS, ()),  # another replica looks at them
        )

    async def sweep(self, request: SweepRequest | None = None) -> tuple[SweepPlan, list[str]]:
        """Sweep once; return the plan and the outcome of each of its actions."""
        began = self._clock.monotonic()
        whole = request is not None or began >= self._whole_at
        limit = asyncio.Semaphore(ACTIONS_AT_ONCE_MAX)
        asked = request or NOTHING
        names = f"sweep --terminate {' '.join(asked.terminate)}"
        by = Authority(kind="operator", request=names, by=asked.by, at=self._clock.now())

        async def one(action: SweepAction) -> str:
            async with limit:
                try:
                    return "done" if await self._perform(action, by) else "not removed yet"
                except NavarchError as error:
                    log.warning("left for the next sweep", extra={"reason": str(error)})
                    return str(error)

        async with self._one_sweep:
            plan = await self.plan(asked, whole=whole)
            if whole:
                self._whole_at = began + WHOLE_SECONDS
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(action)) for action in plan.due]
            self._ids.report(plan.due)
            proposed = [each for each in plan.due if each.kind in GATED]
            self._publish(HELD_BACK, self.proposals.report(proposed))
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
        # Ages are measured from the first listing; what is gone is forgotten.
        shown = {(name, each.provider_id): now for name, all_ in listed.items() for each in all_}
        known = self._first_seen.items()
        self._first_seen = shown | {
            key: at for key, at in known if key in shown or key[0] not in listed
        }
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
        names, found, unlisted = self._providers.calls, dict[str, list[Instance]](), {}

        async def one(name: str) -> None:
            try:
                found[name] = await names[name].list_instances()
            except ProviderError as error:
                log.warning("not listed", extra={"provider": name, "reason": str(error)})
                unlisted[name] = str(error)

        await asyncio.gather(*map(one, names))
        return {name: found[name] for name in names if name in found}, unlisted

    async def _perform(self, action: SweepAction, operator: Authority) -> bool:
        """Perform an action; False if an instance that should go is still listed."""
        key, provider, instance = action.key, action.provider, action.instance
        observed = action.kind in REMOVALS and self.observes(instance.pool)
        if observed and not action.by_operator:
            await self._remover.publish_observed(provider, instance, action.why)
            return True
        if action.kind not in KEPT:
            log.info("sweep", extra={"action": action.kind, "on": str(action)})
        if action.kind in KEPT - {"keep-orphan"}:  # a command makes a removal of them
            return not action.by_operator or await self._remover.remove_unnamed(
                provider, instance, operator
            )
        by: Authority | None = operator
        if action.kind in REMOVALS and not action.by_operator:
            by = await self.proposals.authority(action)
        if by is None:
            return False  # it is held back
        if performer := self._performers.get(action.kind):
            await performer(action)
        elif action.kind not in RETRIES:
            await self._store.change(key, partial(self._changed, action, by))
        if action.kind in ("remove-surplus", "retry-surplus"):
            return await self._remover.remove_surplus(key)
        return action.kind not in REMOVED or await self._remover.try_removal(key)

    def _changed(
        self, action: SweepAction, by: Authority, record: InstanceRecord | None
    ) -> InstanceRecord | None:
        """Return the record after an action; None: none is needed, or it has changed since.

        `by`: the authority of a new order.
        """
        now, kind = self._clock.now(), action.kind
        if kind == "restore-record":
            earlier = record is not None and record.state == "terminated"
            if record is None or (earlier and not action.instance.provider_id):
                new = record_from_tags(action.provider, action.instance, now)
                return settle(new, action.instance, now, action.provider).record
        elif record is None:
            if kind == "remove-unexpected":
                new = record_from_tags(action.provider, action.instance, now)
                found = mark_listed(new, action.instance, now)
                return mark_terminating(found, now, by, "no record of it")
        elif kind == "forget-instance":
            return mark_terminated(record, now)
        elif record.state == "intended" and kind == "adopt-instance":
            return settle(record, action.instance, now, action.provider).record
        elif kind == "remove-surplus":
            known = record.provider_id == action.instance.provider_id
            return record if known else with_surplus(record, _surplus(action, by))
        elif kind in ORDERS:
            return _ordered(action, by, record, now)
        elif record.state == "running":
            return _marked(action, record, now)
        return None


def _surplus(action: SweepAction, by: Authority) -> SurplusInstance:
    own = action.instance.provider_id
    return SurplusInstance(provider=action.provider, provider_id=own, authority=by)


def _ordered(
    action: SweepAction, by: Authority, record: InstanceRecord, now: datetime
) -> InstanceRecord | None:
    """Have a record say that an instance must go, by an order, its own or its launch's."""
    if action.kind == "terminate-orphan":
        return mark_terminating(record, now, by)
    if action.kind == "end-launch" and record.state == "intended":
        # Its request may still be under way, so lists say when there is nothing.
        return mark_terminating(record, now, Authority(kind="launch", saga=record.saga, at=now))
    if action.kind != "end-launch" and record.state == "terminated":
        # The record of a cancelled launch names no provider.
        record = replace(record, provider=action.provider)
        return mark_listed(
            record, action.instance, now, None if action.kind == "remove-late" else by
        )
    return None


def _marked(action: SweepAction, record: InstanceRecord, now: datetime) -> InstanceRecord | None:
    """Have a running instance's record say how it is listed."""
    reason = down_reason(action.instance)
    match action.kind:
        case "doubt-id" if record.provider_id == action.instance.provider_id:
            return replace(record, id_doubted=True)
        case "mark-listed" | "mark-unlisted":
            return replace(record, error=NOT_LISTED if action.kind == "mark-unlisted" else "")
        case "mark-down" | "mark-up":
            since = (record.down_since or now) if reason else None
            return replace(record, down_since=since, down_reason=reason)
        case _:
            return None
