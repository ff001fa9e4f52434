"""Decides when a saga's timer is to fire. Pure.

A saga needs one timer at a time: where one that an earlier step began with fires before the moment
of the step that begins, no other is stored; and each that fires is followed by the next.
"""

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from schemas.saga_log_entries import StepStarted
from services.saga.saga_state import SagaState

MARGIN: Final = timedelta(minutes=5)
"""What fires sooner may have fired already: clocks differ, and entries are taken in late."""


class DueMoment(NamedTuple):
    """A step has its deadline, or is reported overdue, at this moment."""

    at: datetime
    step: str


def to_store(state: SagaState, entry: StepStarted) -> datetime | None:
    """Return when the timer of a step that begins is to fire; None: an earlier one will do."""
    first = _first(entry.overdue, entry.deadline)
    if first is None:
        return None
    others = (
        _first(step.overdue, step.deadline)
        for name, step in state.steps.items()
        if name != entry.step
    )
    is_pending = any(each and entry.time + MARGIN < each < first for each in others)
    return None if is_pending else first


def next_due(state: SagaState, after: datetime) -> DueMoment | None:
    """Return the next moment later than `after`: of any step, since later ones may rely on it."""
    found = (
        DueMoment(at, name)
        for name, step in state.steps.items()
        for at in (None if step.overdue_reported else step.overdue, step.deadline)
        if at is not None and at > after
    )
    return None if state.ended else min(found, default=None)


def _first(overdue: datetime | None, deadline: datetime | None) -> datetime | None:
    return min((each for each in (overdue, deadline) if each is not None), default=None)
