"""No order reaches another node's work because of the host name that an agent claims."""

from datetime import UTC, datetime
from typing import Final

import pytest

from schemas.node_events import Registered
from schemas.node_records import NodeRecord
from services.notifier.node_list import as_registered
from services.notifier.node_references import node_reference
from services.notifier.workload.node_name import node_name
from services.pool_manager.planner.node_projection import apply_event

NOW: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
OWN: Final = NodeRecord(
    pool="training",
    node="n1",
    state="active",
    admitted_at=NOW,
    hostname="gpu1",
    address="10.0.0.1",
)
FORGED: Final = Registered(
    id="r2",
    time=NOW,
    pool="training",
    node="n1",
    instance="n1",
    hostname="gpu2",
    address="10.0.0.2",
)
"""What root on the node may publish with its agent's credentials."""


@pytest.mark.parametrize("template", ["{hostname}", "{address}", "{node}"])
def test_an_admitted_node_takes_no_other_nodes_name(template: str) -> None:
    """A node that took another's name would have the other's work drained with it."""
    changed = apply_event(OWN, FORGED, NOW)
    before, after = (node_reference("training", "n1", each, None) for each in (OWN, changed))

    assert node_name(template, before) == node_name(template, after)
    assert node_name(template, before) == node_name(template, as_registered(before, FORGED))


def test_a_node_is_called_what_its_agent_says_until_it_is_admitted() -> None:
    """Nothing but its image has run by then; cloud-init may name it late."""
    new = NodeRecord(pool="training", node="n1", state="registered", hostname="localhost")
    changed = apply_event(new, FORGED, NOW)

    assert ("gpu2", "10.0.0.2") == (changed.hostname, changed.address)
    unknown = node_reference("training", "n1", None, None)
    assert ("gpu2", "10.0.0.2") == (
        as_registered(unknown, FORGED).hostname,
        as_registered(unknown, FORGED).address,
    )
