"""Conditions of a node, as `navarch get` and `navarch uncordon` show them."""

from schemas.fleet_queries import ConditionView, NodeView
from services.cli.node_requests import still_held
from services.cli.text.tables import node_page

HELD = ConditionView(
    name="pcie-width", gpu_index=3, since="2026-11-21T01:00:00Z", message="8 lanes of 16"
)
UNREAD = ConditionView(name="nvml", since="2026-11-21T02:00:00Z", unknown=True, message="hangs")
NODE = NodeView(id="n-1", pool="p", status="active", health="degraded", conditions=(HELD, UNREAD))


def test_the_page_of_a_node_has_what_holds_and_what_is_unknown():
    """Each condition has its GPU, its state and its message; a node in order has no such table."""
    page = node_page(NODE, colour=False)
    assert "pcie-width" in page
    assert "8 lanes of 16" in page
    rows = [line.split() for line in page.splitlines()]
    assert any("nvml" in row and "unknown" in row for row in rows)
    assert any("pcie-width" in row and "3" in row and "holds" in row for row in rows)
    healthy = NodeView(id="n-2", pool="p", status="active", health="healthy")
    assert "condition" not in node_page(healthy, colour=False)


def test_an_uncordon_says_what_still_holds():
    """The operator learns before the request what brings the verdict back."""
    (text,) = still_held(NODE)
    assert text.startswith("n-1: pcie-width on GPU 3 holds since 2026-11-21T01:00:00Z")
