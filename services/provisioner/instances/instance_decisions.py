"""Decides what happens to an instance: pure functions over its record and a provider's list.

An instance's life is `intended -> running -> terminating -> terminated`, with `leaked` beside
`terminating` while it should be gone and is not. An `orphaned` instance is this fleet's, but the
store that knew it is lost: only an operator's command adopts or terminates it.

An instance's record is written before the provider is called, and says `terminated` only once the
provider no longer lists it. Where record and provider differ (a repeated step, an undo before its
launch, the sweep), these functions decide what to do. Nothing here calls a provider, reads a clock
or writes a record.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from msgspec.structs import replace

from schemas.instance_records import InstanceRecord, RequestedOffering
from schemas.launch_offers import Offering
from schemas.saga_params import LaunchSpec
from schemas.termination_orders import Authority, SurplusInstance
from services.provisioner.provider_client.instance_list import InstanceList
from services.provisioner.provider_client.provider import Capabilities, Instance

TOKEN_CHARS: Final = 32
ERROR_CHARS_MAX: Final = 500
SURPLUS_MAX: Final = 16
"""Of one record; what is beyond is proposed again by a sweep."""
REFUSED_MAX: Final = 32
"""Of a launch's refused offerings, those that are remembered."""

PLACED: Final = ("instance_type", "market", "region", "zone")
"""What an instance and the offering of its launch have in common."""
TERMINATING_STATES: Final = ("terminating", "leaked")
ADOPTABLE_STATUSES: Final = ("pending", "running")
ADOPTED: Final = "adopted"
"""In place of the saga that launched an instance: no unwinding saga removes it."""


def may_be_hidden(record: InstanceRecord, unseen: Iterable[str]) -> bool:
    """Return whether the record's instance may exist where its provider could not look.

    Without a known provider ID it may be in any such place.
    """
    known = record.provider_id
    return any(not known or known.startswith(each) for each in unseen)


def why_out_of_region(record: InstanceRecord, can: Capabilities) -> str:
    """Return why the provider can neither remove nor list the record's instance; empty if it can.

    Its absence from another region's list proves nothing.
    """
    chosen = record.offering.region if record.offering is not None else ""
    region = record.region or chosen
    if not can.sees_region_only or region in ("", can.region):
        return ""
    return (
        f"it was launched in {region}, and provider {record.provider} is configured for "
        f"{can.region} now: configure {region} again, or remove "
        f"{record.provider_id or record.instance} there by hand"
    )


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


def unrecorded_instance(
    pool: str, instance: str, launch: LaunchSpec, by: Authority, now: datetime
) -> InstanceRecord:
    """Return the record of an instance that must go and has none.

    It was never launched, or its record is lost. It names no provider: any of them may have it. It
    also prevents a launch after its undo.
    """
    record = replace(intended_record(pool, instance, launch, by.saga, now), provider="")
    return mark_terminating(record, now, by, "it had no record when it was to be removed")


def possible_providers(record: InstanceRecord, configured: Iterable[str]) -> tuple[str, ...]:
    """Return the providers that may have the instance of a record."""
    if record.provider:
        return (record.provider,)
    launch = record.launch
    offers = launch.choice.offers if launch.choice is not None else ()
    return tuple({each.provider for each in offers} or {launch.provider} - {""} or configured)


def record_from_tags(provider: str, instance: Instance, now: datetime) -> InstanceRecord:
    """Return a record for an instance that has none, from its tags."""
    launch = LaunchSpec(
        fleet=instance.fleet,
        provider=provider,
        instance_type=instance.instance_type,
        region=instance.region,
        lasting=instance.lasting,
    )
    record = intended_record(instance.pool, instance.name, launch, "", now)
    record = replace(record, token=instance.token or record.token)
    return record if instance.fleet else replace(record, created_at=instance.created_at)


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
        dollars_per_hour=record.dollars_per_hour,
        lasting=record.launch.lasting,
    )


def type_of(record: InstanceRecord) -> str:
    """Return the instance type that was launched, else the one that was requested."""
    return record.offering.instance_type if record.offering else record.launch.instance_type


def belongs_to(record: InstanceRecord, instance: Instance) -> bool:
    """Return whether a listed instance is that of this record.

    What others have made has no fleet: its successor may have its name, and is another.
    """
    if record.provider_id and instance.provider_id == record.provider_id:
        return True
    if not instance.fleet:
        return False
    same_name = instance.name == record.instance and instance.pool == record.pool
    return same_name and instance.fleet == record.launch.fleet


def instances_of(record: InstanceRecord, listed: Iterable[Instance]) -> list[Instance]:
    """Return the listed instances that were launched for this record."""
    index = InstanceList.of(listed)
    known = index.by_id.get(record.provider_id, []) if record.provider_id else []
    named = index.by_name.get((record.pool, record.instance), [])
    others = (each for each in named if each not in known)
    return [*known, *(each for each in others if belongs_to(record, each))]


def down_reason(instance: Instance) -> str:
    """Return why a listed instance does not run, as its provider reports; empty: it does or may."""
    if instance.may_hold:
        return ""
    return "its provider lists it as stopped" if instance.status == "stopped" else ""


def find_adoptable(record: InstanceRecord, listed: Iterable[Instance]) -> Instance | None:
    """Return the instance of an earlier attempt, if there is one; every caller picks the same."""
    alive = (each for each in instances_of(record, listed) if each.status in ADOPTABLE_STATUSES)
    return min(alive, key=lambda each: each.provider_id, default=None)


@dataclass(frozen=True, slots=True)
class Settlement:
    """Says what happens to an instance just launched or adopted, and holds the record to write."""

    outcome: Literal["running", "surplus", "removed", "kept", "doubtful"]
    """It is recorded; another one is recorded, so remove it; its removal was requested
    meanwhile; it was left to an operator meanwhile; another record has this ID."""
    record: InstanceRecord


def settle(
    record: InstanceRecord,
    made: Instance,
    now: datetime,
    provider: str,
    requested: InstanceRecord | None = None,
    held_by: str = "",
) -> Settlement:
    """Decide what happens to an instance just launched or adopted, by the current record.

    `provider` has it: if the record names another one by now, it is surplus. `requested`: the
    record with the offering that it was requested from; None: it was adopted, or another answer to
    its token is recorded, so that a sweep decides which is the node. `held_by`: the record that has
    this ID already, so that the answer is not about this launch.
    """
    if held_by:
        return Settlement("doubtful", record)

    def surplus() -> Settlement:
        # What was found in a list may be the node as well as the recorded one: a sweep decides.
        if requested is None:
            return Settlement("surplus", record)
        by = Authority(kind="launch", saga=requested.saga, at=now)
        one = SurplusInstance(provider=provider, provider_id=made.provider_id, authority=by)
        return Settlement("surplus", with_surplus(record, one))

    # Two names of the configuration may lead into one account.
    same = bool(record.provider_id) and record.provider_id == made.provider_id
    if record.state == "orphaned":
        return Settlement("kept", record) if same or requested is None else surplus()
    if record.provider != provider and not same:
        if record.offering is not None or record.provider_id:
            return surplus()
        record = replace(record, provider=provider)
    if record.state == "running":
        return Settlement("running", record) if same else surplus()
    if record.state != "intended":
        return Settlement("removed", mark_listed(record, made, now))
    record = _with_offering(record, made, requested)
    return Settlement(
        "running",
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
            refused=(),
            error="",
            running_at=now,
        ),
    )


def answers_same_request(record: InstanceRecord | None, requested: InstanceRecord) -> bool:
    """Return whether a record's instance was requested by the same token, from one offering.

    A provider that knows tokens makes one instance of both requests: where its answers differ, one
    of them is wrong, and the instance may serve.
    """
    if record is None or record.state != "running":
        return False
    asked = (requested.token, requested.provider, requested.offering)
    return (record.token, record.provider, record.offering) == asked


def with_surplus(record: InstanceRecord, surplus: SurplusInstance) -> InstanceRecord:
    """Return a record that keeps one more instance that must go."""
    others = (each for each in record.surplus if each.provider_id != surplus.provider_id)
    return replace(record, surplus=(*others, surplus)[-SURPLUS_MAX:])


def _with_offering(
    record: InstanceRecord, made: Instance, requested: InstanceRecord | None
) -> InstanceRecord:
    """Return the record with the offering that an instance was launched from, as far as known.

    Another replica may have gone on to the next offering, or an answer came late: of those that
    were requested it is one that agrees with what the provider reports of the instance.
    """
    own = _requested_offering(requested) if requested is not None else None
    known = [
        each
        for each in (own, _requested_offering(record), *reversed(record.refused))
        if each is not None and each.offering.provider == record.provider
    ]
    found = next((each for each in known if _may_be_from(made, each.offering)), None)
    if found is None and not known:
        return replace(record, offering=_offering_of(record.provider, made))
    if found is None:
        # A restored store may lack what was requested last; a market is not mistaken.
        found = known[0]
        if made.market not in ("", found.offering.market):
            found = RequestedOffering(offering=replace(found.offering, market=made.market))
    return replace(
        record,
        offering=found.offering,
        dollars_per_hour=found.dollars_per_hour,
        chosen=found.chosen,
    )


def _requested_offering(record: InstanceRecord) -> RequestedOffering | None:
    """Return the offering that a record names, if it names one."""
    if record.offering is None:
        return None
    return RequestedOffering(
        offering=record.offering,
        dollars_per_hour=record.dollars_per_hour,
        chosen=record.chosen,
    )


def _may_be_from(made: Instance, offering: Offering) -> bool:
    """Whether nothing that is known of an instance differs from an offering."""
    pairs = ((getattr(made, each), getattr(offering, each)) for each in PLACED)
    return all(one == other or not (one and other) for one, other in pairs)


def _offering_of(provider: str, made: Instance) -> Offering | None:
    """Return the offering that an instance is of; None where its market is not known."""
    placed = {each: getattr(made, each) for each in PLACED}
    return Offering(provider=provider, **placed) if made.market else None


def refused(record: InstanceRecord, offering: Offering | None, reason: str) -> InstanceRecord:
    """Return the record of a launch that was refused, which costs nothing any more.

    Another replica may have gone on from `offering` since: then what it chose stays.
    """
    counted = replace(record, attempts=record.attempts + 1, error=reason[:ERROR_CHARS_MAX])
    late = _requested_offering(record)
    if late is None or late.offering != offering:
        return counted
    others = (each for each in record.refused if each.offering != offering)
    return replace(
        counted,
        offering=None,
        dollars_per_hour=0.0,
        chosen="",
        refused=(*others, late)[-REFUSED_MAX:],
    )


def authority_of(record: InstanceRecord) -> Authority:
    """Return who ordered an instance to go; earlier releases kept only the saga."""
    return record.authority or Authority(kind="saga", saga=record.saga)


def mark_terminating(
    record: InstanceRecord, now: datetime, by: Authority, error: str = ""
) -> InstanceRecord:
    """Return the record of an instance that must go, which keeps by whose order.

    One that is going or gone is unchanged: the first order counts.
    """
    if record.state in {"terminating", "leaked", "terminated"}:
        return record
    return replace(
        record,
        state="terminating",
        error=error[:ERROR_CHARS_MAX] or record.error,
        authority=by,
        ordered=(record.provider_id,) if record.provider_id else (),
        terminating_at=now,
        terminated_at=None,
    )


def mark_listed(
    record: InstanceRecord, instance: Instance, now: datetime, by: Authority | None = None
) -> InstanceRecord:
    """Return the record of an instance that must go, now that its provider lists it.

    `by`: a new order; None: that of the record means this instance, too.
    """
    if record.state == "terminated":
        again = replace(record, state="running", provider_id=instance.provider_id)
        record = mark_terminating(again, now, by or authority_of(record))
    known = record.running_at if record.provider_id == instance.provider_id else None
    return replace(
        record,
        provider_id=instance.provider_id,
        ordered=tuple(dict.fromkeys((*record.ordered, instance.provider_id))),
        # Just launched, it may be missing from the next list, however old the record is.
        running_at=known or now,
        dollars_per_hour=instance.dollars_per_hour or record.dollars_per_hour,
    )


def mark_terminated(record: InstanceRecord, now: datetime, error: str = "") -> InstanceRecord:
    """Return the record of an instance whose absence the provider has confirmed."""
    return replace(record, state="terminated", terminated_at=now, error=error or record.error)
