"""Nodes are disconnected and readmitted, and are reported meanwhile."""

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.saga_params import LaunchSpec
from services.provisioner.instances.instance_decisions import intended_record
from services.provisioner.removal.credentials_revoker import (
    DISCONNECTED_MAX,
    disconnected_failure,
    readmitted,
    why_not_disconnected,
)

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
KEY = "U" + "A" * 55


def running(**changes: Any) -> InstanceRecord:
    """Return the record of a node in service."""
    launch = LaunchSpec(fleet="f", provider="aws", instance_type="t")
    made = intended_record("training", "n1", launch, "", NOW)
    return replace(made, **{"state": "running", "agent_key": KEY, **changes})


@pytest.mark.parametrize(
    ("record", "others", "can_revoke", "why"),
    [
        (running(), 0, True, ""),
        (running(), DISCONNECTED_MAX - 1, True, ""),
        (running(), DISCONNECTED_MAX, True, "5 other nodes are disconnected, the most at once"),
        (running(), 0, False, "nats.revocation_file is not set"),
        (running(agent_key=""), 0, True, "were not issued by the provisioner"),
        (running(state="intended"), 0, True, "no running instance"),
        (running(state="terminating"), 0, True, "no running instance"),
        (None, 0, True, "no running instance"),
    ],
)
def test_few_nodes_are_disconnected_and_each_refusal_says_why(
    record: InstanceRecord | None, others: int, *, can_revoke: bool, why: str
) -> None:
    """A defect of all agents leaves all but five of them connected."""
    found = why_not_disconnected(record, others, can_revoke=can_revoke)

    assert why in found
    assert bool(why) == bool(found)


def test_a_readmitted_node_is_no_longer_reported() -> None:
    """A readmitted node's record has the moment from which its agent has time to come back."""
    flooding = running(disconnected_at=NOW, disconnected_reason="it floods")
    failure = disconnected_failure(flooding)
    again = readmitted(flooding, NOW)

    assert "`navarch readmit n1`" in failure.remedy
    assert "it floods; its credentials are refused since 2026-11-22 12:00:00 UTC" in failure.reason
    assert (None, NOW) == (again.disconnected_at, again.readmitted_at)
    with pytest.raises(ValueError, match="is terminated"):
        readmitted(replace(flooding, state="terminated"), NOW)
    with pytest.raises(ValueError, match="is not disconnected: `navarch status` names"):
        readmitted(again, NOW)
