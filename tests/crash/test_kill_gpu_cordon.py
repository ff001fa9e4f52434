"""Services killed while a GPU is cordoned and given back: each is ordered, and its node stays."""

import pytest

from tests.crash.fleet_actions import find_action, moments_of
from tests.crash.rig import SERVICES, Rig, Shape
from tests.crash.rounds import Case, case_names, check_outcome, rounds, strike_services

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape(pool={"health": {"remediation": "ladder", "cordon_scope": "gpu"}})
ACTION = find_action("cordon of a GPU")
CASES = rounds(SERVICES, moments_of("cordon-gpus", SHAPE.order))


@pytest.mark.parametrize("cases", CASES, ids=case_names)
async def test_services_killed_as_a_moment_is_stored(rig: Rig, cases: tuple[Case, ...]) -> None:
    """The workload system has the GPU cordoned, then free, and nothing else is done to the node."""
    assert ACTION.fits(rig.shape)
    check_outcome(await strike_services(rig, cases, "kill", ACTION.perform))
