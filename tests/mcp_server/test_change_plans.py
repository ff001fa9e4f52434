"""A token confirms one plan: once, in time, for its caller, and while nothing has changed."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from schemas.operator_requests import NodeRequest
from services.mcp_server.change_plans import (
    CALLERS_MAX,
    PLAN_SECONDS_MAX,
    PLANS_MAX,
    ChangePlan,
    ChangePlans,
    expiry,
    plan_token,
    require_current,
)
from services.primitives.errors import NavarchError

NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)
PLAN = ChangePlan(
    verb="cordon",
    pool="training",
    about="training-1",
    request=NodeRequest(node="training-1", reason="fans"),
    revision=7,
    by="ada",
    expires=expiry(NOW),
)


def test_a_token_is_valid_once() -> None:
    """A token is valid once, and its error names in words what it confirmed."""
    plans = ChangePlans(b"key")
    token = plans.add(PLAN)
    assert token.startswith("cordon-training-1-")
    assert plans.take(token, "ada", NOW) == PLAN
    with pytest.raises(NavarchError, match="was used before; nothing was changed"):
        plans.take(token, "ada", NOW)


@pytest.mark.parametrize(
    ("by", "altered", "later_seconds", "problem"),
    [
        ("ada", "x", 0.0, "no plan has this token"),
        ("bob", "", 0.0, "no plan has this token"),
        ("ada", "", PLAN_SECONDS_MAX, "expired at 09:05:00 UTC"),
    ],
)
def test_a_wrong_or_expired_token_and_that_of_another_caller_are_refused(
    by: str, altered: str, later_seconds: float, problem: str
) -> None:
    """The refusal says what to do."""
    plans = ChangePlans(b"key")
    token = plans.add(PLAN) + altered
    with pytest.raises(NavarchError, match=f"{problem}.*make the plan again"):
        plans.take(token, by, NOW + timedelta(seconds=later_seconds))


def test_a_plan_for_another_revision_is_stale() -> None:
    """A plan was shown for the record as it was, so that any other revision is refused."""
    require_current(PLAN, 7)
    with pytest.raises(NavarchError, match="training-1 has changed since"):
        require_current(PLAN, 8)


@pytest.mark.parametrize(
    "change",
    [
        {"revision": 8},
        {"by": "bob"},
        {"verb": "drain"},
        {"request": NodeRequest(node="training-1", reason="power")},
        {"expires": NOW},
    ],
)
def test_a_token_depends_on_all_of_its_plan(change: dict[str, object]) -> None:
    """A token depends on the process's key, too, so that none can be computed elsewhere."""
    other = msgspec.structs.replace(PLAN, **change)
    assert plan_token(b"key", PLAN) != plan_token(b"key", other)
    assert plan_token(b"key", PLAN) != plan_token(b"another", PLAN)


def test_a_caller_has_a_limited_number_of_plans() -> None:
    """The oldest is dropped; other callers' are kept."""
    plans = ChangePlans(b"key")
    theirs = plans.add(msgspec.structs.replace(PLAN, by="bob"))
    made = [
        plans.add(msgspec.structs.replace(PLAN, revision=number)) for number in range(PLANS_MAX + 1)
    ]
    with pytest.raises(NavarchError, match="no plan has this token"):
        plans.take(made[0], "ada", NOW)
    assert plans.take(made[-1], "ada", NOW).revision == PLANS_MAX
    assert plans.take(theirs, "bob", NOW).by == "bob"


def test_plans_of_a_limited_number_of_callers_are_kept() -> None:
    """The memory of a process is bounded."""
    plans = ChangePlans(b"key")
    by = [f"caller-{number}" for number in range(CALLERS_MAX + 1)]
    made = [plans.add(msgspec.structs.replace(PLAN, by=each)) for each in by]
    with pytest.raises(NavarchError, match="no plan has this token"):
        plans.take(made[0], by[0], NOW)
    assert plans.take(made[-1], by[-1], NOW).by == by[-1]
