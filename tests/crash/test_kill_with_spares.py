"""Services killed while a spare is promoted: one node in service, and one new spare."""

import pytest

from tests.crash.fleet_actions import moments_of, named
from tests.crash.rig import SERVICES, Rig, Shape
from tests.crash.rounds import Case, hold, rounds, some, strike_services
from tests.crash.rounds import named as case_names

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape(order="terminate_first", spares=1)
KINDS = {"replace": "replace", "promote, and one less": "promote"}
CASES = [
    pytest.param(play, cases, id=f"{play}: {case_names(cases)}")
    for play, kind in KINDS.items()
    for cases in some(rounds(SERVICES, moments_of(kind, SHAPE.order, spares=True)), 20)
]


@pytest.mark.parametrize(("play", "cases"), CASES)
async def test_services_killed_as_a_moment_is_stored(
    rig: Rig, play: str, cases: tuple[Case, ...]
) -> None:
    """The spare replaces the broken node or joins the others, and a new spare is launched."""
    hold(await strike_services(rig, cases, "kill", named(play).perform))
