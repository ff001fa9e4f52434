"""Describes what a workload system says of a node and its work, in words. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from schemas.node_events import (
    CheckpointRequested,
    OwnersNotified,
    WorkFailed,
    WorkloadState,
    WorkRemains,
)
from schemas.node_records import WorkloadView
from schemas.node_work import RemainingWork
from services.operator_text.quantities import local_time, rough_time

NAMED_MAX: Final = 5
"""Jobs named in one sentence."""
NAMED_BESIDE_REASONS_MAX: Final = 1
"""Jobs named before the reasons why work stays, which name it themselves: what an event's line has
room for is the reasons."""


def work_words(event: WorkRemains, at: datetime) -> str:
    """Return what a drain waits for, and until when at the latest; `at` is the current time."""
    ends = [each.ends_at for each in event.work if each.ends_at is not None]
    last = max(ends) if len(ends) == event.total else None
    limits = [each for each in (last, event.until) if each is not None]
    most = NAMED_BESIDE_REASONS_MAX if event.detail else NAMED_MAX
    named = _named(event.work, event.total, at, most)
    why = f". {event.detail}" if event.detail else ""
    if not limits:
        return f"waits for {named}, without a time limit{why}"
    left = (min(limits) - at).total_seconds()
    ahead = f" (in {rough_time(left)})" if left > 0 else ""
    return f"waits for {named}, until {local_time(min(limits))} at the latest{ahead}{why}"


def checkpoint_words(event: CheckpointRequested) -> str:
    """Return which work was asked, or has announced its checkpoint, and how long it has."""
    until, named = local_time(event.until), _named(event.work, event.total, event.time)
    if event.work and all(each.checkpoint_at is not None for each in event.work):
        return f"waits for the next checkpoint of {named}, until {until}"
    return f"asked {named} for a checkpoint; it has until {until}"


def owners_words(event: OwnersNotified) -> str:
    """Return whose work is ended, and when."""
    named = _named(event.work, event.total, event.time) or "the work on it"
    return f"{named} has until {local_time(event.until)}"


def _named(work: Sequence[RemainingWork], total: int, at: datetime, most: int = NAMED_MAX) -> str:
    named = [_job(each, at) for each in work[:most]]
    if total > len(named):
        named.append(f"{total - len(named)} more")
    return ", ".join(named)


def _job(work: RemainingWork, at: datetime) -> str:
    whose = f" of {work.owner}" if work.owner else ""
    named = " ".join(f"{work.id}{whose}".split())  # one line, whatever a workload system says
    ran = (at - work.started_at).total_seconds() if work.started_at is not None else -1.0
    return f"{named} (has run for {rough_time(ran)})" if ran >= 0 else named


def failed_work_words(event: WorkFailed) -> str:
    """Return which job failed, whose it is, and why."""
    whose = f" of {event.work.owner}" if event.work.owner else ""
    why = f": {event.reason}" if event.reason else ""
    return f"{event.work.id}{whose} failed in {event.system}{why}"


def state_words(state: WorkloadState | WorkloadView) -> str:
    """Return whether the workload system can use the node, and whether another has cordoned it."""
    said = []
    if not state.ready:
        said.append("cannot use it")
    if state.cordoned:
        said.append("has it cordoned by another than Navarch, which does not uncordon it")
    since = f" since {local_time(state.since)}" if said and state.since else ""
    reason = f": {state.reason}" if state.reason else ""
    return f"{state.system} {', and '.join(said) or 'can use it'}{since}{reason}"
