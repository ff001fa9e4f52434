"""The pool-manager handles nodes that were disconnected because they flooded the bus."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from schemas.enums import NOT_LISTED
from schemas.instance_records import InstanceRecord
from schemas.node_records import NodeRecord
from schemas.saga_params import LaunchSpec
from services.pool_manager.instance_verifier import is_asked_about, says
from services.pool_manager.planner.pool_planner import plan
from tests.pool_manager.test_pool_planner import NOW, node, pool, snapshot


@pytest.mark.parametrize(
    ("changes", "replaced"),
    [({}, False), ({"health": "unhealthy"}, True), ({"lost": False}, False)],
)
def test_disconnected_node_is_not_replaced_for_its_silence(
    changes: dict[str, Any], *, replaced: bool
) -> None:
    """The credentials are refused until an operator decides; what was reported before counts."""
    disconnected = node("a", lost=True, lost_at=NOW, provider_state="disconnected")
    found = msgspec.structs.replace(disconnected, **changes)
    decided = plan(snapshot(pool(1), found), NOW + timedelta(days=3))

    assert replaced == bool(decided.start)
    assert decided.wake_at is None or replaced


FLOODED = NOW - timedelta(days=3)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "present"),
        ({"disconnected_at": FLOODED}, "disconnected"),
        ({"disconnected_at": FLOODED, "error": NOT_LISTED}, "gone"),
        ({"disconnected_at": FLOODED, "state": "terminated"}, "gone"),
        ({"disconnected_at": FLOODED, "state": "terminating"}, "present"),
        # Its agent has five minutes to come back.
        ({"readmitted_at": NOW - timedelta(minutes=4)}, "disconnected"),
        ({"readmitted_at": NOW - timedelta(minutes=5)}, "present"),
        ({"readmitted_at": NOW - timedelta(days=1), "disconnected_at": NOW}, "disconnected"),
    ],
)
def test_what_is_known_of_a_silent_nodes_instance(changes: dict[str, Any], expected: str) -> None:
    """The provisioner's record is what is known; silence that is ours is no loss."""
    launch = LaunchSpec(fleet="f", provider="aws", instance_type="t")
    record = InstanceRecord(
        pool="training",
        instance="a",
        provider="aws",
        token="t",
        launch=launch,
        state="running",
        intended_at=FLOODED,
    )

    assert expected == says(msgspec.structs.replace(record, **changes), NOW)
    assert says(None, NOW) == ""


@pytest.mark.parametrize(
    ("changes", "fleet", "asked"),
    [
        ({}, "f", True),
        ({"lost": False}, "f", False),
        ({"state": "leaving"}, "f", True),
        ({"state": "terminated"}, "f", False),
        ({"provider_state": "present"}, "f", True),
        ({"provider_state": "gone"}, "f", False),
        ({"provider_state": "gone"}, "", True),
    ],
)
def test_silent_nodes_are_asked_about(changes: dict[str, Any], fleet: str, asked: bool) -> None:
    """The instance on record of an adopted node may be an earlier one of its name."""
    launch = LaunchSpec(fleet=fleet, provider="p", instance_type="t")
    silent = NodeRecord(pool="p", node="n", state="active", lost=True, launch=launch)
    assert is_asked_about(msgspec.structs.replace(silent, **changes)) is asked
