"""SIGTERM in the middle of a replacement: every service drains, ends with 0, and takes up again."""

import pytest

from tests.crash.rig import SERVICES, Rig, Shape
from tests.crash.rounds import (
    Case,
    hold,
    moments,
    named,
    rounds,
    some,
    stop_without_server,
    strike_services,
)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape()


@pytest.mark.parametrize("cases", some(rounds(SERVICES, moments(SHAPE.order)[::3]), 2), ids=named)
async def test_services_told_to_stop_as_a_moment_is_stored(
    rig: Rig, cases: tuple[Case, ...]
) -> None:
    """What they hold they finish or hand back; each exit code says that it ended as it should."""
    outcome = await strike_services(rig, cases, "terminate")
    hold(outcome)
    assert outcome.status == 0


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_told_to_stop_while_the_server_is_away(rig: Rig, service: str) -> None:
    """It cannot hand anything back, says nothing loud, and ends as it should all the same."""
    outcome = await stop_without_server(rig, rig.replica(service))
    hold(outcome)
    assert outcome.status == 0
