"""A node of a `provision_first` pool makes room, in the end, for its successor."""

from datetime import UTC, datetime, timedelta

import pytest

from schemas.enums import HealthStatus
from schemas.node_records import NodeRecord, RemediationAttempt
from schemas.saga_params import SagaParams
from schemas.settings import PoolSpec
from services.pool_manager.planner.saga_projection import leaving_node
from services.pool_manager.planner.sizing.open_sagas import lacks_room
from services.saga.definitions import DEFINITIONS
from services.saga.saga_state import StepState
from tests.support.saga_states import saga_state

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=1)


@pytest.mark.parametrize(
    ("order", "limit", "cordoned", "since", "expected"),
    [
        ("provision_first", 1800, True, 1800, True),
        ("provision_first", 1800, True, 1799, False),
        ("provision_first", 1800, True, None, False),
        ("provision_first", 1800, False, 1800, False),  # it serves
        ("provision_first", 0, True, 99_999, False),  # the operator has forbidden it
        ("terminate_first", 1800, True, 1800, False),  # that is its order already
    ],
)
def test_when_a_node_makes_room(
    order: str, limit: float, since: float | None, *, cordoned: bool, expected: bool
) -> None:
    """A cordoned node, where it is allowed, after its time."""
    spec = PoolSpec(min_nodes=1, max_nodes=1, replace_order=order, provision_first_for=limit)  # type: ignore[arg-type]
    began = None if since is None else NOW - timedelta(seconds=since)
    node = NodeRecord(pool="p", node="p-1", cordoned=cordoned, no_room_since=began)
    assert lacks_room(node, spec, NOW) is expected


@pytest.mark.parametrize(
    ("order", "launch", "before", "expected"),
    [
        (
            "provision_first",
            StepState(status="undone", before="failed", error="CAPACITY"),
            None,
            NOW,
        ),
        ("provision_first", StepState(status="failed", error="above-pool-cap"), None, NOW),
        ("provision_first", StepState(status="undone", before="expired"), None, NOW),
        ("provision_first", StepState(status="failed", error="QUOTA"), EARLIER, EARLIER),
        ("provision_first", StepState(status="failed", error="INVALID"), EARLIER, None),
        (
            "provision_first",
            StepState(status="undone", before="succeeded"),
            EARLIER,
            None,
        ),  # it had room, and failed
        ("provision_first", StepState(), EARLIER, EARLIER),  # it did not come so far
        ("terminate_first", StepState(status="failed", error="CAPACITY"), None, None),
    ],
)
def test_since_when_there_is_no_room(
    order: str, launch: StepState, before: datetime | None, expected: datetime | None
) -> None:
    """The time counts from the first of the tries in a row that found none."""
    state = saga_state(
        saga="replace-p-1-1",
        kind="replace",
        params=SagaParams(pool="p", node="p-1", new_node="p-2", order=order),
        status="unwound",
        started_at=NOW,
        steps={"cordon": StepState(status="succeeded"), "provision": launch},
    )
    node = NodeRecord(pool="p", node="p-1", cordoned=True, no_room_since=before)
    found = leaving_node(node, state)
    assert found is not None
    assert found.no_room_since == expected


@pytest.mark.parametrize(
    ("signature", "health", "room_since", "makes_room"),
    [
        ("expired", "healthy", EARLIER, True),
        ("drifted", "degraded", EARLIER, True),
        ("consolidated", "healthy", NOW, False),  # it has its time
        ("xid-79", "healthy", None, False),  # its cordon was taken back
        ("expired", "unhealthy", EARLIER, False),  # it is cordoned first, as any broken node
    ],
)
def test_a_node_that_is_well_makes_room_without_a_cordon(
    signature: str, health: HealthStatus, room_since: datetime | None, *, makes_room: bool
) -> None:
    """The tries without room count although the node has served all the while."""
    params = SagaParams(
        pool="p", node="p-1", new_node="p-2", order="provision_first", fault_signature=signature
    )
    state = saga_state(
        saga="replace-p-1-1",
        kind="replace",
        params=params,
        status="unwound",
        started_at=NOW,
        steps={"provision": StepState(status="failed", error="CAPACITY")},
    )
    node = NodeRecord(pool="p", node="p-1", health=health, no_room_since=room_since)
    found = leaving_node(node, state)
    assert found is not None
    assert found.no_room_since == room_since
    spec = PoolSpec(min_nodes=1, max_nodes=1, replace_order="provision_first")
    assert lacks_room(found, spec, NOW) is makes_room


@pytest.mark.parametrize(("signature", "kept"), [("drifted", True), ("xid-79", False)])
def test_an_uncordon_forgets_no_try_to_renew_a_node(signature: str, *, kept: bool) -> None:
    """A spare had its place: it is given back where nothing comes in its place, and tried again."""
    attempt = RemediationAttempt(
        saga="replace-p-1-1", kind="replace", fault_signature=signature, at=EARLIER
    )
    node = NodeRecord(
        pool="p", node="p-1", cordoned=True, sagas=1, no_room_since=EARLIER, attempts=(attempt,)
    )
    state = saga_state(
        saga="uncordon-p-1-2",
        kind="uncordon",
        params=SagaParams(pool="p", node="p-1"),
        status="done",
        started_at=NOW,
        steps={"uncordon": StepState(status="succeeded")},
    )
    found = leaving_node(node, state)
    assert found is not None
    assert not found.cordoned
    assert found.no_room_since == (EARLIER if kept else None)


@pytest.mark.parametrize(
    ("signature", "order", "promotes", "first"),
    [
        ("drifted", "provision_first", "", "provision"),
        ("expired", "provision_first", "", "provision"),
        ("xid-79", "provision_first", "", "cordon"),
        ("drifted", "terminate_first", "", "cordon"),
        ("drifted", "provision_first", "spare", "cordon"),
    ],
)
def test_a_node_that_is_well_serves_until_its_successor_does(
    signature: str, order: str, promotes: str, first: str
) -> None:
    """The node is cordoned before anything is launched only where it is broken, or leaves first."""
    params = SagaParams(
        pool="p",
        node="old",
        new_node="new",
        fault_signature=signature,
        order=order,
        promotes=promotes,
    )
    names = [each.name for each in DEFINITIONS["replace"].steps(params)]
    assert names[0] == first
    assert names.index("cordon") < names.index("drain") < names.index("terminate")
