"""Services killed while a node is reset or rebooted: it happens once, and never under work."""

import pytest

from tests.crash.fleet_actions import find_action, moments_of
from tests.crash.rig import SERVICES, Rig, Shape
from tests.crash.rounds import Case, case_names, check_outcome, rounds, sample, strike_services

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape(order="terminate_first")
KINDS = {
    "reset": "reset-gpu",
    "ladder": "reset-gpu",
    "reboot": "reboot",
    "reboot by the provider": "reboot",
}
"""Action -> the saga at whose moments services are killed."""
CASES = [
    pytest.param(play, cases, id=f"{play}: {case_names(cases)}")
    for play, kind in KINDS.items()
    for cases in sample(rounds(SERVICES, moments_of(kind, SHAPE.order)), 20)
]


@pytest.mark.parametrize(("play", "cases"), CASES)
async def test_services_killed_as_a_moment_is_stored(
    rig: Rig, play: str, cases: tuple[Case, ...]
) -> None:
    """A node is reset or rebooted once, without work on it, and returns to service.

    Its agent or its provider does it.
    """
    if play == "ladder" and all(rig.rungs_used[node] >= 2 for node in await serving(rig)):
        # Its next remedy would be another one; a fresh node starts with the first.
        await find_action("replace").perform(rig)
    check_outcome(await strike_services(rig, cases, "kill", find_action(play).perform))


async def serving(rig: Rig) -> list[str]:
    """The node that would be chosen."""
    return [await rig.oldest()]
