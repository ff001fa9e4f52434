"""Pools that are sized by the workload system's names: requests, launches, removals."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from schemas.node_records import NodeRecord
from schemas.pool_events import RequestAccepted, RequestRefused, ScaleRefused
from schemas.pool_records import PoolRecord
from schemas.saga_params import WORKLOAD_NAME, LaunchSpec
from schemas.settings import PoolSpec
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import close, plan
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.sizing.open_sagas import open_for
from services.pool_manager.planner.sizing.workload_names import found_names, name_of, wanted
from services.pool_manager.reconciler import saga_params
from services.pool_manager.requests.request_decisions import decide
from services.pool_manager.requests.request_replies import QueuedRequest, RequestDecision
from services.saga.definitions import DEFINITIONS

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPEC = PoolSpec(
    provider="p",
    instance_type="t",
    min_nodes=0,
    max_nodes=3,
    workload_names="train-[1-3]",
    replace_order="provision_first",
)
EMPTY = PoolRecord(name="training", spec=SPEC, desired=0)


def node(name: str, serial: int = 1, **changes: Any) -> NodeRecord:
    """A node in service that has a name of the workload system; empty: none."""
    labels = {WORKLOAD_NAME: name} if name else {}
    launch = LaunchSpec(fleet="f", provider="p", instance_type="t", labels=labels)
    about = {"state": "active", "health": "healthy", "admitted_at": NOW, "launch": launch}
    return NodeRecord(pool="training", node=f"training-{serial}-abcd", **about | changes)


def snapshot(record: PoolRecord, *nodes: NodeRecord) -> PoolSnapshot:
    """Return the pool and its nodes."""
    return PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes))


def ask(record: PoolRecord, verb: str, *names: str, sequence: int = 1) -> RequestDecision:
    """The answer to a request; later sequences are stored later."""
    payload = msgspec.json.encode({"names": names} if verb != "scale" else {"nodes": 1})
    asked = QueuedRequest(
        id=f"request-{sequence}",
        sequence=sequence,
        time=NOW + timedelta(seconds=sequence),
        pool="training",
        verb=verb,
        payload=payload,
    )
    return decide(asked, snapshot(record), NOW)


def after(record: PoolRecord, verb: str, *names: str, sequence: int = 1) -> PoolRecord:
    """The record after a request that is accepted."""
    answer = ask(record, verb, *names, sequence=sequence)
    assert isinstance(answer.event, RequestAccepted), answer.event
    assert answer.record is not None
    return answer.record


def launches(decided: PoolPlan) -> list[str]:
    """The names for which a node is launched."""
    found = decided.start.values()
    return sorted(each.workload_name for each in found if each.kind == "scale-up")


def removals(decided: PoolPlan) -> list[tuple[str, str]]:
    """The nodes that leave, and how they are drained."""
    return [(each.node, each.drain) for each in decided.start.values() if each.kind != "scale-up"]


def test_each_resumed_name_gets_one_node_however_often_slurm_repeats_it() -> None:
    """The name is given to the node as a label."""
    decided = plan(snapshot(after(EMPTY, "resume", "train-1", "train-3", "train-1")), NOW)
    assert (launches(decided), decided.record.desired) == (["train-1", "train-3"], 2)
    again = after(decided.record, "resume", "train-1", "train-3", sequence=2)
    assert plan(snapshot(again), NOW).start == {}
    for opened in decided.start.values():
        launch = saga_params("f", decided.record, opened).launch
        assert launch is not None
        assert launch.labels == {WORKLOAD_NAME: opened.workload_name}


def test_a_suspended_node_leaves_when_its_work_has_and_its_name_is_free_only_then() -> None:
    """Another node of the name would be a second machine under one name."""
    one, two = node("train-1", 1), node("train-2", 2)
    both = after(EMPTY, "resume", "train-1", "train-2")
    decided = plan(snapshot(after(both, "suspend", "train-1", sequence=2), one, two), NOW)
    assert removals(decided) == [(one.node, "wait")]
    resumed = after(decided.record, "resume", "train-1", sequence=3)
    assert plan(snapshot(resumed, one, two), NOW).start == {}
    (saga,) = decided.start
    gone = close(resumed, saga, failed=False, now=NOW)
    assert launches(plan(snapshot(gone, two), NOW)) == ["train-1"]


def test_one_name_leaves_while_another_comes() -> None:
    """The number of nodes is the same, and they are not."""
    record = after(after(EMPTY, "resume", "train-1"), "suspend", "train-1", sequence=2)
    record = after(record, "resume", "train-2", sequence=3)
    decided = plan(snapshot(record, node("train-1")), NOW)
    assert launches(decided) == ["train-2"]
    assert [name for name, _ in removals(decided)] == ["training-1-abcd"]


def test_a_failed_launch_is_given_up_until_slurm_resumes_the_name_again() -> None:
    """Slurm requeues the job, and may choose other nodes for it."""
    decided = plan(snapshot(after(EMPTY, "resume", "train-1")), NOW)
    (saga,) = decided.start
    failed = close(decided.record, saga, failed=True, now=NOW)
    assert (failed.desired, wanted(failed), failed.failures) == (0, [], 1)
    # The same request, delivered again, does not revive it.
    assert wanted(after(failed, "resume", "train-1")) == []
    again = after(failed, "resume", "train-1", sequence=2)
    assert plan(snapshot(again), NOW).start == {}
    assert launches(plan(snapshot(again), NOW + timedelta(minutes=1))) == ["train-1"]


def test_a_successor_has_the_name_and_comes_after_its_node_has_gone() -> None:
    """The old node goes first whatever the pool's order: two machines cannot have one name."""
    record = after(EMPTY, "resume", "train-1")
    _, opened, _ = open_for("f", record, "replace", NOW, node("train-1"))
    params = saga_params("f", record, opened)
    assert params.launch is not None
    assert (params.launch.labels, params.order) == ({WORKLOAD_NAME: "train-1"}, "terminate_first")
    _, other, _ = open_for("f", record, "replace", NOW, node(""))
    assert saga_params("f", record, other).order == "provision_first"


def test_nodes_without_a_name_stay_until_the_pool_is_removed() -> None:
    """A pool that gets `workload_names` loses none of the nodes that it has."""
    assert plan(snapshot(EMPTY, node("")), NOW).start == {}
    removed = msgspec.structs.replace(EMPTY, removing="request-9")
    assert removals(plan(snapshot(removed, node("")), NOW)) == [("training-1-abcd", "")]


def test_requests_that_cannot_be_are_refused() -> None:
    """The refusal says what to do instead."""
    plain = msgspec.structs.replace(EMPTY, spec=msgspec.structs.replace(SPEC, workload_names=""))
    small = msgspec.structs.replace(EMPTY, spec=msgspec.structs.replace(SPEC, max_nodes=1))
    for record, verb, names, refusal, words in (
        (EMPTY, "resume", ("train-4",), "unknown-node", "train-4"),
        (plain, "resume", ("train-1",), "wrong-state", "set them to"),
        (small, "resume", ("train-1", "train-2"), "above-maximum", "raise max_nodes"),
        (EMPTY, "resume", (), "invalid-request", '{"names"'),
        (EMPTY, "scale", (), "wrong-state", "navarch slurm resume"),
    ):
        event = ask(record, verb, *names).event
        assert isinstance(event, RequestRefused | ScaleRefused), verb
        assert (event.refusal, words in event.reason) == (refusal, True), event.reason


def test_a_name_that_the_setting_has_no_longer_can_be_suspended_and_not_resumed() -> None:
    """The name's node would else stay for ever."""
    resumed = after(EMPTY, "resume", "train-1", "train-3")
    shorter = msgspec.structs.replace(SPEC, workload_names="train-[1-2]")
    record = msgspec.structs.replace(resumed, spec=shorter)
    assert wanted(after(record, "suspend", "train-3", sequence=2)) == ["train-1"]
    assert isinstance(ask(record, "resume", "train-3", sequence=2).event, RequestRefused)


def test_a_record_that_was_lost_has_its_nodes_names_again() -> None:
    """None of them is surplus; any later request counts."""
    names = found_names([node("train-1"), node("", 2), node("train-2", 3)], NOW)
    record = msgspec.structs.replace(EMPTY, workload_names=names)
    assert wanted(record) == ["train-1", "train-2"]
    assert wanted(after(record, "suspend", "train-2")) == ["train-1"]


steps = st.lists(
    st.tuples(
        st.sampled_from(["resume", "suspend", "done", "failed"]),
        st.integers(1, 3),
        st.integers(1, 9),
    ),
    max_size=30,
)


@given(steps)
def test_no_two_nodes_ever_have_one_name(done: list[tuple[str, int, int]]) -> None:
    """The last request wins, whatever is requested in whatever order, and however sagas end."""
    record, nodes = EMPTY, dict[str, NodeRecord]()
    now = NOW
    last: dict[str, tuple[int, str]] = {}
    for what, number, sequence in done:
        now += timedelta(hours=1)
        name = f"train-{number}"
        if what in ("resume", "suspend"):
            record = after(record, what, name, sequence=sequence)
            if sequence > last.get(name, (0, ""))[0]:
                last[name] = (sequence, what)
        elif record.open:
            saga, opened = sorted(record.open.items())[number % len(record.open)]
            record = close(record, saga, failed=what == "failed", now=now)
            if what == "done" and opened.new_node:
                fresh = node(opened.workload_name)
                nodes[opened.new_node] = msgspec.structs.replace(fresh, node=opened.new_node)
            if what == "done" and DEFINITIONS[opened.kind].removes_node:
                del nodes[opened.node]
        record = plan(snapshot(record, *nodes.values()), now).record
        names = [name_of(each) for each in nodes.values()]
        names += [each.workload_name for each in record.open.values() if each.workload_name]
        assert len(names) == len(set(names))
        assert record.desired == len(wanted(record))
    for name in wanted(record):
        assert last[name][1] == "resume"
