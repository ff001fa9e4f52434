"""Many unhealthy nodes with a common cause: when they are an incident, and what it holds back."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given

from schemas.duration import Duration
from schemas.fault_signature import SILENCE, in_words
from schemas.health_records import HealthRecord, RecordedFault
from schemas.node_records import NodeRecord
from schemas.pool_events import BreakerClosed, BreakerOpened, Incident
from schemas.pool_records import PoolRecord
from schemas.saga_params import LaunchSpec
from schemas.settings import BudgetSpec, HealthSpec, IncidentSpec, PoolSpec
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.safety import incidents
from services.pool_manager.planner.safety.breaker import closed_by_hand
from tests.pool_manager.test_pool_planner import snapshots

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


def pool(desired: int, **incident: Any) -> PoolRecord:
    """A pool whose budget would let every node go at once."""
    spec = PoolSpec(
        provider="p",
        instance_type="t",
        min_nodes=0,
        max_nodes=1000,
        budget=BudgetSpec(max_quarantined=0, max_unavailable="100%", max_replacements="unlimited"),
        health=HealthSpec(lost_after=Duration(300), incident=IncidentSpec(**incident)),
    )
    return PoolRecord(name="training", spec=spec, desired=desired)


def node(number: int, code: int = 0, *, after: float = 0, **changes: Any) -> NodeRecord:
    """A node in service; with a code, one that got that XID after `after` seconds."""
    plain = NodeRecord(pool="training", node=f"n{number:03}", state="active", health="healthy")
    if code:
        plain = msgspec.structs.replace(
            plain,
            health="unhealthy",
            health_kind="xid",
            health_code=code,
            health_at=NOW + timedelta(seconds=after),
            health_fault=f"f{number}",
        )
    return msgspec.structs.replace(plain, **changes)


def silent(number: int, *, after: float = 0, says: Any = "present") -> NodeRecord:
    """A node whose heartbeat expired."""
    return node(number, lost=True, lost_at=NOW + timedelta(seconds=after), provider_state=says)


def decide(
    record: PoolRecord,
    nodes: list[NodeRecord],
    *,
    after: float = 0,
    health: Mapping[str, HealthRecord] | None = None,
) -> PoolPlan:
    """Return the decision after so many seconds."""
    snapshot = PoolSnapshot(
        fleet="f", record=record, nodes=Nodes(nodes), revision=7, health=health or {}
    )
    return plan(snapshot, NOW + timedelta(seconds=after))


@pytest.mark.parametrize(
    ("nodes", "begun"),
    [
        ([node(i, 79) for i in range(4)], 4),
        ([node(i, 79) for i in range(5)], 0),
        ([node(i, 79 if i % 2 else 94) for i in range(8)], 8),
        ([node(i, 79, after=-20 * i) for i in range(5)], 5),
        ([node(i, 79, after=-15 * i) for i in range(5)], 0),
        ([node(i, 79, after=-2000) for i in range(9)], 9),
        ([*(node(i, 79) for i in range(6)), node(9, 48), node(10, 94)], 0),
        ([node(i, 79, health_kind="") for i in range(9)], 9),
    ],
)
def test_same_fault_on_many_nodes_at_once_is_one_incident(
    nodes: list[NodeRecord], begun: int
) -> None:
    """Few, different, spread out or old faults are acted on singly; a wave stops the pool."""
    fleet = [*nodes, *(node(100 + i) for i in range(20))]
    assert begun == len(decide(pool(len(fleet)), fleet).start)


@pytest.mark.parametrize(
    ("size", "unhealthy", "held"),
    [(1, 1, False), (2, 2, False), (3, 2, False), (3, 3, True), (8, 4, False), (8, 5, True),
     (250, 5, True), (300, 5, False), (300, 6, True), (1000, 19, False), (1000, 20, True)],
)  # fmt: skip
def test_threshold_scales_with_the_pool(size: int, unhealthy: int, held: bool) -> None:
    """A wave is at least five nodes and 2% of the pool; a small pool as a whole, from three on."""
    nodes = [node(i, 79 if i < unhealthy else 0) for i in range(size)]
    assert held is bool(decide(pool(size), nodes).record.incidents)


@pytest.mark.parametrize(
    ("size", "unheard", "spread", "held"),
    [(1, 1, 0, False), (2, 2, 0, False), (3, 3, 0, True), (4, 4, 10, True), (4, 3, 0, False),
     (4, 4, 100, False), (19, 19, 3, True), (19, 18, 0, False)],
)  # fmt: skip
def test_a_region_of_which_no_node_is_heard_is_an_incident(
    size: int, unheard: int, spread: float, held: bool
) -> None:
    """A part of the pool, however small, counts; one node that beats proves that its link works."""
    fleet = [
        msgspec.structs.replace(
            silent(i, after=spread * i) if i < unheard else node(i), region="eu"
        )
        for i in range(size)
    ]
    fleet += [node(100 + i, region="us") for i in range(1000)]
    record = pool(len(fleet))
    found = decide(record, fleet, after=spread * size)
    assert held is bool(found.record.incidents)
    if held:
        (opened,) = [each for each in found.events if isinstance(each, Incident)]
        assert opened.kind == SILENCE
        # An hour later nothing has begun, since the provider says that the nodes run.
        later = decide(found.record, fleet, after=3600)
        assert not [*found.start, *later.start]


def test_a_lost_region_ends_with_its_nodes_return() -> None:
    """One node that stays silent is waited for then; the others are in service."""
    away = [msgspec.structs.replace(silent(i), region="eu") for i in range(4)]
    others = [node(100 + i, region="us") for i in range(20)]
    opened = decide(pool(24), [*away, *others], after=30)
    assert opened.record.incidents
    back = [node(i, region="eu") for i in range(4)]
    assert not decide(opened.record, [*back, *others], after=3630).record.incidents


def test_incident_is_published_once_and_named_by_the_breaker() -> None:
    """An incident opens with its nodes, the breaker names it, and the next plan adds nothing."""
    nodes = [node(i, 79 if i < 6 else 0) for i in range(20)]
    first = decide(pool(20), nodes)
    opened, breaker = first.events
    assert isinstance(opened, Incident)
    assert isinstance(breaker, BreakerOpened)
    assert ("opened", "xid", 79, 6) == (opened.status, opened.kind, opened.code, opened.nodes)
    assert (tuple(f"n{i:03}" for i in range(6)), "f0") == (opened.named, opened.cause)
    assert "wave" == breaker.breaker_cause
    assert (
        "6 unhealthy nodes wait: one incident: 6 nodes with XID 79; none is repaired before "
        "12:15:00 UTC; to repair all now: navarch breaker close training --reason TEXT"
    ) == breaker.reason
    again = decide(first.record, nodes)
    assert ((), {}) == (again.events, again.start)


def released(record: PoolRecord, after: float) -> PoolRecord:
    """The record once an operator has closed the breaker."""
    return msgspec.structs.replace(
        incidents.released(record),
        breaker=closed_by_hand(record.breaker, "r", "ops", "request-1", NOW + after * SECOND),
    )


def confirmed(each: NodeRecord, kind: str = "diagnostic") -> HealthRecord:
    """The health of a node of which another source reports a fault, too."""
    assert each.health_at is not None
    note = RecordedFault(id="f", time=each.health_at, kind=kind, result="unhealthy")
    return HealthRecord(pool="training", node=each.node, recent=(note,))


def test_wave_is_held_until_an_operator_decides() -> None:
    """Replacements that come up healthy prove nothing: after the hold none is begun."""
    nodes = [node(i, 79 if i < 8 else 0) for i in range(20)]
    first = decide(pool(20), nodes)
    assert {} == decide(first.record, nodes, after=899).start
    late = decide(first.record, nodes, after=900)
    assert ({}, "open", "wave") == (
        late.start, late.record.breaker.state, late.record.breaker.cause,
    )  # fmt: skip
    assert "navarch breaker close training --reason TEXT" in late.record.breaker.reason
    assert ((), {}) == (
        decide(late.record, nodes, after=86_400).events,
        decide(late.record, nodes, after=86_400).start,
    )
    assert 1 == len(decide(released(late.record, 1000), nodes, after=1000).start)


@pytest.mark.parametrize(
    ("kind", "begun"), [("diagnostic", 1), ("ecc_dbe", 1), ("xid", 0), ("sxid", 0)]
)
def test_node_with_evidence_of_its_own_is_remediated_after_the_hold(kind: str, begun: int) -> None:
    """A diagnostic or NVML agrees with the kernel log; one such node at a time."""
    nodes = [node(i, 79 if i < 8 else 0) for i in range(20)]
    first = decide(pool(20), nodes)
    health = {each.node: confirmed(each, kind) for each in nodes[:2]}
    assert {} == decide(first.record, nodes, after=899, health=health).start
    late = decide(first.record, nodes, after=900, health=health)
    assert ["n000"][:begun] == [each.node for each in late.start.values()]
    assert "open" == late.record.breaker.state
    assert {} == decide(late.record, nodes, after=901, health=health).start


def test_node_outside_the_wave_is_remediated_after_the_hold() -> None:
    """A node waits for no operator, but for the workload system that has refused a cordon."""
    nodes = [node(i, 79 if i < 8 else 0) for i in range(20)]
    first = decide(pool(20), nodes)
    nodes[12] = node(12, 48, after=30)
    assert {} == decide(first.record, nodes, after=899).start
    late = decide(first.record, nodes, after=900)
    assert ["n012"] == [each.node for each in late.start.values()]
    refused = msgspec.structs.replace(first.record, cordon_at=NOW + 901 * SECOND)
    assert {} == decide(refused, nodes, after=900).start


def test_late_nodes_of_a_wave_open_no_second_incident() -> None:
    """The last nodes of the wave are younger than the hold, but belong to the same incident."""
    nodes = [node(i, 79, after=i * 7) if i < 8 else node(i) for i in range(20)]
    first = decide(pool(20), nodes, after=50)
    late = decide(first.record, nodes, after=900)
    later = decide(late.record, nodes, after=930)
    assert () == (*late.events, *later.events)


@pytest.mark.parametrize("gap", [1.0, 0.0, -0.1])
def test_an_incident_counts_every_node_that_it_has_hit(gap: float) -> None:
    """Verdicts come one after the other, and in any order; some are repaired before it is over."""
    healthy = [node(100 + i) for i in range(20)]
    first = [node(i, 79, after=gap * i) for i in range(18)]
    record = decide(pool(60), [*first, *healthy], after=20).record
    every = [node(i, 79, after=gap * i) for i in range(40)]
    record = decide(record, [*every, *healthy], after=60).record
    assert [each.nodes for each in record.incidents.values()] == [40]
    late = [node(i, 79, after=120 + i) for i in range(40, 43)]
    record = decide(record, [*every[:10], *late, *healthy], after=200).record
    assert [each.nodes for each in record.incidents.values()] == [43]
    closed = decide(record, healthy, after=400)
    [event] = [each for each in closed.events if isinstance(each, Incident)]
    assert (event.status, event.nodes) == ("closed", 43)


def test_same_fault_signature_later_is_a_new_incident() -> None:
    """Settled nodes no longer count; five nodes that get the fault later do."""
    nodes = [node(i, 79 if i < 6 else 0) for i in range(40)]
    late = decide(released(decide(pool(40), nodes).record, 60), nodes, after=900)
    fresh = [node(i, 79, after=1000) if 10 <= i < 15 else each for i, each in enumerate(nodes)]
    again = decide(late.record, fresh, after=1001)
    assert ["opened"] == [each.status for each in again.events if isinstance(each, Incident)]
    assert "open" == again.record.breaker.state


def test_incident_without_nodes_closes_with_its_breaker() -> None:
    """All nodes were uncordoned or replaced: the events say so, and the record drops it."""
    first = decide(pool(20), [node(i, 79 if i < 6 else 0) for i in range(20)])
    well = decide(first.record, [node(i) for i in range(20)], after=60)
    incident, breaker = well.events
    assert isinstance(incident, Incident)
    assert isinstance(breaker, BreakerClosed)
    assert ("closed", "no node has it any more") == (incident.status, incident.reason)
    assert ({}, "closed", 0) == (
        well.record.incidents,
        well.record.breaker.state,
        well.record.breaker.ramp,
    )


# --- one cause of different faults ---------------------------------------------------------------


def mixed(count: int, unhealthy: int, **of_unhealthy: Any) -> list[NodeRecord]:
    """Nodes of which the first have different fault signatures and these fields in common."""
    codes = (48, 79, 94, 95, 119, 31)
    return [
        node(i, codes[i % 6] if i < unhealthy else 0, **(of_unhealthy if i < unhealthy else {}))
        for i in range(count)
    ]


def launched(provider: str) -> LaunchSpec:
    """The launch fields that name a node's provider."""
    return LaunchSpec(fleet="f", provider=provider, instance_type="t")


@pytest.mark.parametrize(
    ("scope", "within", "of_unhealthy", "of_healthy"),
    [
        ("rack", "r7", {"rack": "r7"}, {"rack": "r8"}),
        ("zone", "z1", {"zone": "z1"}, {"zone": "z2"}),
        ("driver", "570.1", {"driver_version": "570.1"}, {"driver_version": "550.2"}),
        ("provider", "p1", {"launch": launched("p1")}, {"launch": launched("p2")}),
    ],
)
def test_field_shared_by_unhealthy_nodes_only_is_the_cause(
    scope: str, within: str, of_unhealthy: Any, of_healthy: Any
) -> None:
    """Six different faults in one rack: the rack is the incident, and the pool stops."""
    nodes = mixed(60, 8, **of_unhealthy)
    nodes = [
        msgspec.structs.replace(each, **(of_healthy if i >= 20 else of_unhealthy))
        for i, each in enumerate(nodes)
    ]
    decided = decide(pool(60), nodes)
    [(what, incident)] = decided.record.incidents.items()
    assert (f"{scope}-{within}", scope, within, 8) == (
        what, incident.scope, incident.within, incident.nodes,
    )  # fmt: skip
    assert ({}, "wave") == (decided.start, decided.record.breaker.cause)


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param(mixed(60, 8), id="nothing known"),
        pytest.param(
            [msgspec.structs.replace(each, rack="r1") for each in mixed(60, 8)], id="all the same"
        ),
        pytest.param(
            [
                msgspec.structs.replace(each, rack=f"r{i % 2}")
                for i, each in enumerate(mixed(60, 8))
            ],
            id="evenly",
        ),
        pytest.param(
            [msgspec.structs.replace(each, zone="a" if i < 50 else "b")
             for i, each in enumerate(mixed(60, 8))],
            id="most have it, unhealthy or not",
        ),
        pytest.param(
            [
                msgspec.structs.replace(each, rack=f"r{i // 4}")
                for i, each in enumerate(mixed(60, 8))
            ],
            id="four in each of two racks",
        ),
    ],
)  # fmt: skip
def test_field_shared_by_healthy_nodes_is_no_cause(nodes: list[NodeRecord]) -> None:
    """Each of the different faults is acted on."""
    settled = NOW - timedelta(seconds=3)
    nodes = [
        msgspec.structs.replace(each, health_at=settled) if each.health == "unhealthy" else each
        for each in nodes
    ]
    assert 8 == len(decide(pool(60), nodes).start)


def test_widest_explaining_cause_wins_then_the_narrowest() -> None:
    """The zone is named for twelve nodes, six of them in one rack; the rack, if all are in one."""
    zone = [
        msgspec.structs.replace(each, zone="z" if i < 20 else "y", rack="r" if i < 6 else f"q{i}")
        for i, each in enumerate(mixed(100, 12))
    ]
    rack = [
        msgspec.structs.replace(each, rack="r" if i < 20 else "q") for i, each in enumerate(zone)
    ]
    assert ["zone-z", "rack-r"] == [
        next(iter(decide(pool(100), nodes).record.incidents)) for nodes in (zone, rack)
    ]


# --- silence -------------------------------------------------------------------------------------


def test_wave_of_silence_is_first_treated_as_a_network_fault() -> None:
    """No node is replaced past `lost_after`: the provider says that their instances run."""
    nodes = [silent(i, after=i / 10) if i < 12 else node(i) for i in range(20)]
    first = decide(pool(20), nodes, after=5)
    assert ["opened"] == [each.status for each in first.events if isinstance(each, Incident)]
    waiting = decide(first.record, nodes, after=899)
    assert {} == waiting.start
    assert NOW + timedelta(seconds=900) == waiting.wake_at
    after = decide(waiting.record, nodes, after=900)
    assert ["replace"] == [each.kind for each in after.start.values()]
    gone = [nodes[0], silent(1, says="gone"), *nodes[2:]]
    assert ["n001"] == [each.node for each in decide(after.record, gone, after=1200).start.values()]


def test_returned_nodes_of_a_wave_are_left_alone() -> None:
    """Nodes return when the server is back: the incident closes and no saga started."""
    nodes = [silent(i) for i in range(20)]
    first = decide(pool(20), nodes, after=5)
    back = decide(first.record, [node(i) for i in range(20)], after=130)
    assert ({}, {}) == (back.start, back.record.incidents)


@pytest.mark.parametrize(("size", "held"), [(2, False), (3, True), (4, True)])
def test_small_pool_silent_as_a_whole_is_a_wave(size: int, held: bool) -> None:
    """Three machines do not fail at once; one or two may."""
    nodes = [silent(i) for i in range(size)]
    record = decide(pool(size), nodes, after=1).record
    assert held is (not decide(record, nodes, after=400).start)


@pytest.mark.parametrize(("says", "seconds"), [("gone", 0), ("present", 300), ("", 900)])
def test_single_silent_node_is_verified_with_the_provider(says: str, seconds: float) -> None:
    """Gone: replaced at once. Present: as configured. Unknown: after a longer wait."""
    nodes = [silent(0, says=says), *(node(i) for i in range(1, 20))]
    if seconds:
        assert {} == decide(pool(20), nodes, after=seconds - 1).start
    assert 1 == len(decide(pool(20), nodes, after=seconds).start)


def test_gone_instances_are_replaced_without_delay() -> None:
    """A wave of reclaimed machines, confirmed by the provider."""
    nodes = [silent(i, says="gone") for i in range(10)] + [node(10 + i) for i in range(10)]
    assert 10 == len(decide(pool(20), nodes, after=1).start)


def test_incidents_can_be_switched_off() -> None:
    """The budget alone limits repairs with `hold: 0s`."""
    nodes = [node(i, 79) for i in range(20)]
    assert 20 == len(decide(pool(20, hold=Duration(0)), nodes).start)


def test_fault_signature_as_text() -> None:
    """The wording that operators know."""
    assert ["XID 79", "silence", "fallen off bus"] == list(
        map(in_words, ("xid-79", SILENCE, "fallen_off_bus"))
    )


# --- properties ----------------------------------------------------------------------------------


@given(snapshots())
def test_silent_nodes_of_an_incident_are_not_replaced(snapshot: PoolSnapshot) -> None:
    """Unless an operator has released it."""
    decided = plan(snapshot, datetime(2026, 1, 1, 12, tzinfo=UTC))
    incident = decided.record.incidents.get(SILENCE)
    if incident is not None and not incident.released and decided.record.breaker.state == "open":
        assert not [e for e in decided.start.values() if e.fault_signature == SILENCE]


@given(snapshots())
def test_incidents_end_with_their_nodes(snapshot: PoolSnapshot) -> None:
    """Once none of its nodes is unhealthy the incident is over."""
    record = plan(snapshot, NOW).record
    well = PoolSnapshot(fleet="f", record=record, nodes=Nodes(), revision=8)
    assert {} == plan(well, NOW + MINUTE).record.incidents
