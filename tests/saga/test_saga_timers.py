"""A saga that waits always has a timer that fires no later than the moment it waits for."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from schemas.saga_log_entries import StepStarted
from schemas.saga_params import SagaParams
from services.saga.saga_state import SagaState, StepState
from services.saga.saga_timers import DueMoment, next_due, to_store
from tests.support.saga_states import saga_state

START = datetime(2026, 11, 28, tzinfo=UTC)
STEPS = ("provision", "bootstrap", "register", "admit")


def after(minutes: float) -> datetime:
    """Return a time so many minutes after the start."""
    return START + timedelta(minutes=minutes)


def begins(step: str, at: float, *, deadline: float, overdue: float | None = None) -> StepStarted:
    """A step that begins; all in minutes after the start."""
    return StepStarted(
        id=f"s.{step}.started",
        time=after(at),
        cause="before",
        saga="s",
        step=step,
        inputs={},
        deadline=after(deadline),
        overdue=None if overdue is None else after(overdue),
    )


def state_of(*entries: StepStarted, under_way: bool = True) -> SagaState:
    """A saga with these steps; the last is under way."""
    steps = {
        each.step: StepState(
            status="started" if under_way and each is entries[-1] else "succeeded",
            deadline=each.deadline,
            overdue=each.overdue,
        )
        for each in entries
    }
    return saga_state(
        saga="s",
        kind="scale-up",
        params=SagaParams(pool="web", new_node="web-1"),
        started_at=START,
        sequence=1,
        steps=steps,
    )


FIRST = begins("provision", 0, deadline=20)


def test_steps_of_a_launch_share_the_timer_of_the_first() -> None:
    """Each would fire later; when it fires, the step then under way has its own."""
    second = begins("bootstrap", 1, deadline=21)
    both = state_of(FIRST, second)
    assert after(20) == to_store(state_of(FIRST), FIRST)
    assert to_store(both, second) is None
    assert DueMoment(after(21), "bootstrap") == next_due(both, after(20))


def test_what_is_due_earlier_or_soon_has_a_timer_of_its_own() -> None:
    """The one that is pending fires too late, or may have fired by now."""
    early = begins("bootstrap", 1, deadline=30, overdue=10)
    late = begins("bootstrap", 16, deadline=36)
    assert after(10) == to_store(state_of(FIRST, early), early)
    assert after(36) == to_store(state_of(FIRST, late), late)


Step = tuple[float, float, float | None]
"""Minutes: how long it takes, until its deadline, until it is overdue."""
steps = st.lists(
    st.tuples(st.floats(0, 40), st.floats(1, 60), st.none() | st.floats(1, 60)),
    min_size=len(STEPS),
    max_size=len(STEPS),
)


def entries_of(lengths: list[Step]) -> Iterator[tuple[StepStarted, float]]:
    """Each step's beginning, and when it ends."""
    now = 0.0
    for name, (length, deadline, overdue) in zip(STEPS, lengths, strict=True):
        due = None if overdue is None else now + overdue
        yield begins(name, now, deadline=now + deadline, overdue=due), now + length
        now += length


@given(steps)
def test_what_waits_is_woken_in_time(lengths: list[Step]) -> None:
    """A timer fires no later than the moment of the step under way, whatever the steps take."""
    timers, begun = set[datetime](), list[StepStarted]()

    def check(entry: StepStarted, now: datetime) -> None:
        moments = (entry.deadline, entry.overdue)
        future = [each for each in moments if each is not None and each > now]
        assert not future or min(timers) <= min(future)

    for entry, ends in entries_of(lengths):
        begun.append(entry)
        if at := to_store(state_of(*begun), entry):
            timers.add(at)
        check(entry, entry.time)
        while timers and (now := min(timers)) <= after(ends):
            timers.discard(now)
            if later := next_due(state_of(*begun), now):
                timers.add(later.at)
            check(entry, now)
