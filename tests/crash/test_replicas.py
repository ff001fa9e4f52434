"""Two replicas of every service: exactly one replacement, whichever replica is killed."""

import pytest

from tests.crash.rig import SERVICES, Rig, Shape
from tests.crash.rounds import (
    Case,
    case_names,
    check_outcome,
    moments,
    replace_without_strike,
    rounds,
    sample,
    strike_services,
)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape(replicas=2)
ROUNDS = 2


@pytest.mark.parametrize("number", range(ROUNDS))
async def test_two_replicas_of_each_service_replace_a_node_once(rig: Rig, number: int) -> None:
    """The replicas share the work; if both write the same, one write is refused."""
    assert number < ROUNDS
    check_outcome(await replace_without_strike(rig))


@pytest.mark.parametrize(
    "cases", sample(rounds(SERVICES, moments(SHAPE.order)[1::3]), 2), ids=case_names
)
async def test_one_of_two_replicas_is_killed(rig: Rig, cases: tuple[Case, ...]) -> None:
    """The other takes over what the killed one held."""
    check_outcome(await strike_services(rig, cases, "kill"))
