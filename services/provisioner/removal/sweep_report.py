"""Describes what a sweep does or would do, and why, including deferred actions. Pure.

The sweep itself is decided in `instance_decisions`. The report takes the same decision again
without the grace and without the limit, so that what waits is shown beside what is due.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

import msgspec

from schemas.instance_records import InstanceRecord
from schemas.sweeps import SweepLine, SweepVerb
from services.provisioner.instances.instance_decisions import belongs_to
from services.provisioner.provider_client.provider import Instance
from services.provisioner.removal.sweep_decisions import (
    AdoptInstance,
    AdoptOrphan,
    ForgetOrphan,
    KeepOrphan,
    RemoveSurplus,
    RemoveUnexpected,
    RestoreRecord,
    RetryRemoval,
    SweepAction,
    SweepInput,
    TerminateOrphan,
    UpdateListingError,
    decide_sweep,
)

UNLIMITED: Final = 1_000_000
OBSERVES: Final = "its pool is in observe mode (`mode: observe`)"
TOO_MANY: Final = "one sweep removes no more unexpected instances; the next one continues"


def report(
    seen: SweepInput,
    due: Sequence[SweepAction],
    observes: Callable[[str], bool],
    outcomes: Sequence[str] = (),
) -> tuple[SweepLine, ...]:
    """Return a line for each action that is due, waits or is held back, in the sweep's order."""
    outcome_of = dict(zip(map(_key, due), outcomes, strict=False))
    past_grace = {_key(each) for each in decide_sweep(seen, UNLIMITED)}
    performed = {_key(each) for each in due}
    lines = []
    for action in decide_sweep(replace(seen, grace=timedelta()), UNLIMITED):
        key, line = _key(action), _line(seen, action)
        if key not in past_grace:
            line = msgspec.structs.replace(line, waits_seconds=_grace_left(seen, action))
        elif isinstance(action, RemoveUnexpected | RemoveSurplus) and observes(line.pool):
            line = msgspec.structs.replace(line, held_back=OBSERVES)
        elif key not in performed:
            line = msgspec.structs.replace(line, held_back=TOO_MANY)
        elif not line.held_back:
            line = msgspec.structs.replace(line, outcome=outcome_of.get(key, ""))
        lines.append(line)
    return tuple(lines)


def orphan_remedy(name: str) -> str:
    """The commands that resolve an orphan."""
    return (
        f"`navarch sweep --adopt {name}` makes it a node of its pool, "
        f"`navarch sweep --terminate {name}` removes it"
    )


def _key(action: SweepAction) -> tuple[str, str, str]:
    """Identify an action among those of one sweep."""
    match action:
        case RemoveUnexpected() | RemoveSurplus():
            return "remove", action.provider, action.instance.provider_id
        case AdoptInstance(key) | RestoreRecord(key):
            return "adopt", key, ""
        case RetryRemoval(key):
            return "retry", key, ""
        case KeepOrphan(key) | AdoptOrphan(key) | TerminateOrphan(key) | ForgetOrphan(key):
            return "orphan", key, ""
        case UpdateListingError(key):
            return "note", key, ""


def _line(seen: SweepInput, action: SweepAction) -> SweepLine:
    match action:
        case RemoveUnexpected() | RemoveSurplus():
            return _instance_line("terminate", action.provider, action.instance, action.why)
        case AdoptInstance(key, instance):
            reason = "it was launched, and the launch was not finished"
            return _instance_line("adopt", seen.records[key].provider, instance, reason)
        case RestoreRecord(_, provider, instance):
            reason = "its node is in service, and its record is lost"
            return _instance_line("adopt", provider, instance, reason)
        case KeepOrphan(_, provider, instance, why):
            line = _instance_line("orphan", provider, instance, why)
            return msgspec.structs.replace(line, held_back=orphan_remedy(instance.name))
        case AdoptOrphan(key):
            return _record_line("adopt", seen.records[key], "an operator adopts this orphan")
        case TerminateOrphan(key):
            return _record_line("terminate", seen.records[key], "an operator removes this orphan")
        case ForgetOrphan(key):
            return _record_line("forget", seen.records[key], "this orphan is no longer listed")
        case RetryRemoval(key):
            return _retry_line(seen, seen.records[key])
        case UpdateListingError(key, error):
            reason = error or "its provider lists it again"
            return _record_line("note", seen.records[key], reason)


def _retry_line(seen: SweepInput, record: InstanceRecord) -> SweepLine:
    listed = seen.listed.get(record.provider)
    error = f": {record.error}" if record.error else ""
    if listed is None:
        reason = f"its provider could not be listed, so it may still exist{error}"
        return _record_line("terminate", record, reason)
    if any(belongs_to(record, each) for each in listed):
        return _record_line("terminate", record, f"it should be gone, and is listed{error}")
    return _record_line("forget", record, "its provider no longer lists it")


def _instance_line(verb: SweepVerb, provider: str, instance: Instance, reason: str) -> SweepLine:
    return SweepLine(
        verb=verb,
        pool=instance.pool,
        instance=instance.name,
        provider=provider,
        provider_id=instance.provider_id,
        reason=reason,
        dollars_per_hour=instance.dollars_per_hour,
    )


def _record_line(verb: SweepVerb, record: InstanceRecord, reason: str) -> SweepLine:
    return SweepLine(
        verb=verb,
        pool=record.pool,
        instance=record.instance,
        provider=record.provider,
        provider_id=record.provider_id,
        reason=reason,
        dollars_per_hour=record.dollars_per_hour,
    )


def _grace_left(seen: SweepInput, action: SweepAction) -> float:
    """Return how many seconds of the grace are left."""
    match action:
        case RetryRemoval(key):
            record = seen.records[key]
            since = record.terminating_at or record.intended_at
        case UpdateListingError(key):
            record = seen.records[key]
            since = record.running_at or record.intended_at
        case AdoptInstance(key, instance):
            place = (seen.records[key].provider, instance.provider_id)
            since = seen.first_seen.get(place, seen.now)
        case AdoptOrphan() | TerminateOrphan() | ForgetOrphan():
            return 0.0
        case RemoveUnexpected() | RemoveSurplus() | RestoreRecord() | KeepOrphan():
            place = (action.provider, action.instance.provider_id)
            since = seen.first_seen.get(place, seen.now)
    return max((seen.grace - (seen.now - since)).total_seconds(), 0.0)
