"""Services are killed with `provision_first`: never is there more than one instance too many."""

import pytest

from tests.crash.rig import Rig, Shape
from tests.crash.rounds import (
    Case,
    case_names,
    check_outcome,
    moments,
    rounds,
    sample,
    strike_services,
)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape(order="provision_first")


SERVICES = ("pool-manager", "provisioner")


@pytest.mark.parametrize(
    "cases", sample(rounds(SERVICES, moments(SHAPE.order)[1::2]), 2), ids=case_names
)
async def test_services_killed_as_a_moment_is_stored(rig: Rig, cases: tuple[Case, ...]) -> None:
    """The old node leaves only when the new one is in service, whichever service is killed."""
    check_outcome(await strike_services(rig, cases, "kill"))
