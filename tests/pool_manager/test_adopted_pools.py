"""Pools whose nodes others make: nothing is launched, and a successor is the node that joins."""

from datetime import UTC, datetime, timedelta

import msgspec

from schemas.node_records import NodeRecord
from schemas.pool_events import NodeReplaced, OperatorNeeded
from schemas.pool_records import AwaitedSuccessor, PoolRecord
from schemas.settings import BudgetSpec, PoolSpec
from services.pool_manager.planner.node_counts import Nodes, size, unavailable
from services.pool_manager.planner.pool_planner import close, plan
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.sizing.successors import (
    claimed,
    successor_event,
    without_awaited,
)
from services.pool_manager.reconciler import saga_params
from services.saga.definitions import DEFINITIONS

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SPEC = PoolSpec(
    provider="eks",
    nodes="adopted",
    min_nodes=0,
    max_nodes=100,
    budget=BudgetSpec(max_quarantined=0, max_unavailable=1, max_replacements="unlimited"),
)
LIMIT = timedelta(seconds=float(SPEC.launch_timeout))
POOL = PoolRecord(name="gpu", spec=SPEC, desired=3)


def node(name: str, **changes: object) -> NodeRecord:
    """Return a healthy node in service."""
    plain = NodeRecord(pool="gpu", node=name, state="active", health="healthy", admitted_at=NOW)
    return msgspec.structs.replace(plain, **changes)


def unhealthy(name: str, **changes: object) -> NodeRecord:
    """Return an unhealthy node in service."""
    return node(name, health="unhealthy", health_at=NOW, **changes)


def decide(record: PoolRecord, *nodes: NodeRecord, now: datetime = NOW) -> PoolPlan:
    """Return a decision about the pool."""
    return plan(PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes), revision=7), now)


def test_gaps_are_not_filled_and_surplus_is_not_removed() -> None:
    """The pool's size is its maker's decision, not Navarch's."""
    assert not decide(POOL, node("a")).start
    assert not decide(POOL, *(node(name) for name in "abcde")).start


def test_a_replacement_launches_nothing() -> None:
    """Cordon, drain, terminate; the node counts as coming, so the budget is used once."""
    nodes = (unhealthy("a"), node("b"), node("c"))
    decided = decide(POOL, *nodes)
    [(saga, opened)] = decided.start.items()
    assert (saga, opened.kind, opened.node, opened.new_node) == ("replace-a-1", "replace", "a", "")
    params = saga_params("f", decided.record, opened)
    steps = [each.name for each in DEFINITIONS["replace"].steps(params)]
    assert steps == ["cordon", "drain", "terminate"]
    assert params.launch is None
    assert size(decided.record, Nodes(nodes)) == 3
    assert unavailable(decided.record, Nodes(nodes)) == 1


def test_the_next_waits_until_the_successor_has_joined() -> None:
    """The gap counts against the budget; the node that joins ends it, and is the successor."""
    started = decide(POOL, unhealthy("a"), node("b"), node("c")).record
    done = close(started, "replace-a-1", failed=False, now=NOW, how="done")
    assert list(done.awaited) == ["a"]
    assert done.desired == 3
    waiting = decide(done, unhealthy("b"), node("c"))
    assert not waiting.start
    joining = claimed(done, "d")
    event = successor_event(joining, "d", NOW + timedelta(minutes=5))
    assert event is not None
    assert (event.id, event.old_node, event.new_node) == ("replaced-replace-a-1", "a", "d")
    joined = without_awaited(joining, "a")
    assert successor_event(claimed(joined, "e"), "e", NOW) is None
    assert list(decide(joined, unhealthy("b"), node("c"), node("d")).start) == ["replace-b-1"]


def test_a_replacement_that_failed_awaits_nothing() -> None:
    """The node of a failed or cancelled replacement is still there."""
    started = decide(POOL, unhealthy("a"), node("b"), node("c")).record
    assert not close(started, "replace-a-1", failed=True, now=NOW, how="failed").awaited
    assert not close(started, "replace-a-1", failed=False, now=NOW, how="cancelled").awaited


def test_operators_know_of_a_successor_that_does_not_join() -> None:
    """Once; then the pool expects one fewer, so that the gap does not block others for ever."""
    awaited = AwaitedSuccessor(saga="replace-a-1", since=NOW, began_at=NOW)
    record = msgspec.structs.replace(POOL, awaited={"a": awaited})
    early = decide(record, node("b"), node("c"))
    assert early.events == ()
    assert early.wake_at == NOW + LIMIT
    late = decide(record, node("b"), node("c"), now=NOW + LIMIT)
    [event] = late.events
    assert isinstance(event, OperatorNeeded)
    assert "within 20 minutes" in event.reason
    assert "expects 2 now" in event.remedy
    assert event.removed
    assert late.record.desired == 2
    again = decide(late.record, node("b"), node("c"), now=NOW + LIMIT * 2)
    assert (again.events, again.record.desired) == ((), 2)
    # One that joins later is its successor, which ends the alert.
    assert successor_event(claimed(late.record, "d"), "d", NOW) is not None


def test_one_that_is_expected_has_its_successor_first() -> None:
    """One that is overdue comes last: the pool does not expect its successor any more."""
    early = AwaitedSuccessor(saga="replace-a-1", since=NOW, began_at=NOW, overdue=True)
    late = AwaitedSuccessor(saga="replace-b-1", since=NOW + LIMIT, began_at=NOW)
    record = msgspec.structs.replace(POOL, awaited={"a": early, "b": late})
    first = claimed(record, "d")
    assert first == claimed(first, "d")
    assert [each.successor for each in claimed(first, "e").awaited.values()] == ["e", "d"]
    # With its successor nothing is missing, and no operator is notified.
    [event] = decide(first, node("c"), node("d"), now=NOW + LIMIT * 3).events
    assert isinstance(event, NodeReplaced)
    assert (event.old_node, event.new_node) == ("b", "d")


def test_a_successor_is_published_once_it_is_recorded() -> None:
    """Any process that decides next publishes it; one gone before that is awaited again."""
    awaited = AwaitedSuccessor(saga="replace-a-1", since=NOW, began_at=NOW, successor="d")
    record = msgspec.structs.replace(POOL, awaited={"a": awaited})
    assert decide(record, node("c")).record.awaited == record.awaited
    joined = decide(record, node("c"), node("d"))
    assert [type(each) for each in joined.events] == [NodeReplaced]
    assert not joined.record.awaited
    late = decide(record, node("c"), now=NOW + LIMIT)
    assert [type(each) for each in late.events] == [OperatorNeeded]
    assert late.record.awaited["a"] == msgspec.structs.replace(awaited, successor="", overdue=True)


def test_a_node_that_returns_under_its_name_is_its_own_successor() -> None:
    """Alerts about a name end with the node that has it, also if another was removed before."""
    first = AwaitedSuccessor(saga="replace-a-1", since=NOW, began_at=NOW)
    second = AwaitedSuccessor(saga="replace-b-1", since=NOW + LIMIT, began_at=NOW)
    record = msgspec.structs.replace(POOL, awaited={"a": first, "b": second})
    assert [each.successor for each in claimed(record, "b").awaited.values()] == ["", "b"]
    assert [each.successor for each in claimed(record, "d").awaited.values()] == ["d", ""]


def test_the_alerts_of_a_name_that_another_node_has_are_left_open() -> None:
    """A node that joined as another's successor says nothing about the old node of its name."""
    awaited = {"a": AwaitedSuccessor(saga="replace-a-1", since=NOW, began_at=NOW)}
    record = msgspec.structs.replace(POOL, awaited=awaited)
    [event] = decide(record, node("a"), now=NOW + LIMIT).events
    assert isinstance(event, OperatorNeeded)
    assert not event.removed


def test_a_pool_expects_what_others_made() -> None:
    """The expected size follows however many joined or left at once, in observe mode too."""
    observing = msgspec.structs.replace(POOL, spec=msgspec.structs.replace(SPEC, mode="observe"))
    for record in (POOL, observing):
        assert decide(record, *(node(name) for name in "abcde")).record.desired == 5
        assert decide(record, node("a")).record.desired == 1
        assert decide(record).record.desired == 0
    least = msgspec.structs.replace(POOL, spec=msgspec.structs.replace(SPEC, min_nodes=2))
    assert decide(least, node("a")).record.desired == 2


def test_what_others_removed_is_not_replaced() -> None:
    """The maker has scaled in, or replaces the node by itself: the sweep retires it."""
    silent = node("a", lost=True, lost_at=NOW - timedelta(hours=1), provider_state="gone")
    assert not decide(POOL, silent, node("b"), node("c")).start
    present = msgspec.structs.replace(silent, provider_state="present")
    assert list(decide(POOL, present, node("b"), node("c")).start) == ["replace-a-1"]
