"""A plan and a confirmation say whose work an order would end."""

import pytest

from schemas.dry_run import DryRun
from schemas.node_work import OwnedWork
from services.cli.dry_run_output import owner_lines, page

ALICE = OwnedWork(owner="alice", work=("job 1", "job 2"), total=2)
MANY = OwnedWork(owner="bob", work=("job 3",), total=9)


def plan(*owners: OwnedWork, unknown: str = "") -> DryRun:
    """Return the plan of an order that would end this work."""
    return DryRun(
        verb="drain", node="n", pool="p", accepted=True, owners=owners, owners_unknown=unknown
    )


@pytest.mark.parametrize(
    ("plans", "expected"),
    [
        ([plan()], []),
        ([plan(ALICE)], ["It would end the work of:", "  alice: job 1, job 2"]),
        ([plan(MANY)], ["It would end the work of:", "  bob: job 3 and 8 more"]),
        (
            # Job 2 runs on both nodes.
            [plan(ALICE), plan(OwnedWork(owner="alice", work=("job 2", "job 4"), total=2), MANY)],
            [
                "It would end the work of:",
                "  alice: job 1, job 2, job 4",
                "  bob: job 3 and 8 more",
            ],
        ),
        (
            [plan(OwnedWork(owner="", work=("job 5",), total=1))],
            ["It would end the work of:", "  an unnamed owner: job 5"],
        ),
        (
            [plan(unknown="no answer"), plan(unknown="no answer")],
            ["Whose work it would end is unknown: no answer."],
        ),
    ],
    ids=["no work", "one owner's", "much", "of several nodes", "unnamed", "unknown"],
)
def test_each_owner_is_named_once(plans: list[DryRun], expected: list[str]) -> None:
    """A job that runs on several of the nodes is named once, too."""
    assert owner_lines(*plans) == expected


def test_a_dry_run_names_the_owners() -> None:
    """An operator reads them before the order is sent."""
    assert "alice: job 1, job 2" in page(plan(ALICE))
