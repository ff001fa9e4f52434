"""Services killed while a spare is promoted: one node in service, and one new spare."""

import pytest

from tests.crash.fleet_actions import find_action, moments_of
from tests.crash.rig import SERVICES, Rig, Shape
from tests.crash.rounds import Case, case_names, check_outcome, rounds, sample, strike_services

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape(order="terminate_first", spares=1)
KINDS = {"replace": "replace", "promote, and one less": "promote"}
CASES = [
    pytest.param(play, cases, id=f"{play}: {case_names(cases)}")
    for play, kind in KINDS.items()
    for cases in sample(rounds(SERVICES, moments_of(kind, SHAPE.order, spares=True)), 20)
]


@pytest.mark.parametrize(("play", "cases"), CASES)
async def test_services_killed_as_a_moment_is_stored(
    rig: Rig, play: str, cases: tuple[Case, ...]
) -> None:
    """The spare replaces the broken node or joins the others, and a new spare is launched."""
    check_outcome(await strike_services(rig, cases, "kill", find_action(play).perform))
