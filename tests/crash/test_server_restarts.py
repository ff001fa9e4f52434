"""nats-server killed or stopped at each moment of a replacement, and started on the same store."""

import pytest

from tests.crash.rig import Moment, Rig, Shape
from tests.crash.rounds import check_outcome, moments, sample, start_without_server, strike_server

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape()
STARTS = [
    (service, after_ms)
    for service in ("health-monitor", "pool-manager", "notifier", "provisioner")
    for after_ms in range(60, 361, 100)
]


@pytest.mark.parametrize("moment", sample(moments(SHAPE.order), 4), ids=str)
async def test_server_killed_as_a_moment_is_stored(rig: Rig, moment: Moment) -> None:
    """Stored messages survive; a client without an answer retries, and nothing is done twice."""
    check_outcome(await strike_server(rig, moment, kill=True))


@pytest.mark.parametrize("moment", sample(moments(SHAPE.order)[::3], 2), ids=str)
async def test_server_restarted_as_a_moment_is_stored(rig: Rig, moment: Moment) -> None:
    """Every client reconnects, and the saga continues where it was."""
    check_outcome(await strike_server(rig, moment, kill=False))


@pytest.mark.parametrize(("service", "after_ms"), sample(STARTS, 5))
async def test_server_killed_while_a_service_starts(rig: Rig, service: str, after_ms: int) -> None:
    """A starting service, at any point, neither hangs nor starts partially, and ends in time."""
    check_outcome(await start_without_server(rig, rig.replica(service), after_ms / 1000))
