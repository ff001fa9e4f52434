"""The fleet budget under any interleaving of replicas that read, write, lose races and die.

The bus is a few values here and the shell's decision a generator that yields between its reads and
writes (`Reconciler._decide_once`); what is decided and claimed is the pool-manager's own code.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.duration import Duration
from schemas.fleet_budget import BudgetClaim, FleetBudgetRecord
from schemas.node_records import NodeRecord
from schemas.operator_requests import BreakerRequest
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import BudgetSpec, FleetBudgetSpec, PoolSpec
from services.pool_manager.planner.disruption_budget import allowance, others
from services.pool_manager.planner.node_counts import Nodes, unavailable
from services.pool_manager.planner.pool_planner import close, plan
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.remediator import Ladder
from services.pool_manager.planner.safety.breaker import in_ramp
from services.pool_manager.planner.safety.breaker_requests import change_breaker
from services.pool_manager.planner.safety.budget_claims import claimed, claiming
from services.saga.definitions import DEFINITIONS

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
WINDOW_SECONDS = 60
POOLS = ("a", "b")
SIZE = 4
LEVEL, RATE = 2, 3
RESETS = 2
FLEET_LEVEL, FLEET_RATE, FLEET_RESETS = 2, 3, 3
LADDER = Ladder(options=Ladder.Options())
FLEET = FleetBudgetSpec(
    max_unavailable=FLEET_LEVEL,
    max_replacements=FLEET_RATE,
    max_resets=FLEET_RESETS,
    window=Duration(WINDOW_SECONDS),
)
SPEC = PoolSpec(
    provider="p",
    instance_type="t",
    min_nodes=0,
    max_nodes=9,
    budget=BudgetSpec(
        max_quarantined=0,
        max_unavailable=LEVEL,
        max_replacements=RATE,
        max_resets=RESETS,
        window=Duration(WINDOW_SECONDS),
    ),
)


@dataclass
class Bus:
    """The state is what the server stores, with revisions, and which disruptions started when."""

    pools: dict[str, tuple[PoolRecord, int]] = field(
        default_factory=lambda: {
            name: (PoolRecord(name=name, spec=SPEC, desired=SIZE), 1) for name in POOLS
        }
    )
    claims: tuple[FleetBudgetRecord, int] = (FleetBudgetRecord(), 0)
    nodes: dict[str, dict[str, NodeRecord]] = field(
        default_factory=lambda: {
            name: {f"{name}{i}": healthy(name, f"{name}{i}") for i in range(SIZE)} for name in POOLS
        }
    )
    now: datetime = NOW
    begun: list[tuple[datetime, str, bool]] = field(default_factory=list)
    """When, in which pool, and whether it was a reset or a reboot."""
    codes: int = 0

    def save(self, record: PoolRecord, revision: int) -> bool:
        """Compare and set; records the sagas that it starts, with the time."""
        old, now = self.pools[record.name]
        if now != revision:
            return False
        fresh = [each for saga, each in record.open.items() if saga not in old.open]
        disruptive = [each for each in fresh if DEFINITIONS[each.kind].disrupts]
        assert not (disruptive and old.breaker.forced)
        self.begun += [
            (self.now, record.name, DEFINITIONS[each.kind].in_place) for each in disruptive
        ]
        self.pools[record.name] = (record, revision + 1)
        return True

    def make_unhealthy(self, pool: str, number: int) -> None:
        """A node gets a fault signature that no other has."""
        names = sorted(self.nodes[pool])
        if names:
            name = names[number % len(names)]
            self.codes += 1
            self.nodes[pool][name] = msgspec.structs.replace(
                self.nodes[pool][name],
                health="unhealthy",
                health_kind="xid",
                health_code=self.codes,
                health_action="reset_gpu" if self.codes % 2 else "replace",
                health_at=self.now,
            )

    def heal(self, pool: str, number: int) -> None:
        """A node recovers, which its pool's record does not show."""
        names = sorted(self.nodes[pool])
        if names:
            name = names[number % len(names)]
            self.nodes[pool][name] = healthy(pool, name)

    def end(self, pool: str, number: int, *, failed: bool) -> None:
        """A saga ends; its node is gone, and the new one has arrived or not.

        A successful reset makes its node healthy; a failed one leaves it unhealthy.
        """
        record, revision = self.pools[pool]
        if not record.open:
            return
        saga = sorted(record.open)[number % len(record.open)]
        opened = record.open[saga]
        gone = self.nodes[pool].pop(opened.node, None)
        if DEFINITIONS[opened.kind].in_place and gone is not None:
            self.nodes[pool][gone.node] = gone if failed else healthy(pool, gone.node)
        if opened.new_node and not failed:
            self.nodes[pool][opened.new_node] = healthy(pool, opened.new_node)
        left = close(record, saga, failed=failed, now=self.now)
        self.pools[pool] = (left, revision + 1)

    def ask(self, pool: str, number: int, *, shut: bool) -> None:
        """An operator opens or closes the breaker."""
        record, revision = self.pools[pool]
        snapshot = PoolSnapshot(fleet="f", record=record, nodes=Nodes(self.nodes[pool].values()))
        asked = BreakerRequest(reason="r")
        made = change_breaker(asked, snapshot, self.now, f"request-{number}", close=shut)
        if made.record is not None:
            self.pools[pool] = (made.record, revision + 1)


def healthy(pool: str, name: str) -> NodeRecord:
    """Return a node in service."""
    return NodeRecord(pool=pool, node=name, state="active", health="healthy", admitted_at=NOW)


def decision(bus: Bus, pool: str) -> Iterator[None]:
    """One replica's decision; it yields wherever another replica may interleave."""
    claims, claims_revision = bus.claims
    yield
    record, revision = bus.pools[pool]
    yield
    snapshot = PoolSnapshot(
        fleet="f",
        record=record,
        nodes=Nodes(bus.nodes[pool].values()),
        revision=revision,
        others=others(FLEET, claims, pool),
        claims=claims,
        claims_revision=claims_revision,
        remediator=LADDER,
    )
    decided = plan(snapshot, bus.now)
    claim = claiming(snapshot, decided.record)
    if claim.fence:
        yield
        bus.save(record, revision)
        return
    if claim.claims is not None:
        yield
        if bus.claims[1] != claims_revision:
            return
        bus.claims = (claim.claims, claims_revision + 1)
    if decided.record != record:
        yield
        bus.save(decided.record, revision)


def check_invariants(bus: Bus) -> None:
    """Check what must hold at every moment."""
    out = dict.fromkeys(POOLS, 0)
    for name, (record, _) in bus.pools.items():
        out[name] = unavailable(record, Nodes(bus.nodes[name].values()))
        assert out[name] <= LEVEL
        if record.breaker.state == "half-open":
            tried = [each for each in record.open.values() if in_ramp(record.breaker, each)]
            assert len(tried) <= 1
    assert sum(out.values()) <= FLEET_LEVEL
    for resets, rate, fleet_rate in ((False, RATE, FLEET_RATE), (True, RESETS, FLEET_RESETS)):
        recent = [
            pool
            for at, pool, reset in bus.begun
            if reset == resets and (bus.now - at).total_seconds() < WINDOW_SECONDS
        ]
        assert len(recent) <= fleet_rate
        assert all(recent.count(name) <= rate for name in POOLS)


ACTIONS = st.one_of(
    st.tuples(st.just("step"), st.integers(0, 3)),
    st.tuples(st.just("step"), st.integers(0, 3)),
    st.tuples(st.just("whole"), st.integers(0, 3)),
    st.tuples(st.just("die"), st.integers(0, 3)),
    st.tuples(st.just("make_unhealthy"), st.integers(0, 7)),
    st.tuples(st.just("heal"), st.integers(0, 7)),
    st.tuples(st.just("done"), st.integers(0, 7)),
    st.tuples(st.just("failed"), st.integers(0, 7)),
    st.tuples(st.just("wait"), st.sampled_from([1, 20, 61])),
    st.tuples(st.just("open"), st.integers(0, 1)),
    st.tuples(st.just("close"), st.integers(0, 1)),
)


@settings(max_examples=100)
@given(st.lists(ACTIONS, max_size=120))
def test_no_interleaving_exceeds_the_budget_or_leaks_claims(  # noqa: C901
    actions: list[tuple[str, int]],
) -> None:
    """Two pools, two replicas each, faults, requests and crashes: level and rate always hold.

    When the faults stop, every unhealthy node is repaired, the pools reach their size, and the
    claims say that nothing is out of service.
    """
    bus = Bus()
    for number in range(6):
        bus.make_unhealthy(POOLS[number % 2], number // 2)
    under_way: dict[int, Iterator[None]] = {}
    for moment, (what, number) in enumerate(actions):
        pool = POOLS[number % 2]
        match what:
            case "step":
                each = under_way.setdefault(number, decision(bus, pool))
                if next(each, "ended") == "ended":
                    del under_way[number]
            case "whole":
                for _ in decision(bus, pool):
                    pass
            case "die":
                under_way.pop(number, None)
            case "make_unhealthy":
                bus.make_unhealthy(pool, number // 2)
            case "heal":
                bus.heal(pool, number // 2)
            case "done" | "failed":
                bus.end(pool, number // 2, failed=what == "failed")
            case "wait":
                bus.now += timedelta(seconds=number)
            case _:
                bus.ask(pool, moment, shut=what == "close")
        check_invariants(bus)
    settle(bus)


def settle(bus: Bus) -> None:
    """Run to the end without further faults or crashes."""
    for number, pool in enumerate(POOLS):
        bus.ask(pool, 1000 + number, shut=True)
    for _ in range(60):
        for pool in POOLS:
            for _ in range(3):
                for _ in decision(bus, pool):
                    pass
            check_invariants(bus)
            while bus.pools[pool][0].open:
                bus.end(pool, 0, failed=False)
        bus.now += timedelta(seconds=31)
    for pool in POOLS:
        record, _ = bus.pools[pool]
        assert ["healthy"] * SIZE == [each.health for each in bus.nodes[pool].values()]
        assert ("closed", 0) == (record.breaker.state, record.breaker.ramp)
        assert 0 == bus.claims[0].claims[pool].unavailable


def test_slow_replica_cannot_write_after_its_claim_was_reused() -> None:
    """Claimed for two nodes that have recovered by the time the pool's record is written."""
    bus = Bus()
    bus.make_unhealthy("a", 0)
    bus.make_unhealthy("a", 1)
    slow = decision(bus, "a")
    for _ in range(4):
        next(slow)
    assert 2 == bus.claims[0].claims["a"].unavailable
    bus.heal("a", 0)
    bus.heal("a", 1)
    bus.make_unhealthy("b", 0)
    bus.make_unhealthy("b", 1)
    for pool in ("b", "a", "a", "b", "b"):
        for _ in decision(bus, pool):
            pass
    assert 0 == bus.claims[0].claims["a"].unavailable
    assert [] == list(slow)
    check_invariants(bus)
    assert [1, 0] == [len(bus.pools[pool][0].open) for pool in ("b", "a")]


def test_claim_for_the_same_revision_only_grows() -> None:
    """The greater claim counts for the same revision; for a newer one the current state."""
    old = BudgetClaim(desired=4, unavailable=2, disruptions={"0": 2}, revision=7)
    less = BudgetClaim(desired=4, unavailable=1, disruptions={"0": 1, "1": 1}, revision=7)
    newer = msgspec.structs.replace(less, revision=8)

    both = BudgetClaim(desired=4, unavailable=2, disruptions={"0": 2, "1": 1}, revision=7)
    assert (both, newer, less) == (claimed(old, less), claimed(old, newer), claimed(None, less))


@pytest.mark.parametrize(
    ("drain", "minutes", "silent", "expected"),
    [
        ("wait", 59, True, "level"),
        ("wait", 60, True, ""),
        ("wait", 60, False, "level"),
        ("deadline", 60, True, "level"),
    ],
)
def test_silence_does_not_queue_behind_work_that_does_not_leave(
    drain: Any, minutes: int, silent: bool, expected: str
) -> None:
    """A drain that has lasted longer than drain_timeout keeps no silent node waiting."""
    since = NOW - timedelta(minutes=minutes)
    opened = OpenSaga(kind="replace", node="a", new_node="b", drain=drain, since=since)
    spec = PoolSpec(
        provider="p",
        instance_type="t",
        min_nodes=0,
        max_nodes=9,
        drain_timeout=Duration(3600),
        budget=BudgetSpec(max_unavailable=1),
    )
    record = PoolRecord(name="p", spec=spec, desired=2, open={"s": opened})
    nodes = Nodes([NodeRecord(pool="p", node=each, state="active") for each in "ac"])
    left = allowance(record, nodes, None, NOW)
    assert left.refusal(cordoned=False, no_work=silent) == expected
