"""The machines of a rack's launch are in one rack, or not all of them are admitted."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.enums import MISPLACED
from schemas.node_records import NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_params import LaunchSpec, SagaParams
from schemas.settings import PlacementSpec, PoolSpec, RackSpec
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.planner.admission.admission_refusals import refusal_event
from services.pool_manager.planner.admission.denied_hardware import dead_on_arrival
from services.pool_manager.planner.admission.rack_admission import (
    is_of_rack_launch,
    misplaced,
    why_misplaced,
)
from services.pool_manager.planner.rack_units import disagreements
from services.pool_manager.service import build
from services.saga.definition import Met, Unmeetable
from services.saga.definitions.saga_steps import admitted
from services.saga.saga_state import SagaState, StepState
from tests.pool_manager.fleet import events, nodes, peers, settings
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers
from tests.support.saga_states import saga_state

__all__ = ["peers"]

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SIZE = 4
SPEC = LaunchSpec(fleet="f", provider="p", instance_type="t")


def launched(number: int, rack: str | None, **changes: Any) -> NodeRecord:
    """A node of a rack's launch; `rack` None: it is not checked yet."""
    node = NodeRecord(
        pool="training",
        node=f"n{number}",
        state="launching" if rack is None else "registered",
        rack=rack or "",
        boot_id="b1",
        boot_checked=None if rack is None else True,
        boot_checked_id="" if rack is None else "b1",
        launch=LaunchSpec(fleet="f", provider="p", instance_type="t", gang="g1", gang_size=SIZE),
    )
    return msgspec.structs.replace(node, **changes)


def of(racks: Sequence[str | None]) -> list[NodeRecord]:
    """Return the nodes of a launch in these racks."""
    return [launched(number, rack) for number, rack in enumerate(racks)]


def refused(nodes: Sequence[NodeRecord]) -> list[bool | None]:
    """Return for each node whether it is refused; None: not known yet."""
    found = [misplaced(each, nodes) for each in nodes]
    return [None if each is None else bool(each) for each in found]


@pytest.mark.parametrize(
    ("racks", "expected"),
    [
        (["a", "a", "a", "a"], [False, False, False, False]),
        (["b", "a", "a", "a"], [True, False, False, False]),
        (["b", None, None, None], [None, False, False, False]),
        (["b", "a", "a", None], [None, None, None, False]),
        (["a", "a", "a", None], [False, False, False, False]),
        (["a", "a", "b", "b"], [False, False, True, True]),
        (["a", "b", "c", "d"], [False, True, True, True]),
        (["", "", "", ""], [False, False, False, False]),
        (["", "a", "a", "a"], [False, False, False, False]),
    ],
)
def test_a_launch_is_in_the_rack_of_most_of_its_nodes(
    racks: list[str | None], expected: list[bool | None]
) -> None:
    """The rack must be known before a node is admitted; a node of no known rack is let in."""
    assert expected == refused(of(racks))


@given(st.lists(st.sampled_from(["a", "b", "c", "", None]), min_size=1, max_size=SIZE))
def test_what_is_admitted_is_one_rack_in_any_order(racks: list[str | None]) -> None:
    """Decided one after the other, as they are checked: never two racks, never all refused."""
    nodes = of([None] * SIZE)
    let_in: set[str] = set()
    for number, rack in enumerate([*racks, *["a"] * (SIZE - len(racks))]):
        nodes[number] = launched(number, rack or "")
        let_in |= {
            each.rack
            for each, wrong in zip(nodes, refused(nodes), strict=True)
            if each.boot_checked and each.rack and wrong is False
        }
        assert len(let_in) <= 1
    assert let_in or not any(each.rack for each in nodes)


def test_a_node_that_left_its_launch_is_not_waited_for() -> None:
    """One that died on arrival, and one of another launch, count for nothing."""
    nodes = of(["b", "a", "a", None])
    assert misplaced(nodes[1], nodes) is None
    for state in ("leaving", "terminated"):
        nodes[3] = launched(3, None, state=state)
        assert [True, False, False] == refused(nodes)[:3]


def test_what_is_in_service_decides() -> None:
    """A node in service decides, also where the others of its rack have left since."""
    nodes = [launched(0, "a", state="active"), launched(1, "b"), launched(2, "b")]
    assert [True, True] == refused(nodes)[1:]


def test_a_node_without_a_record_is_waited_for() -> None:
    """The first to be checked may be known before the others are."""
    assert [None] == refused(of(["b"]))


def test_the_hardware_is_believed_before_a_name() -> None:
    """Nodes of one NVLink domain are one rack, whatever `NAVARCH_RACK` says of each."""
    nodes = [launched(each, f"host-{each}", nvlink_domain="d.0") for each in range(SIZE)]
    assert [False] * SIZE == refused(nodes)
    nodes[2] = launched(2, "host-0", nvlink_domain="e.0")
    assert [False, False, True, False] == refused(nodes)
    assert "it is in rack e.0, and most of the nodes" in (misplaced(nodes[2], nodes) or "")


def test_only_whole_racks_are_compared() -> None:
    """A launch that fills gaps in several racks is no launch of a whole rack."""
    [node] = of(["a"])
    assert is_of_rack_launch(node, SIZE)
    assert not is_of_rack_launch(node, SIZE + 1)
    assert not is_of_rack_launch(node, 0)
    assert not is_of_rack_launch(NodeRecord(pool="training", node="n9"), SIZE)


def single(rack: str = "", nvlink_domain: str = "") -> NodeRecord:
    """A node that was launched alone."""
    return launched(9, rack, launch=SPEC, nvlink_domain=nvlink_domain)


def pool_of(nodes: int, *, required: bool = True) -> PoolRecord:
    """A pool of racks that wants so many nodes, and has one fewer."""
    placement = PlacementSpec(together="zone", required=required)
    spec = PoolSpec(
        provider="p",
        instance_type="t",
        min_nodes=0,
        max_nodes=16,
        zones=("z",),
        rack=RackSpec(nodes=SIZE),
        placement=placement,
    )
    return PoolRecord(name="training", spec=spec, desired=nodes)


SERVING = [
    launched(0, "a", state="active", nvlink_domain="d.0"),
    launched(1, "b", state="active", nvlink_domain="e.0"),
    launched(2, "c", state="leaving", nvlink_domain="f.0"),
]
NAMED = [launched(0, "a", state="active"), launched(1, "b", state="active", nvlink_domain="e.0")]


@pytest.mark.parametrize(
    ("others", "where", "is_refused"),
    [
        (SERVING, {"nvlink_domain": "d.0"}, False),
        (SERVING, {"nvlink_domain": "e.0", "rack": "z"}, False),
        (SERVING, {"nvlink_domain": "f.0"}, True),
        (SERVING, {"nvlink_domain": "g.0", "rack": "a"}, True),
        (SERVING, {"rack": "a"}, False),
        (SERVING, {"rack": "c"}, True),
        (SERVING, {}, False),
        (NAMED, {"nvlink_domain": "g.0", "rack": "a"}, False),
        (NAMED, {"nvlink_domain": "g.0", "rack": "g"}, True),
        (NAMED, {"nvlink_domain": "g.0"}, False),
        ([], {"nvlink_domain": "g.0"}, False),
    ],
)
def test_what_fills_a_gap_is_in_a_rack_of_the_pool(
    others: list[NodeRecord], where: dict[str, str], is_refused: bool
) -> None:
    """The rack has nodes in service, as far as all of them report theirs."""
    node = single(**where)
    assert is_refused == bool(why_misplaced(node, [node, *others], pool_of(1 + len(others))))


@pytest.mark.parametrize(
    ("own", "others", "is_refused"),
    [
        ("z1", ("z1", "z1"), False),
        ("z2", ("z1", "z1"), True),
        ("z2", ("z1", "z2"), False),  # an operator has adopted one there
        ("z2", ("z1", ""), False),
        ("", ("z1",), False),
        ("z2", (), False),
    ],
)
@pytest.mark.parametrize("rack_nodes", [0, SIZE])
def test_a_node_elsewhere_than_its_pool_is_refused(
    rack_nodes: int, own: str, others: tuple[str, ...], is_refused: bool
) -> None:
    """Where INSTANCES was set back, the provisioner launched where the pool had been."""
    record = pool_of(1 + len(others))
    rack = RackSpec(nodes=rack_nodes)
    spec = msgspec.structs.replace(record.spec, rack=rack)
    record = msgspec.structs.replace(record, spec=spec)
    serving = [launched(n, "", state="active", zone=zone) for n, zone in enumerate(others)]
    node = launched(9, "", launch=SPEC, zone=own)
    why = why_misplaced(node, serving, record)
    assert is_refused == bool(why and "must be together" in why)
    beside = [*serving, launched(8, "", state="leaving", zone=own)]
    assert why_misplaced(node, beside, record) == ""  # its successor
    placement = PlacementSpec(together="zone", required=False)
    spec = msgspec.structs.replace(spec, placement=placement)
    record = msgspec.structs.replace(record, spec=spec)
    assert why_misplaced(node, serving, record) == ""


def test_what_may_be_the_first_of_a_rack_is_let_in() -> None:
    """A rack is missing; and pools that need not be together have no racks to keep."""
    node = single(nvlink_domain="g.0")
    assert why_misplaced(node, SERVING, pool_of(4))
    assert "" == why_misplaced(node, SERVING, pool_of(8))
    assert "" == why_misplaced(node, SERVING, pool_of(4, required=False))


def test_a_node_whose_instance_is_gone_fills_no_place() -> None:
    """A gone node stays recorded while launches fail: each try for a rack was refused."""
    four = [launched(each, "a", state="active", nvlink_domain="d.0") for each in range(SIZE)]
    fifth = launched(SIZE, "h", state="active", nvlink_domain="h.0")
    gone = msgspec.structs.replace(fifth, lost=True, provider_state="gone")
    new = single(nvlink_domain="g.0")
    assert why_misplaced(new, [*four, fifth], pool_of(2 * SIZE))
    assert "" == why_misplaced(new, [*four, gone], pool_of(2 * SIZE))
    in_its_rack = single(nvlink_domain="h.0")
    assert "" == why_misplaced(in_its_rack, [*four, fifth], pool_of(SIZE))
    assert why_misplaced(in_its_rack, [*four, gone], pool_of(SIZE))


def test_several_gaps_may_be_in_several_racks() -> None:
    """A launch of less than a rack is compared with the pool, not with itself."""
    gang = msgspec.structs.replace(SPEC, gang="g2", gang_size=2)
    both = [single(nvlink_domain=each) for each in ("d.0", "e.0")]
    launch = [msgspec.structs.replace(each, launch=gang) for each in both]
    assert ["", ""] == [why_misplaced(each, [*launch, *SERVING], pool_of(4)) for each in launch]


def test_the_admission_step_waits_refuses_and_lets_in() -> None:
    """The step acts as for other checks; hardware and boot come first."""
    node = launched(0, "a")
    params = SagaParams(pool="training", new_node="n0")
    assert isinstance(admitted(params, node), Met)
    replaced = msgspec.structs.replace
    assert admitted(params, replaced(node, misplaced_reason=None)) is None
    assert Unmeetable("elsewhere", MISPLACED) == admitted(
        params, replaced(node, misplaced_reason="elsewhere")
    )
    unhealthy = replaced(node, misplaced_reason=None, health="unhealthy")
    assert isinstance(admitted(params, unhealthy), Unmeetable)


def refusal() -> SagaState:
    """A launch whose machine was in another rack."""
    return saga_state(
        saga="s1",
        kind="scale-up",
        params=SagaParams(pool="training", new_node="n0"),
        status="unwound",
        started_at=NOW,
        sequence=1,
        failed_step="admit",
        steps={"admit": StepState(status="failed", error=MISPLACED)},
    )


def test_a_machine_in_another_rack_is_no_bad_hardware() -> None:
    """The provider may hand it out again, and then as a part of its own rack."""
    node = launched(0, "a", host="h1")
    assert {} == dead_on_arrival(refusal(), node, NOW, in_incident=False, others_serve=True)


def test_operators_learn_how_to_give_an_incomplete_rack_up() -> None:
    """Once the tries are spent."""
    pool = PoolSpec(
        provider="p", instance_type="t", min_nodes=0, max_nodes=8, rack=RackSpec(nodes=SIZE)
    )
    opened = OpenSaga(kind="scale-up", node="", since=NOW)
    record = PoolRecord(
        name="training", spec=pool, desired=8, open={"s1": opened}, refusals=pool.admission.attempts
    )
    event = refusal_event(record, refusal(), NOW, "c1")
    assert event is not None
    assert "the pool's racks, or give the incomplete rack up" in event.remedy
    assert "navarch scale training 4, then back" in event.remedy


def test_racks_that_are_no_nvlink_domains_are_reported() -> None:
    """A name for two domains, and a domain with two names; agreement says nothing."""
    agree = [launched(0, "x", nvlink_domain="d.0"), launched(1, "x", nvlink_domain="d.0")]
    assert () == disagreements([*agree, launched(2, "x")])
    [text] = disagreements([*agree, launched(2, "x", nvlink_domain="e.0")])
    assert text.startswith("rack x is 2 NVLink domains: n1 is in d.0, n2 is in e.0; unset")
    [text] = disagreements([*agree, launched(2, "y", nvlink_domain="d.0")])
    assert text.startswith("NVLink domain d.0 is 2 racks: n1 is in x, n2 is in y; unset")


async def test_a_machine_elsewhere_is_given_back_though_it_came_first(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """Both others of its launch are admitted once the last is checked."""
    first: list[str] = []

    def domain_of(node: str) -> str:
        first.append(node)
        return "e.0" if node == first[0] else "d.0"

    async def in_service() -> bool:
        active = [view.nvlink_domain for view in await nodes(bus) if view.status == "active"]
        return active == ["d.0"] * 2

    peers.domain_of = domain_of
    pool = settings(rack=RackSpec(nodes=3), placement=PlacementSpec(together="zone", required=True))
    async with Running(server.url, "pool-manager", build, pool):
        [event] = await eventually(lambda: events(bus, "node-refused"))
        await eventually(in_service)

    assert (first[0], "admit") == (event["node"], event["step"])
    assert "it is in rack e.0, and most" in event["reason"]
