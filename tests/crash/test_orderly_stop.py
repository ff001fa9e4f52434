"""SIGTERM in the middle of a replacement: every service drains, ends with 0, and takes up again."""

import pytest

from tests.crash.rig import SERVICES, Moment, Rig, Shape
from tests.crash.rounds import hold, moments, stop_without_server, strike_service

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape()


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("moment", moments(SHAPE.order)[::3], ids=str)
async def test_a_service_told_to_stop_as_a_moment_is_stored(
    rig: Rig, service: str, moment: Moment
) -> None:
    """What it holds it finishes or hands back; its exit code says that it ended as it should."""
    outcome = await strike_service(rig, rig.replica(service), moment, "terminate")
    hold(outcome)
    assert outcome.status == 0


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_told_to_stop_while_the_server_is_away(rig: Rig, service: str) -> None:
    """It cannot hand anything back, says nothing loud, and ends as it should all the same."""
    outcome = await stop_without_server(rig, rig.replica(service))
    hold(outcome)
    assert outcome.status == 0
