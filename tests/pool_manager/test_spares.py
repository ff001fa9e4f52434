"""Hot spares: counted apart, promoted first, renewed, and removed last."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import le

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.node_records import CloudNotice, NodeRecord
from schemas.pool_records import PoolRecord
from schemas.saga_params import SagaParams, traits_of
from schemas.settings import BudgetSpec, HealthSpec, IncidentSpec, PoolSpec
from services.pool_manager.planner.node_counts import Nodes, size, unavailable
from services.pool_manager.planner.pool_planner import close, plan
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.saga_projection import leaving_node, promoted_node
from services.pool_manager.planner.sizing.open_sagas import begin
from services.pool_manager.planner.sizing.spares import reserve
from services.saga.definitions import DEFINITIONS
from services.saga.saga_state import SagaState, StepState
from tests.support.saga_states import saga_state

NOW = datetime(2026, 5, 5, 12, tzinfo=UTC)


def pool(desired: int, spares: int, **changes: object) -> PoolRecord:
    """A pool that may repair one node at a time."""
    spec = PoolSpec(
        provider="p",
        instance_type="t",
        min_nodes=0,
        max_nodes=100,
        spares=spares,
        budget=BudgetSpec(max_quarantined=0, max_unavailable=1, max_replacements="unlimited"),
        health=HealthSpec(incident=IncidentSpec(nodes=1000)),
    )
    record = PoolRecord(name="training", spec=spec, desired=desired, serial=10)
    return msgspec.structs.replace(record, **changes)


def node(name: str, **changes: object) -> NodeRecord:
    """Return a healthy node in service."""
    plain = NodeRecord(
        pool="training", node=name, state="active", health="healthy", admitted_at=NOW
    )
    return msgspec.structs.replace(plain, **changes)


def spare(name: str, **changes: object) -> NodeRecord:
    """Return a healthy spare."""
    return node(name, spare=True, cordoned=True, **changes)


def unhealthy(name: str, **changes: object) -> NodeRecord:
    """Return an unhealthy node in service."""
    return node(name, health="unhealthy", health_at=NOW, **changes)


def started(record: PoolRecord, *nodes: NodeRecord) -> list[tuple[str, str, str, bool]]:
    """Started sagas: kind, node, promoted spare, and whether the new node is a spare."""
    decided = plan(PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes), revision=7), NOW)
    return [(each.kind, each.node, each.promotes, each.spare) for each in decided.start.values()]


FAILING = {"failures": 3, "retry_at": NOW + timedelta(seconds=60)}


@pytest.mark.parametrize(
    ("record", "nodes", "expected"),
    [
        # A new pool gets its nodes and its spares.
        (pool(1, 1), (), [("scale-up", "", "", False), ("scale-up", "", "", True)]),
        # The spare replaces an unhealthy node; the launched node is the new spare.
        (pool(1, 1), (unhealthy("a"), spare("s")), [("replace", "a", "s", True)]),
        # No spare ready: as without spares.
        (pool(1, 1), (unhealthy("a"), spare("s", lost=True)), [("replace", "a", "", False)]),
        # A spare with a notice is not promoted, and is itself replaced.
        (
            pool(2, 1),
            (unhealthy("a"), node("b"), spare("s", notices={"n": CloudNotice(at=NOW)})),
            [("replace", "a", "", False), ("replace", "s", "", True)],
        ),
        # An unhealthy spare is replaced by a spare at once: it does not count in the budget.
        (
            pool(2, 1),
            (unhealthy("a"), node("b"), spare("s", health="unhealthy", health_at=NOW)),
            [("replace", "a", "", False), ("replace", "s", "", True)],
        ),
        # A growing pool promotes the spare first, and launches another.
        (
            pool(3, 1),
            (node("a"), spare("s")),
            [
                ("promote", "s", "s", False),
                ("scale-up", "", "", False),
                ("scale-up", "", "", True),
            ],
        ),
        # A shrinking pool keeps its spares.
        (pool(1, 1), (node("a"), node("b"), spare("s")), [("scale-down", "a", "", False)]),
        # Fewer spares are desired: one leaves, and no node in service does.
        (pool(1, 0), (node("a"), spare("s")), [("scale-down", "s", "", True)]),
        # While launches fail an unhealthy node is replaced only if a spare is ready.
        (
            pool(2, 1, **FAILING),
            (unhealthy("a"), node("b"), spare("s")),
            [("replace", "a", "s", True)],
        ),
        (pool(1, 1, **FAILING), (unhealthy("a"),), []),
        # A promotion has just failed: a launch fills the gap meanwhile.
        (
            pool(1, 1, promote_at=NOW + timedelta(seconds=1)),
            (spare("s"),),
            [("scale-up", "", "", False)],
        ),
    ],
)
def test_spare_is_promoted_and_renewed(
    record: PoolRecord, nodes: tuple[NodeRecord, ...], expected: list[tuple[str, str, str, bool]]
) -> None:
    """The sagas started for each state of a pool and its spares."""
    assert sorted(expected) == sorted(started(record, *nodes))


def test_spare_counts_neither_in_the_budget_nor_in_the_size() -> None:
    """Although it is cordoned."""
    record, nodes = pool(1, 2), (node("a"), spare("s"), spare("t"))

    counted = Nodes(nodes)
    assert (1, 2, 0) == (
        size(record, counted),
        reserve(record, counted),
        unavailable(record, counted),
    )


# --- a pool through its life ---------------------------------------------------------------------


@dataclass
class SimulatedPool:
    """A pool whose sagas end as the test says."""

    record: PoolRecord
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    now: datetime = NOW

    def reconcile(self) -> PoolPlan:
        """Plan, twenty minutes later."""
        self.now += timedelta(minutes=20)
        decided = plan(
            PoolSnapshot(
                fleet="f", record=self.record, nodes=Nodes(self.nodes.values()), revision=7
            ),
            self.now,
        )
        self.record = decided.record
        return decided

    def end(self, saga: str, *, done: bool) -> None:
        """A saga ends: done, or unwound as far as possible."""
        opened = self.record.open[saga]
        if opened.promotes and (done or opened.kind == "replace"):
            self._change(opened.promotes, spare=False, cordoned=False)
        if opened.kind == "replace" or (opened.kind == "scale-down" and done):
            self.nodes.pop(opened.node, None)
        if done and opened.new_node:
            make = spare if opened.spare else node
            self.nodes[opened.new_node] = make(opened.new_node, admitted_at=self.now)
        failed = not done
        self.record = close(self.record, saga, failed=failed, now=self.now)

    def _change(self, name: str, **changes: object) -> None:
        self.nodes[name] = msgspec.structs.replace(self.nodes[name], **changes)

    def make_unhealthy(self, place: int) -> None:
        """A node or spare becomes unhealthy."""
        names = sorted(self.nodes)
        if names:
            name = names[place % len(names)]
            self._change(name, health="unhealthy", health_at=self.now)

    def settle(self) -> None:
        """Let every saga succeed from now on."""
        for _ in range(50):
            self.reconcile()
            if not self.record.open:
                return
            for saga in list(self.record.open):
                self.end(saga, done=True)
        raise AssertionError(f"the pool does not come to rest: {self.record.open}")

    def counts(self) -> tuple[int, int]:
        """Count the nodes that will be in service, and the spares."""
        nodes = Nodes(self.nodes.values())
        return size(self.record, nodes), reserve(self.record, nodes)


STEP = st.one_of(
    st.tuples(st.just("make_unhealthy"), st.integers(0, 20)),
    st.tuples(st.sampled_from(["done", "unwound"]), st.integers(0, 20)),
    st.tuples(st.just("scale"), st.integers(0, 6)),
    st.tuples(st.just("spares"), st.integers(0, 3)),
)


@settings(max_examples=150)
@given(desired=st.integers(0, 5), spares=st.integers(0, 3), steps=st.lists(STEP, max_size=25))
def test_pool_with_spares_keeps_its_bounds_and_regains_its_size(
    desired: int, spares: int, steps: list[tuple[str, int]]
) -> None:
    """Never more started than desired, in service or as spares; each spare is promoted once."""
    life = SimulatedPool(pool(desired, spares))
    life.settle()
    for what, number in steps:
        most = life.counts()
        if what == "make_unhealthy":
            life.make_unhealthy(number)
        elif what == "scale":
            life.record = msgspec.structs.replace(life.record, desired=number)
        elif what == "spares":
            spec = msgspec.structs.replace(life.record.spec, spares=number)
            life.record = msgspec.structs.replace(life.record, spec=spec)
        elif life.record.open:
            sagas = sorted(life.record.open)
            life.end(sagas[number % len(sagas)], done=what == "done")
        life.reconcile()
        wanted = (life.record.desired, life.record.spec.spares)
        promoted = [each.promotes for each in life.record.open.values() if each.promotes]

        assert all(map(le, life.counts(), map(max, most, wanted)))
        assert len(set(promoted)) == len(promoted)
        assert {} == life.reconcile().start

    life.settle()
    nodes = Nodes(life.nodes.values())

    assert life.record.desired == sum(1 for each in nodes if not each.spare)
    assert life.record.spec.spares == sum(1 for each in nodes if each.spare)
    assert all(each.cordoned == each.spare and each.health == "healthy" for each in nodes)


@given(desired=st.integers(1, 6), spares=st.integers(1, 4), failing=st.integers(1, 6))
def test_ready_spares_leave_no_gap_in_service(desired: int, spares: int, failing: int) -> None:
    """Unhealthy nodes are replaced without a gap, as many as there are spares."""
    budget = BudgetSpec(max_quarantined=0, max_unavailable="100%", max_replacements="unlimited")
    lifted = msgspec.structs.replace(pool(desired, spares).spec, budget=budget)
    life = SimulatedPool(msgspec.structs.replace(pool(desired, spares), spec=lifted))
    life.settle()
    serving = [name for name, each in sorted(life.nodes.items()) if not each.spare]
    for name in serving[: min(failing, spares)]:
        life.nodes[name] = unhealthy(name)
    life.reconcile()

    assert min(failing, spares, desired) == sum(
        1 for each in life.record.open.values() if each.promotes
    )
    assert desired == size(life.record, Nodes(life.nodes.values()))


def promotion(status: str, **step: object) -> SagaState:
    """A saga that has ended, and was to promote spare s."""
    return saga_state(
        saga="promote-s-1",
        kind="promote",
        params=SagaParams(pool="training", node="s", promotes="s"),
        status="unwound",
        started_at=NOW,
        steps={"promote": StepState(status=status, ended_at=NOW, **step)},
    )


@pytest.mark.parametrize(
    ("ended", "kinds"),
    [
        (promotion("expired"), ["cordon"]),
        (promotion("failed", error="stopped"), ["cordon"]),
        (promotion("failed", error="INVALID"), []),  # the workload system refused it
        (promotion("pending"), []),
    ],
)
def test_a_spare_whose_promotion_is_unknown_is_cordoned_again(
    ended: SagaState, kinds: list[str]
) -> None:
    """Such a spare once took work, was degraded, and was not promoted again."""
    before = spare("s", health="degraded")
    after = promoted_node(before, ended)
    assert after is not None
    assert (after.spare, after.cordoned) == (True, True)
    record, serving = pool(1, 1), node("a")

    def begun(about: NodeRecord, at: datetime) -> list[str]:
        nodes = Nodes([serving, about])
        decided = plan(PoolSnapshot(fleet="f", record=record, nodes=nodes, revision=7), at)
        return [each.kind for each in decided.start.values()]

    assert begun(after, NOW) == []
    later = NOW + timedelta(minutes=1)
    assert begun(after, later) == kinds
    assert begun(msgspec.structs.replace(after, held_until=NOW + timedelta(hours=1)), later) == []
    name, opened, _ = begin("f", record, "cordon", later, node=after)
    open_ = msgspec.structs.replace(record, open={name: opened})
    assert unavailable(open_, Nodes([serving, after])) == 0
    closed = close(open_, name, failed=True, now=later, at_cordon=True)
    assert (closed.refused_cordons, closed.cordon_at) == (0, None)
    params = SagaParams(pool="training", **traits_of(opened))
    assert not any(each.undo for each in DEFINITIONS["cordon"].steps(params))
    for status, step, known in [("done", "succeeded", True), ("unwound", "failed", False)]:
        log = msgspec.structs.replace(
            *(promotion("pending"),),
            saga=name,
            kind="cordon",
            params=params,
            status=status,
            unwinding_at=later,
            sequence=10,
            steps={"cordon": StepState(status=step, ended_at=later)},
        )
        left = leaving_node(after, log)
        assert left is not None
        assert (left.spare, left.cordoned, left.promotion_unknown_at is None) == (
            *(True, True),
            known or not kinds,
        )
        assert begun(left, later) == []
