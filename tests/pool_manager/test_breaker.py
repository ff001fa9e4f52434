"""The breaker: all transitions as a table, then ramp, requests and rate slots."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.breaker_state import Breaker
from schemas.duration import Duration
from schemas.node_records import NodeRecord
from schemas.pool_events import BreakerClosed, BreakerOpened, RequestAccepted, RequestRefused
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import BudgetSpec, HealthSpec, IncidentSpec, PoolSpec
from services.pool_manager.planner.disruption_budget import counted, noted, rate, room_at
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import close, plan
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.safety import breaker
from services.pool_manager.planner.safety.breaker import (
    BreakerReason,
    closed_by_hand,
    forced_open,
    half_opened,
    nothing_waits,
    opened,
    settled,
)
from services.pool_manager.requests.request_decisions import QueuedRequest, RequestDecision, decide

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
STAGE_SECONDS = 10
LATER = NOW + timedelta(minutes=5)
LEVEL = BreakerReason("level", "spent")
WAVE = BreakerReason("wave", "one incident")

CLOSED = Breaker()
RAMPED = Breaker(ramp=4, ramp_from=NOW)
OPEN = Breaker(state="open", since=NOW, cause="level", reason="spent")
FORCED = Breaker(state="open", since=NOW, cause="operator", reason="r", by="ops", forced=True)
HALF = Breaker(state="half-open", since=NOW, cause="level", probe="s", ramp_from=NOW)

TRANSITIONS = [
    # before, input, after: state, cause, forced, ramp, probe
    ("closed", CLOSED, lambda b: opened(b, LEVEL, LATER), ("open", "level", False, 0, "")),
    ("closed", CLOSED, lambda b: opened(b, WAVE, LATER), ("open", "wave", False, 0, "")),
    ("ramp", RAMPED, lambda b: opened(b, WAVE, LATER), ("open", "wave", False, 0, "")),
    ("open", OPEN, lambda b: opened(b, LEVEL, LATER), ("open", "level", False, 0, "")),
    ("open", OPEN, lambda b: opened(b, WAVE, LATER), ("open", "wave", False, 0, "")),
    ("forced", FORCED, lambda b: opened(b, WAVE, LATER), ("open", "operator", True, 0, "")),
    ("half", HALF, lambda b: opened(b, WAVE, LATER), ("open", "wave", False, 0, "s")),
    ("open", OPEN, lambda b: half_opened(b, "s", LATER), ("half-open", "level", False, 0, "s")),
    ("half", HALF, lambda b: settled(b, LATER), ("half-open", "level", False, 0, "s")),
    ("done", HALF, lambda b: settled(probed(b, "done"), LATER), ("closed", "level", False, 2, "")),
    ("failed", HALF, lambda b: settled(probed(b, "failed"), LATER),
     ("open", "probe-failed", False, 0, "")),
    ("cancelled", HALF, lambda b: settled(probed(b, "cancelled"), LATER),
     ("open", "probe-failed", False, 0, "")),
    ("late", OPEN, lambda b: settled(probed(b, "done"), LATER), ("open", "level", False, 0, "")),
    ("calm", OPEN, lambda b: nothing_waits(b, LATER), ("closed", "level", False, 0, "")),
    ("calm", FORCED, lambda b: nothing_waits(b, LATER), ("open", "operator", True, 0, "")),
    ("calm", HALF, lambda b: nothing_waits(b, LATER), ("half-open", "level", False, 0, "s")),
    ("calm", RAMPED, lambda b: nothing_waits(b, LATER), ("closed", "", False, 0, "")),
    *(
        (name, state, lambda b: forced_open(b, "r", "ops", "request-1", LATER),
         ("open", "operator", True, 0, ""))
        for name, state in (("closed", CLOSED), ("open", OPEN), ("half", HALF), ("forced", FORCED))
    ),
    *(
        (name, state, lambda b: closed_by_hand(b, "r", "ops", "request-1", LATER),
         ("closed", state.cause, False, 1, ""))
        for name, state in (("closed", CLOSED), ("open", OPEN), ("half", HALF), ("forced", FORCED))
    ),
]  # fmt: skip


def probed(state: Breaker, how: Any) -> Breaker:
    """A breaker whose one repair has ended."""
    return msgspec.structs.replace(state, probe="s", probe_outcome=how)


@pytest.mark.parametrize(
    ("before", "act", "after"),
    [pytest.param(*rest, id=f"{i}-{name}") for i, (name, *rest) in enumerate(TRANSITIONS)],
)
def test_every_transition(before: Breaker, act: Any, after: tuple[Any, ...]) -> None:
    """Each input in each state leads to exactly one next state."""
    became = act(before)
    assert after == (became.state, became.cause, became.forced, became.ramp, became.probe)


def test_failed_probes_double_the_wait_up_to_an_hour() -> None:
    """One minute, two, four … sixty; a successful probe resets the wait."""
    waits, state = [], HALF
    for _ in range(9):
        state = settled(probed(state, "failed"), NOW)
        assert state.probe_at is not None
        waits.append((state.probe_at - NOW).total_seconds() / 60)
        state = half_opened(state, "s", NOW)
    assert [1, 2, 4, 8, 16, 32, 60, 60, 60] == waits
    done = settled(probed(state, "done"), NOW)
    assert (0, None) == (done.probes_failed, done.probe_at)


# --- decisions -----------------------------------------------------------------------------------


def pool(desired: int, **changes: Any) -> PoolRecord:
    """A pool, with an unlimited budget unless the arguments set one."""
    budget = BudgetSpec(max_quarantined=0, max_unavailable="100%", max_replacements="unlimited")
    health = HealthSpec(incident=IncidentSpec(stage=Duration(STAGE_SECONDS)))
    spec = PoolSpec(
        provider="p", instance_type="t", min_nodes=0, max_nodes=1000, budget=budget, health=health
    )
    record = PoolRecord(name="training", spec=spec, desired=desired)
    return msgspec.structs.replace(record, **changes)


def budgeted(desired: int, level: int | str, rated: int | str = "unlimited") -> PoolRecord:
    """Return a pool with this budget."""
    record = pool(desired)
    budget = BudgetSpec(max_quarantined=0, max_unavailable=level, max_replacements=rated)
    return msgspec.structs.replace(record, spec=msgspec.structs.replace(record.spec, budget=budget))


def nodes(count: int, unhealthy: int = 0) -> list[NodeRecord]:
    """Nodes, of which the first are unhealthy with a fault signature each."""
    return [
        NodeRecord(
            pool="training",
            node=f"n{i:03}",
            state="active",
            health="unhealthy" if i < unhealthy else "healthy",
            health_kind="xid" if i < unhealthy else "",
            health_code=i,
            health_at=NOW,
            admitted_at=NOW,
        )
        for i in range(count)
    ]


def decided(record: PoolRecord, fleet: list[NodeRecord], after: float = 0) -> PoolPlan:
    """Return the decision after `after` seconds."""
    snapshot = PoolSnapshot(fleet="f", record=record, nodes=Nodes(fleet), revision=7)
    return plan(snapshot, NOW + timedelta(seconds=after))


def repaired(record: PoolRecord, fleet: list[NodeRecord], saga: str, after: float) -> PoolRecord:
    """The record when a replacement is done, with its nodes exchanged."""
    opened_ = record.open[saga]
    fleet[:] = [each for each in fleet if each.node != opened_.node]
    fleet.append(msgspec.structs.replace(nodes(1)[0], node=opened_.new_node))
    return close(record, saga, failed=False, now=NOW + timedelta(seconds=after))


def test_exhausted_budget_opens_once_then_probes_then_ramps() -> None:
    """Six unhealthy, two may be out: two start, then one probe, then as the ramp allows."""
    fleet, record, opened, flights = nodes(10, 6), budgeted(10, 2), [], []
    for after in range(60):
        step = decided(record, fleet, after)
        record = step.record
        opened += [type(each).__name__ for each in step.events]
        flights.append(len(record.open))
        if not record.open:
            break
        record = repaired(record, fleet, next(iter(record.open)), after)
    assert ["BreakerOpened", "BreakerHalfOpened", "BreakerClosed"] == opened
    assert max(flights) <= 2
    assert all(each.health == "healthy" for each in fleet)
    assert ("closed", 0) == (record.breaker.state, record.breaker.ramp)


def test_ramp_doubles_after_the_breaker_closes() -> None:
    """Closed by an operator during a wave of thirty: 1, 2, then 4 at once as repairs succeed."""
    shut = Breaker(state="open", cause="wave", since=NOW)
    fleet = nodes(30, 30)
    fresh = closed_by_hand(shut, "r", "ops", "request-1", NOW)
    record, begun, after = pool(30, breaker=fresh), [], 0
    while len(fleet) == 30 and any(each.health != "healthy" for each in fleet):
        after += STAGE_SECONDS
        step = decided(record, fleet, after)
        begun.append(len(step.record.open))
        record = step.record
        for saga in list(record.open):
            record = repaired(record, fleet, saga, after)
    assert [1, 2, 4, 8, 15] == begun


def test_each_stage_of_the_ramp_lasts() -> None:
    """A stage lasts however quickly replacements succeed: their number does not double before."""
    fresh = closed_by_hand(Breaker(state="open", cause="wave", since=NOW), "r", "ops", "q", NOW)
    fleet, record = nodes(30, 30), pool(30, breaker=fresh)
    for after in range(1, STAGE_SECONDS):
        step = decided(record, fleet, after)
        assert 1 == len(step.record.open)
        record = repaired(step.record, fleet, next(iter(step.record.open)), after)
    record = decided(record, fleet, STAGE_SECONDS).record
    record = repaired(record, fleet, next(iter(record.open)), STAGE_SECONDS)
    assert 2 == len(decided(record, fleet, STAGE_SECONDS).record.open)


def test_failed_repair_resets_the_ramp() -> None:
    """The ramp starts again at one after a failure."""
    record = pool(9, breaker=Breaker(ramp=4, ramp_from=NOW))
    record = decided(record, nodes(9, 9)).record
    [first, *_] = record.open
    assert 4 == len(record.open)
    failed = close(record, first, failed=False, how="failed", now=NOW)
    assert 1 == failed.breaker.ramp


@pytest.mark.parametrize(("rated", "begun"), [(3, 3), ("50%", 5), ("10%", 3), ("unlimited", 8)])
def test_rate_limits_disruptions_within_the_window(rated: int | str, begun: int) -> None:
    """The others wait until the first slot leaves the window; then one probe starts."""
    first = decided(budgeted(10, "100%", rated), nodes(10, 8))
    assert begun == len(first.start)
    if begun == 8:
        return
    [opened] = first.events
    assert isinstance(opened, BreakerOpened)
    assert ("rate", begun, begun) == (
        opened.breaker_cause,
        opened.disruptions,
        opened.disruptions_limit,
    )
    assert "the next may begin at 13:01:00 UTC" in opened.reason
    assert NOW + timedelta(seconds=3660) == first.wake_at
    fleet = nodes(10, 8)
    record = first.record
    for saga in first.start:
        record = repaired(record, fleet, saga, 10)
    assert {} == decided(record, fleet, 3659).start
    late = decided(record, fleet, 3660)
    assert ("half-open", 1) == (late.record.breaker.state, len(late.start))


def test_operator_requests_count_but_are_not_refused_by_the_rate() -> None:
    """A spent rate refuses no operator; their drains leave fewer automatic repairs."""
    record = budgeted(10, "100%", 1)
    snapshot = PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes(10, 2)), revision=7)
    answer = decide(asked("drain", node="n005"), snapshot, NOW)
    assert answer.record is not None
    after = PoolSnapshot(fleet="f", record=answer.record, nodes=Nodes(nodes(10, 2)), revision=8)
    again = decide(asked("drain", node="n006"), after, NOW)

    assert {} == plan(after, NOW).start
    assert isinstance(again.event, RequestAccepted)


# --- requests ------------------------------------------------------------------------------------


def asked(verb: str, **payload: str) -> QueuedRequest:
    """Return request 5 with this verb and payload."""
    data = msgspec.json.encode(payload)
    return QueuedRequest(id="request-5", time=NOW, pool="training", verb=verb, payload=data)


def answered(record: PoolRecord, verb: str, **payload: str) -> RequestDecision:
    """Return the decision about the request."""
    snapshot = PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes(3)), revision=7)
    return decide(asked(verb, **payload), snapshot, NOW)


@pytest.mark.parametrize("verb", ["breaker-open", "breaker-close"])
def test_repeated_request_returns_the_same_events(verb: str) -> None:
    """Delivered again after a crash: the same events and IDs, and no new record."""
    first = answered(pool(3), verb, reason="r", by="ops")
    assert first.record is not None
    again = answered(first.record, verb, reason="r", by="ops")

    assert [each.id for each in (first.event, *first.more)] == [
        each.id for each in (again.event, *again.more)
    ]
    assert again.record is None
    kind = BreakerOpened if verb == "breaker-open" else BreakerClosed
    assert [kind] == [type(each) for each in first.more]


def test_request_without_a_reason_is_refused() -> None:
    """The next operator must know why."""
    answer = answered(pool(3), "breaker-open", by="ops")

    assert isinstance(answer.event, RequestRefused)
    assert '{"reason": "maintenance of the rack"}' in answer.event.reason


def test_closing_says_that_the_rate_is_spent() -> None:
    """Closing does not lift the budget; the reply names the limit."""
    spent = msgspec.structs.replace(
        budgeted(3, "100%", 2), disruptions=noted({}, 3600, NOW, 2), breaker=OPEN
    )
    answer = answered(spent, "breaker-close", reason="r")

    assert isinstance(answer.event, RequestAccepted)
    assert "yet 2 repairs began within 1h and 2 may be" in answer.event.note


# --- slots ---------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 20_000), max_size=60),
    st.sampled_from([60.0, 90.0, 3600.0, 7 * 86_400.0]),
)
def test_slots_never_count_too_few_and_stay_bounded(seconds: list[int], window: float) -> None:
    """Never fewer than started in the window, none older than a slot more, and few slots."""
    begun: dict[str, int] = {}
    moments = [NOW + timedelta(seconds=each) for each in sorted(seconds)]
    for number, moment in enumerate(moments):
        begun = noted(begun, window, moment)
        sofar = moments[: number + 1]
        truly = sum(1 for each in sofar if (moment - each).total_seconds() < window)
        assert counted(begun, window, moment) >= truly
        assert len(begun) <= 62
        due = room_at(begun, window, moment)
        assert due is not None
        assert due > moment
        assert counted(begun, window, due) < counted(begun, window, moment)


@pytest.mark.parametrize(
    ("value", "desired", "allowed"),
    [("50%", 1, 3), ("50%", 3, 3), ("50%", 10, 5), (1, 100, 1), ("unlimited", 5, None)],
)
def test_percentage_allows_each_node_of_a_small_pool_one_repair(
    value: int | str, desired: int, allowed: int | None
) -> None:
    """A percentage allows at least three; a count is used as it is."""
    assert allowed == rate(value, desired)


def test_ramp_ignores_operator_and_notice_replacements() -> None:
    """The ramp does not count sagas that started before it, either."""
    state = Breaker(ramp=1, ramp_from=NOW)
    plain = OpenSaga(kind="replace", node="a", since=LATER)
    others = (
        msgspec.structs.replace(plain, cause="request-1"),
        msgspec.structs.replace(plain, notice="spot"),
        msgspec.structs.replace(plain, since=NOW - timedelta(seconds=1)),
        msgspec.structs.replace(plain, kind="scale-up"),
    )
    assert [True, False, False, False, False] == [
        breaker.in_ramp(state, each) for each in (plain, *others)
    ]
