"""The same where the new node comes first: there is never more than one instance too many."""

import pytest

from tests.crash.rig import Moment, Rig, Shape
from tests.crash.rounds import hold, moments, strike_service

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape(order="provision_first")


@pytest.mark.parametrize("service", ["pool-manager", "provisioner"])
@pytest.mark.parametrize("moment", moments(SHAPE.order)[1::2], ids=str)
async def test_a_service_killed_as_a_moment_is_stored(
    rig: Rig, service: str, moment: Moment
) -> None:
    """The old node leaves only after the new one serves, whoever was killed in between."""
    hold(await strike_service(rig, rig.replica(service), moment, "kill"))
