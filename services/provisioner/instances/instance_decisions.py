"""Decides what happens to an instance: pure functions over its record and a provider's list.

An instance's life is `intended -> running -> terminating -> terminated`, with `leaked` beside
`terminating` while it should be gone and is not. Its record is written before the provider is
called, and says `terminated` only once the provider no longer lists it. Where record and provider
differ (a repeated step, an undo that overtook a launch, the sweep), the caller asks here what to
do; nothing here calls a provider, reads a clock or writes a record.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from schemas.enums import NOT_LISTED, ProviderErrorKind
from schemas.instance_records import InstanceRecord
from schemas.names import TOKEN
from schemas.node_records import node_key
from schemas.saga_params import LaunchSpec
from services.provisioner.instances.visibility import (
    hidden_prefixes,
    may_be_hidden,
    why_out_of_region,
)
from services.provisioner.provider_client.provider import Capabilities, Instance
from services.provisioner.provider_client.provider_errors import RULES

TOKEN_CHARS: Final = 32
ERROR_CHARS_MAX: Final = 500

TERMINATING_STATES: Final = ("terminating", "leaked")
ADOPTABLE_STATUSES: Final = ("pending", "running")


def launch_token(fleet: str, pool: str, instance: str) -> str:
    """Return the idempotency token of an intention: the same for every attempt."""
    return hashlib.sha256(f"{fleet}/{pool}/{instance}".encode()).hexdigest()[:TOKEN_CHARS]


# --- one instance --------------------------------------------------------------------------------


def intended_record(
    pool: str, instance: str, launch: LaunchSpec, saga: str, now: datetime
) -> InstanceRecord:
    """Return the record that must be written before a provider is called."""
    return InstanceRecord(
        pool=pool,
        instance=instance,
        provider=launch.provider,
        token=launch_token(launch.fleet, pool, instance),
        launch=launch,
        saga=saga,
        intended_at=now,
    )


def cancelled_record(pool: str, instance: str, saga: str, now: datetime) -> InstanceRecord:
    """Return the record that prevents a launch after its undo."""
    launch = LaunchSpec(fleet="", provider="", instance_type="")
    record = intended_record(pool, instance, launch, saga, now)
    return replace(record, state="terminated", error="undone before it began", terminated_at=now)


def instance_of(record: InstanceRecord) -> Instance:
    """Return the instance of a record."""
    return Instance(
        name=record.instance,
        provider_id=record.provider_id,
        status="running",
        fleet=record.launch.fleet,
        pool=record.pool,
        token=record.token,
        instance_type=type_of(record),
        region=record.region,
        zone=record.zone,
        address=record.address,
    )


def type_of(record: InstanceRecord) -> str:
    """Return the instance type that was launched, else the one that was requested."""
    return record.offering.instance_type if record.offering else record.launch.instance_type


def belongs_to(record: InstanceRecord, instance: Instance) -> bool:
    """Whether a listed instance was launched for this record."""
    if record.provider_id and instance.provider_id == record.provider_id:
        return True
    same_name = instance.name == record.instance and instance.pool == record.pool
    return same_name and instance.fleet == record.launch.fleet


def find_adoptable(record: InstanceRecord, listed: Iterable[Instance]) -> Instance | None:
    """Return the instance of an earlier attempt, if there is one; every caller picks the same."""
    found = (each for each in listed if belongs_to(record, each))
    alive = (each for each in found if each.status in ADOPTABLE_STATUSES)
    return min(alive, key=lambda each: each.provider_id, default=None)


@dataclass(frozen=True, slots=True)
class RecordRunning:
    """Write this record: the instance runs."""

    record: InstanceRecord


@dataclass(frozen=True, slots=True)
class AlreadyRecorded:
    """The record already says that this very instance runs."""

    record: InstanceRecord


@dataclass(frozen=True, slots=True)
class SurplusInstance:
    """Another instance was recorded for this intention: remove the new one."""

    record: InstanceRecord


@dataclass(frozen=True, slots=True)
class RemovedMeanwhile:
    """Its removal was requested meanwhile: write this record and remove the instance."""

    record: InstanceRecord


Settlement = RecordRunning | AlreadyRecorded | SurplusInstance | RemovedMeanwhile


def settle(record: InstanceRecord, made: Instance, now: datetime, provider: str = "") -> Settlement:
    """Decide what happens to an instance just launched or adopted, by the current record.

    `provider` launched it; if the record names another provider by now, it is surplus.
    """
    if provider and record.offering is not None and record.provider != provider:
        return SurplusInstance(record)
    if record.state == "intended":
        return RecordRunning(
            replace(
                record,
                state="running",
                provider_id=made.provider_id,
                region=made.region
                or (record.offering.region if record.offering else "")
                or record.launch.region,
                zone=made.zone,
                address=made.address,
                host=made.host,
                dollars_per_hour=made.dollars_per_hour or record.dollars_per_hour,
                error="",
                running_at=now,
            )
        )
    if record.state != "running":
        return RemovedMeanwhile(mark_listed(record, made, now))
    return (
        AlreadyRecorded(record)
        if record.provider_id == made.provider_id
        else SurplusInstance(record)
    )


def mark_terminating(record: InstanceRecord, now: datetime, error: str = "") -> InstanceRecord:
    """Return the record of an instance that must go; one that is going or gone is unchanged."""
    if record.state in {"terminating", "leaked", "terminated"}:
        return record
    return replace(
        record,
        state="terminating",
        error=error[:ERROR_CHARS_MAX] or record.error,
        terminating_at=now,
        terminated_at=None,
    )


def mark_listed(record: InstanceRecord, instance: Instance, now: datetime) -> InstanceRecord:
    """Return the record of an instance that must go, now that its provider lists it."""
    if record.state == "terminated":
        record = mark_terminating(replace(record, state="running"), now)
    known = record.running_at if record.provider_id == instance.provider_id else None
    return replace(
        record,
        provider_id=instance.provider_id,
        # Just launched, it may be missing from the next list, however old the record is.
        running_at=known or now,
        dollars_per_hour=instance.dollars_per_hour or record.dollars_per_hour,
    )


def mark_terminated(record: InstanceRecord, now: datetime) -> InstanceRecord:
    """Return the record of an instance whose absence the provider has confirmed."""
    return replace(record, state="terminated", terminated_at=now)


def count_removal_attempt(
    record: InstanceRecord, reason: str, now: datetime, *, leak: bool
) -> InstanceRecord:
    """Return the record after another failed removal."""
    if record.state not in TERMINATING_STATES:
        return record
    return replace(
        record,
        state="leaked" if leak else record.state,
        error=reason[:ERROR_CHARS_MAX],
        removal_attempts=record.removal_attempts + 1,
        removal_tried_at=now,
    )


def is_leak(
    record: InstanceRecord, kind: ProviderErrorKind | None, now: datetime, after: timedelta
) -> bool:
    """Whether it is a leak: the removal takes too long, or the provider refuses it."""
    if record.state != "terminating":
        return False
    refused = kind is not None and not RULES[kind].retry_in_step
    return refused or now - (record.terminating_at or record.intended_at) >= after


def provider_ids_to_remove(record: InstanceRecord, listed: Iterable[Instance]) -> tuple[str, ...]:
    """Return every provider ID of this record, the recorded one first."""
    found = sorted(each.provider_id for each in listed if belongs_to(record, each))
    first = (record.provider_id,) if record.provider_id else ()
    return tuple(dict.fromkeys((*first, *found)))


def is_absent(
    record: InstanceRecord, listed: Iterable[Instance], asked_at: datetime, lag: timedelta
) -> bool:
    """Whether a list that was begun at `asked_at` proves that the instance is gone.

    It must be late enough that even a lagging list would show it: counted from when the ID was
    learnt, or, without one, from when the launch was given up.
    """
    listed = tuple(listed)
    if any(belongs_to(record, each) for each in listed) or may_be_hidden(
        record, hidden_prefixes(listed)
    ):
        return False
    known_at = record.running_at if record.provider_id else None
    return asked_at - (known_at or record.terminating_at or record.intended_at) >= lag


# --- the sweep -----------------------------------------------------------------------------------


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
            if instance.fleet != seen.fleet:
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
    if record is None:
        if not old:
            return None
        if key in seen.living:
            return RestoreRecord(key, provider, instance)
        return RemoveUnexpected(key, provider, instance, "no record of it")
    if record.state == "terminated":
        return RemoveUnexpected(key, provider, instance, "its record says that it is gone")
    if record.state == "intended":
        made = find_adoptable(record, seen.listed[provider])
        return AdoptInstance(key, instance) if old and made == instance else None
    if record.state == "running" and record.provider_id != instance.provider_id and old:
        return RemoveSurplus(provider, instance, f"its record names {record.provider_id}")
    return None


def _decide_record(
    seen: SweepInput, key: str, record: InstanceRecord, *, listed: bool
) -> SweepAction | None:
    if record.state in TERMINATING_STATES:
        since = record.terminating_at or record.intended_at
        due = record.state == "leaked" or seen.now - since >= seen.grace
        return RetryRemoval(key) if due else None
    if record.state != "running" or record.provider not in seen.listed:
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
