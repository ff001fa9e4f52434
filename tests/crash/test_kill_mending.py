"""Services killed while a node is reset or rebooted in its place: once in effect, never in use."""

import pytest

from tests.crash.plays import moments_of, named
from tests.crash.rig import SERVICES, Rig, Shape
from tests.crash.rounds import Case, hold, rounds, some, strike_services
from tests.crash.rounds import named as told

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape(order="terminate_first")
KINDS = {
    "reset": "reset-gpu",
    "ladder": "reset-gpu",
    "reboot": "reboot",
    "reboot by the provider": "reboot",
}
"""What is brought about -> the saga in whose moments somebody is killed."""
CASES = [
    pytest.param(play, cases, id=f"{play}: {told(cases)}")
    for play, kind in KINDS.items()
    for cases in some(rounds(SERVICES, moments_of(kind, SHAPE.order)), 20)
]


@pytest.mark.parametrize(("play", "cases"), CASES)
async def test_services_killed_as_a_moment_is_stored(
    rig: Rig, play: str, cases: tuple[Case, ...]
) -> None:
    """By its agent or by its provider: once, with no work on it, and it serves again."""
    if play == "ladder" and all(rig.climbed[node] >= 2 for node in await serving(rig)):
        # Their next rung would be another; a fresh node begins anew.
        await named("replace").perform(rig)
    hold(await strike_services(rig, cases, "kill", named(play).perform))


async def serving(rig: Rig) -> list[str]:
    """The node that would be chosen."""
    return [await rig.oldest()]
