"""Compares providers and records: what a sweep does about each difference. Pure.

An instance without a record is removed only where the records can judge it. One that was launched
by an earlier store of this fleet, or before the records were lost, is an orphan: it is recorded and
left alone until an operator's command adopts or terminates it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from schemas.enums import NOT_LISTED
from schemas.instance_records import InstanceRecord
from schemas.names import TOKEN
from schemas.node_records import node_key
from services.provisioner.instances.instance_decisions import (
    TERMINATING_STATES,
    find_adoptable,
)
from services.provisioner.instances.visibility import (
    hidden_prefixes,
    may_be_hidden,
    why_out_of_region,
)
from services.provisioner.provider_client.provider import Capabilities, Instance

FLEET_SUFFIX: Final = re.compile(r"-[0-9a-f]{6}")
"""What distinguishes the fleet ID of one store from those of earlier stores of the same fleet."""


def is_of_fleet(tag: str, fleet: str, name: str) -> bool:
    """Whether a fleet tag is this fleet's, or that of an earlier store of a fleet of this name."""
    earlier = bool(name) and tag.startswith(name) and FLEET_SUFFIX.fullmatch(tag[len(name) :])
    return tag == fleet or bool(earlier)


@dataclass(frozen=True, slots=True)
class RemoveUnexpected:
    """An unexpected instance of this fleet: record it as terminating and remove it."""

    key: str
    provider: str
    instance: Instance
    why: str


@dataclass(frozen=True, slots=True)
class RemoveSurplus:
    """An instance beside the recorded one, or one whose tags name no node."""

    provider: str
    instance: Instance
    why: str


@dataclass(frozen=True, slots=True)
class AdoptInstance:
    """An unfinished launch: record its instance."""

    key: str
    instance: Instance


@dataclass(frozen=True, slots=True)
class RestoreRecord:
    """A node in service whose instance has no record: write one."""

    key: str
    provider: str
    instance: Instance


@dataclass(frozen=True, slots=True)
class KeepOrphan:
    """An instance that a lost store knew: record it as orphaned, and leave it alone."""

    key: str
    provider: str
    instance: Instance
    why: str


@dataclass(frozen=True, slots=True)
class AdoptOrphan:
    """An operator's command: make an orphan a node of its pool."""

    key: str
    instance: Instance


@dataclass(frozen=True, slots=True)
class TerminateOrphan:
    """An operator's command: remove an orphan."""

    key: str


@dataclass(frozen=True, slots=True)
class ForgetOrphan:
    """An orphan that its provider no longer lists."""

    key: str


@dataclass(frozen=True, slots=True)
class RetryRemoval:
    """An overdue removal: try again, or confirm that it is gone."""

    key: str


@dataclass(frozen=True, slots=True)
class UpdateListingError:
    """A running instance's record must say whether its provider lists it."""

    key: str
    error: str


SweepAction = (
    RemoveUnexpected
    | RemoveSurplus
    | AdoptInstance
    | RestoreRecord
    | KeepOrphan
    | AdoptOrphan
    | TerminateOrphan
    | ForgetOrphan
    | RetryRemoval
    | UpdateListingError
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepInput:
    """What the sweep decides on.

    The providers were listed *before* the records were read: as an intention is recorded before its
    provider is called, an instance without a record does not belong to a launch in progress.
    """

    fleet: str
    fleet_name: str = ""
    """As configured: it begins the ID of this fleet and of those whose store was lost."""
    records_since: datetime | None = None
    """When INSTANCES was created again after its loss; None: it is as old as the fleet."""
    adopt: frozenset[str] = frozenset()
    """Orphans that an operator adopts, by instance name or provider ID."""
    terminate: frozenset[str] = frozenset()
    records: Mapping[str, InstanceRecord]
    listed: Mapping[str, Sequence[Instance]]
    """By provider; one that could not be listed is missing, and proves nothing."""
    can: Mapping[str, Capabilities] = field(default_factory=dict)
    """By provider."""
    first_seen: Mapping[tuple[str, str], datetime]
    """(provider, provider ID) -> when this sweeper first saw it; its age counts from there."""
    living: frozenset[str]
    """Keys of nodes that NODES knows as not terminated."""
    now: datetime
    grace: timedelta


def decide_sweep(seen: SweepInput, removals_max: int) -> tuple[SweepAction, ...]:
    """Compare providers and records both ways."""
    actions: list[SweepAction] = []
    shown: set[tuple[str, str]] = set()
    for provider, instances in seen.listed.items():
        for instance in instances:
            if not is_of_fleet(instance.fleet, seen.fleet, seen.fleet_name):
                continue
            shown.add((provider, node_key(instance.pool, instance.name)))
            action = _decide_instance(seen, provider, instance)
            if action is not None:
                actions.append(action)
    unseen = {provider: hidden_prefixes(instances) for provider, instances in seen.listed.items()}
    for key, record in seen.records.items():
        can = seen.can.get(record.provider, Capabilities())
        listed = (
            (record.provider, key) in shown
            or may_be_hidden(record, unseen.get(record.provider, ()))
            or bool(why_out_of_region(record, can))
        )
        action = _decide_record(seen, key, record, listed=listed)
        if action is not None:
            actions.append(action)
    return _limit_removals(actions, removals_max)


def _decide_instance(seen: SweepInput, provider: str, instance: Instance) -> SweepAction | None:
    key = node_key(instance.pool, instance.name)
    record = seen.records.get(key)
    seen_at = seen.first_seen.get((provider, instance.provider_id), seen.now)
    old = seen.now - seen_at >= seen.grace
    if not (TOKEN.match(instance.pool) and TOKEN.match(instance.name)):
        why = "it has this fleet's tag and no node's name"
        return RemoveSurplus(provider, instance, why) if old else None
    if record is not None and record.offering is not None and record.provider != provider:
        if instance.provider_id == record.provider_id:
            return None  # two names of the configuration may lead into one account
        why = f"its record is of {record.provider}"
        return RemoveSurplus(provider, instance, why) if old else None
    if record is None and key in seen.living:
        return RestoreRecord(key, provider, instance)
    if record is None:
        return _decide_unrecorded(seen, key, provider, instance) if old else None
    if record.state == "terminated":
        return RemoveUnexpected(key, provider, instance, "its record says that it is gone")
    if record.state == "orphaned":
        return _decide_orphan(seen, key, record, instance)
    if record.state == "intended":
        made = find_adoptable(record, seen.listed[provider])
        return AdoptInstance(key, instance) if old and made == instance else None
    if record.state == "running" and record.provider_id != instance.provider_id and old:
        return RemoveSurplus(provider, instance, f"its record names {record.provider_id}")
    return None


def _decide_unrecorded(
    seen: SweepInput, key: str, provider: str, instance: Instance
) -> SweepAction:
    if why := _why_orphaned(seen, instance):
        return KeepOrphan(key, provider, instance, why)
    return RemoveUnexpected(key, provider, instance, "no record of it")


def _why_orphaned(seen: SweepInput, instance: Instance) -> str:
    """Why these records cannot judge an instance that they lack; empty: they can."""
    if instance.fleet != seen.fleet:
        return f"launched as {instance.fleet}, by a store that is lost: this fleet is {seen.fleet}"
    since = seen.records_since
    if since is not None and (instance.created_at is None or instance.created_at < since):
        return f"launched before the records of instances were lost at {since:%Y-%m-%d %H:%M:%S}Z"
    return ""


def _decide_orphan(
    seen: SweepInput, key: str, record: InstanceRecord, instance: Instance
) -> SweepAction:
    names = {record.instance, record.provider_id}
    if names & seen.terminate:
        return TerminateOrphan(key)
    if names & seen.adopt:
        return AdoptOrphan(key, instance)
    return KeepOrphan(key, record.provider, instance, record.error)


def _decide_record(
    seen: SweepInput, key: str, record: InstanceRecord, *, listed: bool
) -> SweepAction | None:
    if record.state in TERMINATING_STATES:
        since = record.terminating_at or record.intended_at
        due = record.state == "leaked" or seen.now - since >= seen.grace
        return RetryRemoval(key) if due else None
    if record.provider not in seen.listed:
        return None
    if record.state == "orphaned" and not listed:
        return ForgetOrphan(key)
    if record.state != "running":
        return None
    since = record.running_at or record.intended_at
    if listed and record.error == NOT_LISTED:
        return UpdateListingError(key, "")
    if not listed and not record.error and seen.now - since >= seen.grace:
        return UpdateListingError(key, NOT_LISTED)
    return None


def _limit_removals(actions: list[SweepAction], removals_max: int) -> tuple[SweepAction, ...]:
    """Limit the damage of a mistake: remove at most so many unexpected instances in one sweep."""
    kept: list[SweepAction] = []
    removals = 0
    for action in actions:
        if isinstance(action, RemoveUnexpected | RemoveSurplus):
            removals += 1
            if removals > removals_max:
                continue
        kept.append(action)
    return tuple(kept)
