"""Tells people what a sweep does or would do, and why; what it leaves alone yet included. Pure.

The sweep itself is decided in `core`. Here the same decision is taken once more without its grace
and without its bound, so that what waits is told beside what is due.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from schemas.instance_records import InstanceRecord
from schemas.sweeps import SweepLine, SweepVerb
from services.provisioner.instances import instance_decisions
from services.provisioner.provider_client.provider import Instance

UNBOUNDED: Final = 1_000_000
OBSERVES: Final = "its pool only observes (`mode: observe`)"
TOO_MANY: Final = "so many unexpected instances are not removed in one sweep; the next goes on"


def report(
    seen: instance_decisions.SweepInput,
    due: Sequence[instance_decisions.SweepAction],
    observes: Callable[[str], bool],
    outcomes: Sequence[str] = (),
) -> tuple[SweepLine, ...]:
    """One line for each thing that is due, waits or is held back, in the sweep's own order."""
    came = dict(zip(map(_key, due), outcomes, strict=False))
    ripe = {_key(each) for each in instance_decisions.decide_sweep(seen, UNBOUNDED)}
    taken = {_key(each) for each in due}
    found = instance_decisions.decide_sweep(replace(seen, grace=timedelta()), UNBOUNDED)
    lines = []
    for action in found:
        key = _key(action)
        line = _line(seen, action)
        if key not in ripe:
            line = _with(line, waits_seconds=_waits(seen, action))
        elif isinstance(
            action, instance_decisions.RemoveUnexpected | instance_decisions.RemoveSurplus
        ) and observes(line.pool):
            line = _with(line, held_back=OBSERVES)
        elif key not in taken:
            line = _with(line, held_back=TOO_MANY)
        else:
            line = _with(line, outcome=came.get(key, ""))
        lines.append(line)
    return tuple(lines)


def _with(line: SweepLine, **changes: object) -> SweepLine:
    return SweepLine(**{each: getattr(line, each) for each in line.__struct_fields__} | changes)


def _key(action: instance_decisions.SweepAction) -> tuple[str, str, str]:
    """What tells one action of a sweep from another."""
    match action:
        case instance_decisions.RemoveUnexpected(
            _, provider, instance
        ) | instance_decisions.RemoveSurplus(provider, instance):
            return "remove", provider, instance.provider_id
        case instance_decisions.AdoptInstance(key, _) | instance_decisions.RestoreRecord(key):
            return "adopt", key, ""
        case instance_decisions.RetryRemoval(key):
            return "again", key, ""
        case instance_decisions.UpdateListingError(key):
            return "note", key, ""


def _line(seen: instance_decisions.SweepInput, action: instance_decisions.SweepAction) -> SweepLine:
    match action:
        case instance_decisions.RemoveUnexpected(
            _, provider, instance, why
        ) | instance_decisions.RemoveSurplus(provider, instance, why):
            return _of_instance("terminate", provider, instance, why)
        case instance_decisions.AdoptInstance(key, instance):
            reason = "it was made for a launch that nobody has finished"
            return _of_instance("adopt", seen.records[key].provider, instance, reason)
        case instance_decisions.RestoreRecord(_, provider, instance):
            reason = "its node is in service, and its record is lost"
            return _of_instance("adopt", provider, instance, reason)
        case instance_decisions.RetryRemoval(key):
            return _again(seen, seen.records[key])
        case instance_decisions.UpdateListingError(key, error):
            reason = error or "its provider lists it again"
            return _of_record("note", seen.records[key], reason)
        case _:
            assert_never(action)


def _again(seen: instance_decisions.SweepInput, record: InstanceRecord) -> SweepLine:
    listed = seen.listed.get(record.provider)
    said = f": {record.error}" if record.error else ""
    if listed is None:
        reason = f"its provider could not be listed, so that nobody knows whether it stands{said}"
        return _of_record("terminate", record, reason)
    if any(instance_decisions.belongs_to(record, each) for each in listed):
        return _of_record("terminate", record, f"it should be gone, and is listed{said}")
    return _of_record("forget", record, "its provider lists it no more")


def _of_instance(verb: SweepVerb, provider: str, instance: Instance, reason: str) -> SweepLine:
    return SweepLine(
        verb=verb,
        pool=instance.pool,
        instance=instance.name,
        provider=provider,
        provider_id=instance.provider_id,
        reason=reason,
        dollars_per_hour=instance.dollars_per_hour,
    )


def _of_record(verb: SweepVerb, record: InstanceRecord, reason: str) -> SweepLine:
    return SweepLine(
        verb=verb,
        pool=record.pool,
        instance=record.instance,
        provider=record.provider,
        provider_id=record.provider_id,
        reason=reason,
        dollars_per_hour=record.dollars_per_hour,
    )


def _waits(seen: instance_decisions.SweepInput, action: instance_decisions.SweepAction) -> float:
    """How much of the grace is left."""
    left = seen.grace - (seen.now - _since(seen, action))
    return max(left.total_seconds(), 0.0)


def _since(seen: instance_decisions.SweepInput, action: instance_decisions.SweepAction) -> datetime:
    match action:
        case instance_decisions.RetryRemoval(key):
            record = seen.records[key]
            return record.terminating_at or record.intended_at
        case instance_decisions.UpdateListingError(key):
            record = seen.records[key]
            return record.running_at or record.intended_at
        case instance_decisions.AdoptInstance(key, instance):
            place = (seen.records[key].provider, instance.provider_id)
        case instance_decisions.RemoveUnexpected(
            _, provider, instance
        ) | instance_decisions.RemoveSurplus(provider, instance):
            place = (provider, instance.provider_id)
        case instance_decisions.RestoreRecord(_, provider, instance):
            place = (provider, instance.provider_id)
    return seen.first_seen.get(place, seen.now)
