"""Two replicas of every service: exactly one replacement, whichever replica is killed."""

import pytest

from tests.crash.rig import SERVICES, Rig, Shape
from tests.crash.rounds import (
    Case,
    hold,
    moments,
    named,
    rounds,
    some,
    strike_services,
    undisturbed,
)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape(replicas=2)
ROUNDS = 2


@pytest.mark.parametrize("number", range(ROUNDS))
async def test_two_replicas_of_each_service_replace_a_node_once(rig: Rig, number: int) -> None:
    """The replicas share the work; if both write the same, one write is refused."""
    assert number < ROUNDS
    hold(await undisturbed(rig))


@pytest.mark.parametrize("cases", some(rounds(SERVICES, moments(SHAPE.order)[1::3]), 2), ids=named)
async def test_one_of_two_replicas_is_killed(rig: Rig, cases: tuple[Case, ...]) -> None:
    """The other takes over what the killed one held."""
    hold(await strike_services(rig, cases, "kill"))
