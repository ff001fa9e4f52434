"""Conditions of a node, as `navarch get`, `why`, `diagnose` and `uncordon` show them."""

from datetime import UTC, datetime

import msgspec
import pytest

from schemas.fleet_queries import NodeView
from schemas.held_conditions import ConditionView
from schemas.node_records import NodeRecord
from schemas.present_answers import BlockedNode
from services.cli.node_requests import still_held
from services.cli.text.tables import node_page
from services.fleet_client.why_text import why_node
from services.operator_text.condition_text import condition_line
from services.operator_text.quantities import local_time_text
from tests.support.held_conditions import LISTED

HELD = ConditionView(
    name="pcie-width", gpu_index=3, since="2026-11-21T01:00:00Z", message="8 lanes of 16"
)
UNREAD = ConditionView(name="nvml", since="2026-11-21T02:00:00Z", unknown=True, message="hangs")
NOW = datetime(2026, 11, 22, tzinfo=UTC)
SILENT = "whether it holds now is unknown, as the agent is silent"
NODE = NodeView(id="n-1", pool="p", status="active", health="degraded", conditions=(HELD, UNREAD))


def test_the_page_of_a_node_has_what_holds_and_what_is_unknown():
    """Each condition has its GPU, its state and its message; a node in order has no such table."""
    page = node_page(NODE, NOW, colour=False)
    assert "pcie-width" in page
    assert "8 lanes of 16" in page
    assert condition_line(HELD) in page
    assert condition_line(UNREAD) in page
    healthy = NodeView(id="n-2", pool="p", status="active", health="healthy")
    assert "condition" not in node_page(healthy, NOW, colour=False).lower()


@pytest.mark.parametrize(
    ("view", "silent", "words"),
    [
        (HELD, False, "pcie-width on GPU 3 holds since {}: 8 lanes of 16"),
        (
            HELD,
            True,
            f"pcie-width on GPU 3 held since {{}}: 8 lanes of 16; {SILENT}",
        ),
        (UNREAD, False, "nvml is unknown since {}, as it cannot be read: hangs"),
        (UNREAD, True, "nvml is unknown since {}, as it cannot be read: hangs"),
        (
            msgspec.structs.replace(HELD, gpu_index=0, message="a\n\x1b[31m"),
            False,
            "pcie-width on GPU 0 holds since {}: a\\n\\u001b[31m",
        ),
    ],
)
def test_a_condition_has_its_state_and_since_when(view: ConditionView, silent: bool, words: str):
    """The unknown is never shown as in order, and nothing in a message is obeyed."""
    assert condition_line(view, silent=silent) == words.format(local_time_text(view.since))


@pytest.mark.parametrize(
    ("state", "lost", "words"),
    [
        ("active", False, ["pcie-width on GPU 3 holds", "nvml is unknown"]),
        ("active", True, ["pcie-width on GPU 3 held", "nvml is unknown"]),
        ("terminated", False, []),
    ],
)
def test_why_has_the_conditions_after_what_is_in_progress(state, lost, words):
    """A node that is judged healthy shows what cannot be read as well."""
    node = NodeRecord(pool="p", node="n-1", state=state, health="healthy", lost=lost)
    said = why_node(node, BlockedNode(), [], [], conditions=LISTED).now[1:]
    assert [line.partition(" since ")[0] for line in said] == words


def test_an_uncordon_says_what_still_holds():
    """The operator learns before the request what brings the verdict back."""
    (text,) = still_held(NODE)
    assert text.startswith("n-1: pcie-width on GPU 3 holds since ")
