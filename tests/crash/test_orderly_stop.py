"""SIGTERM during a replacement: every service finishes its work, ends with 0 and resumes."""

import pytest

from tests.crash.rig import SERVICES, Rig, Shape
from tests.crash.rounds import (
    Case,
    case_names,
    check_outcome,
    moments,
    rounds,
    sample,
    stop_without_server,
    strike_services,
)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape()


@pytest.mark.parametrize(
    "cases", sample(rounds(SERVICES, moments(SHAPE.order)[::3]), 2), ids=case_names
)
async def test_services_stopped_as_a_moment_is_stored(rig: Rig, cases: tuple[Case, ...]) -> None:
    """Stopped services finish or return what they hold, and end with exit code 0."""
    outcome = await strike_services(rig, cases, "terminate")
    check_outcome(outcome)
    assert outcome.status == 0


@pytest.mark.parametrize("service", SERVICES)
async def test_service_stopped_while_the_server_is_away(rig: Rig, service: str) -> None:
    """A stopped service can return no message, logs no error, and still ends with exit code 0."""
    outcome = await stop_without_server(rig, rig.replica(service))
    check_outcome(outcome)
    assert outcome.status == 0
