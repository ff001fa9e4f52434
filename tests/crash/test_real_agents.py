"""The same with real agent processes that read the fault from a kernel log."""

import pytest

from services.provisioner.providers.local_gpus import compiler
from tests.crash.rig import Moment, Rig, Shape
from tests.crash.rounds import FAULT, VERDICT, check_outcome, sample, strike_server, strike_service

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(compiler() is None, reason="no C compiler, so no simulated GPUs"),
]

SHAPE = Shape(provider="local")

KILLS = [
    ("health-monitor", VERDICT),
    ("pool-manager", Moment("saga", "started")),
    ("pool-manager", Moment("terminate", "succeeded")),
    ("pool-manager", Moment("register", "started")),
    ("notifier", Moment("drain", "started")),
    ("provisioner", Moment("terminate", "started")),
    ("provisioner", Moment("provision", "started")),
    ("provisioner", Moment("bootstrap", "started")),
    ("metrics", Moment("provision", "started")),
]


@pytest.mark.parametrize(("service", "moment"), sample(KILLS, 2), ids=str)
async def test_service_killed_as_a_moment_is_stored(rig: Rig, service: str, moment: Moment) -> None:
    """No second agent, none without its instance, and none left of the broken node."""
    check_outcome(await strike_service(rig, rig.replica(service), moment, "kill"))


@pytest.mark.parametrize("moment", [FAULT, Moment("provision", "started")], ids=str)
async def test_server_killed_as_a_moment_is_stored(rig: Rig, moment: Moment) -> None:
    """Agents keep what they could not publish, and publish it once."""
    check_outcome(await strike_server(rig, moment, kill=True))
