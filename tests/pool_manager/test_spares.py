"""Hot spares: counted apart, put into service first, renewed, given back last."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import le

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.node_records import CloudNotice, NodeRecord
from schemas.pool_records import PoolRecord
from schemas.settings import BudgetSpec, HealthSpec, IncidentSpec, PoolSpec
from services.pool_manager.planner.node_counts import Nodes, size, unavailable
from services.pool_manager.planner.pool_planner import close, plan
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.sizing.spares import reserve

NOW = datetime(2026, 5, 5, 12, tzinfo=UTC)


def pool(desired: int, spares: int, **changes: object) -> PoolRecord:
    """A pool that may repair one node at a time."""
    spec = PoolSpec(
        provider="p",
        instance_type="t",
        min_nodes=0,
        max_nodes=100,
        spares=spares,
        budget=BudgetSpec(max_unavailable=1, max_replacements="unlimited"),
        health=HealthSpec(incident=IncidentSpec(nodes=1000)),
    )
    record = PoolRecord(name="training", spec=spec, desired=desired, serial=10)
    return msgspec.structs.replace(record, **changes)


def node(name: str, **changes: object) -> NodeRecord:
    """A healthy node in service."""
    plain = NodeRecord(
        pool="training", node=name, state="active", health="healthy", admitted_at=NOW
    )
    return msgspec.structs.replace(plain, **changes)


def spare(name: str, **changes: object) -> NodeRecord:
    """A healthy one in reserve."""
    return node(name, spare=True, cordoned=True, **changes)


def sick(name: str, **changes: object) -> NodeRecord:
    """An unhealthy one in service."""
    return node(name, health="unhealthy", health_at=NOW, **changes)


def begun(record: PoolRecord, *nodes: NodeRecord) -> list[tuple[str, str, str, bool]]:
    """What is begun: kind, node that leaves or is acted on, spare promoted, for the reserve."""
    decided = plan(PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes), revision=7), NOW)
    return [(each.kind, each.node, each.promotes, each.spare) for each in decided.start.values()]


FAILING = {"failures": 3, "retry_at": NOW + timedelta(seconds=60)}


@pytest.mark.parametrize(
    ("record", "nodes", "expected"),
    [
        # A new pool gets its nodes and its reserve.
        (pool(1, 1), (), [("scale-up", "", "", False), ("scale-up", "", "", True)]),
        # A sick node's place is taken by the spare; what is launched is the new spare.
        (pool(1, 1), (sick("a"), spare("s")), [("replace", "a", "s", True)]),
        # No spare ready: as without one.
        (pool(1, 1), (sick("a"), spare("s", lost=True)), [("replace", "a", "", False)]),
        # A spare that the cloud is about to take takes nobody's place, and is itself replaced.
        (
            pool(2, 1),
            (sick("a"), node("b"), spare("s", notices={"n": CloudNotice(at=NOW)})),
            [("replace", "a", "", False), ("replace", "s", "", True)],
        ),
        # A sick spare is replaced by a spare, at once: it counts against no budget.
        (
            pool(2, 1),
            (sick("a"), node("b"), spare("s", health="unhealthy", health_at=NOW)),
            [("replace", "a", "", False), ("replace", "s", "", True)],
        ),
        # A pool that grows takes the spare first, and launches another.
        (
            pool(3, 1),
            (node("a"), spare("s")),
            [
                ("promote", "s", "s", False),
                ("scale-up", "", "", False),
                ("scale-up", "", "", True),
            ],
        ),
        # One that shrinks keeps its reserve.
        (pool(1, 1), (node("a"), node("b"), spare("s")), [("scale-down", "a", "", False)]),
        # Fewer spares are wanted: one leaves, nobody in service does.
        (pool(1, 0), (node("a"), spare("s")), [("scale-down", "s", "", True)]),
        # While launches fail a sick node is replaced if a spare covers it, and no other.
        (pool(2, 1, **FAILING), (sick("a"), node("b"), spare("s")), [("replace", "a", "s", True)]),
        (pool(1, 1, **FAILING), (sick("a"),), []),
        # Promoting has just failed: the gap is filled by a launch meanwhile.
        (
            pool(1, 1, promote_at=NOW + timedelta(seconds=1)),
            (spare("s"),),
            [("scale-up", "", "", False)],
        ),
    ],
)
def test_a_spare_takes_the_place_and_is_renewed(
    record: PoolRecord, nodes: tuple[NodeRecord, ...], expected: list[tuple[str, str, str, bool]]
) -> None:
    """What is begun, for each state of a pool and its reserve."""
    assert sorted(expected) == sorted(begun(record, *nodes))


def test_a_spare_is_in_nobodys_service() -> None:
    """Cordoned as it is, it takes nothing of the budget, and is no part of the size."""
    record, nodes = pool(1, 2), (node("a"), spare("s"), spare("t"))

    counted = Nodes(nodes)
    assert (1, 2, 0) == (
        size(record, counted),
        reserve(record, counted),
        unavailable(record, counted),
    )


# --- a pool through its life ---------------------------------------------------------------------


@dataclass
class Life:
    """A pool whose sagas end one way or the other, as the tests say."""

    record: PoolRecord
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    now: datetime = NOW

    def look(self) -> PoolPlan:
        """Reconcile."""
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
        """A saga ends: done, or unwound after whatever cannot be taken back."""
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
        """A node falls ill, in service or in reserve."""
        names = sorted(self.nodes)
        if names:
            name = names[place % len(names)]
            self._change(name, health="unhealthy", health_at=self.now)

    def settle(self) -> None:
        """Everything goes well from now on."""
        for _ in range(50):
            self.look()
            if not self.record.open:
                return
            for saga in list(self.record.open):
                self.end(saga, done=True)
        raise AssertionError(f"the pool does not come to rest: {self.record.open}")

    def counts(self) -> tuple[int, int]:
        """How many nodes there will be in service, and in reserve."""
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
def test_a_pool_with_spares_keeps_its_bounds_and_returns_to_its_size(
    desired: int, spares: int, steps: list[tuple[str, int]]
) -> None:
    """Never more than wanted begun for service or for the reserve; each spare goes once."""
    life = Life(pool(desired, spares))
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
        life.look()
        wanted = (life.record.desired, life.record.spec.spares)
        promoted = [each.promotes for each in life.record.open.values() if each.promotes]

        assert all(map(le, life.counts(), map(max, most, wanted)))
        assert len(set(promoted)) == len(promoted)
        assert {} == life.look().start

    life.settle()
    nodes = Nodes(life.nodes.values())

    assert life.record.desired == sum(1 for each in nodes if not each.spare)
    assert life.record.spec.spares == sum(1 for each in nodes if each.spare)
    assert all(each.cordoned == each.spare and each.health == "healthy" for each in nodes)


@given(desired=st.integers(1, 6), spares=st.integers(1, 4), ill=st.integers(1, 6))
def test_with_a_spare_ready_nobody_is_missing_in_service(
    desired: int, spares: int, ill: int
) -> None:
    """As many sick nodes as there are spares are replaced without one place left empty."""
    budget = BudgetSpec(max_unavailable="100%", max_replacements="unlimited")
    lifted = msgspec.structs.replace(pool(desired, spares).spec, budget=budget)
    life = Life(msgspec.structs.replace(pool(desired, spares), spec=lifted))
    life.settle()
    serving = [name for name, each in sorted(life.nodes.items()) if not each.spare]
    for name in serving[: min(ill, spares)]:
        life.nodes[name] = sick(name)
    life.look()

    assert min(ill, spares, desired) == sum(
        1 for each in life.record.open.values() if each.promotes
    )
    assert desired == size(life.record, Nodes(life.nodes.values()))
