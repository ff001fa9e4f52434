"""Jobs are served by the forms of constraints that sbatch's manual page has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.workload_systems.slurm_constraints import CHARS_MAX, may_serve

FEATURES = frozenset({"h100", "nvlink", "rack1"})


@pytest.mark.parametrize(
    ("constraint", "serves"),
    [
        ("", True),
        ("h100", True),
        ("a100", False),
        ("h100&nvlink", True),
        ("h100&a100", False),
        ("a100|h100", True),
        ("a100|l40", False),
        ("a100&nvlink|h100", True),
        ("(a100|h100)&nvlink", True),
        ("(a100|h100)&ib", False),
        ("(a100&nvlink)|(l40&rack1)", False),
        # All nodes of one rack, whichever.
        ("[rack1|rack2|rack3]", True),
        ("[rack2|rack3]", False),
        ("h100&[rack1|rack2]", True),
        ("a100&[rack1|rack2]", False),
        # Different nodes.
        ("[rack1*2&rack2*4]", True),
        ("[rack2*2&rack3*4]", False),
        ("[(rack1|rack2)*1&(rack3)*2]", True),
        ("[(a100&nvlink)*4&haswell*1]", False),
        # At least four of the job's nodes; the others need not have it.
        ("graphics*4", True),
        ("a100&graphics*4", False),
        # A feature is its whole name.
        ("h1", False),
        ("H100", False),
    ],
)
def test_a_node_serves_what_its_features_satisfy(constraint: str, serves: bool) -> None:
    """Counts, brackets and parentheses included."""
    assert may_serve(FEATURES, constraint) is serves


@pytest.mark.parametrize(
    "constraint",
    ["a100&", "(a100", "[a100", "a100)", "&", "*4", "(" * 900, "a100&" * CHARS_MAX, "a100 b"],
)
def test_what_cannot_be_read_counts(constraint: str) -> None:
    """A job too many is seen by its operator; one that is never served is not."""
    assert may_serve(FEATURES, constraint)


@given(st.text(alphabet="ab*12&|()[] ", max_size=60))
def test_every_text_is_answered(constraint: str) -> None:
    """Any constraint is answered, and more features never make a node serve fewer jobs."""
    assert may_serve({"a"}, constraint) <= may_serve({"a", "b"}, constraint)
