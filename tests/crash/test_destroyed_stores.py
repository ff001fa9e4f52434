"""A fleet whose stores are destroyed while it runs converges and terminates no healthy node.

`make crash DESTROY=1` draws at random; `make crash-matrix` destroys everything in every way.
"""

import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.crash.destroy_rounds import DestroyTally, destroy_round
from tests.crash.destroyer import ALL, Destroyer, Destruction, Way, draw_destruction
from tests.crash.fleet_shape import Shape
from tests.crash.rig import Rig
from tests.support.fork_server import ForkServer
from tests.support.wide import WHOLE

SHAPE = Shape(nodes=3, boot_seconds=0.05)
FEW = (("KV_NODES", "purge"), ("KV_POOLS", "roll back"))
MOMENT_SECONDS = 0.2
"""In the middle of a replacement."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """One fleet for all rounds; its history does not outlive them."""
    directory = tmp_path_factory.mktemp("crash")
    async with (
        ForkServer() as fork_server,
        Rig(directory, SHAPE, fork_server=fork_server) as started,
    ):
        yield started
        assert started.unexpected_ends == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("target", "way"), ALL if WHOLE else FEW)
async def test_a_fleet_outlives_the_loss_of(fleet: Rig, target: str, way: Way) -> None:
    """A node broken just before is replaced, if need be after it is reported again."""
    outcome = await destroy_round(fleet, Destroyer(fleet), Destruction(target, way, MOMENT_SECONDS))
    assert outcome.wrong == [], outcome.named


def test_a_seed_repeats_what_is_destroyed() -> None:
    """A campaign can be repeated."""
    drawn = [[draw_destruction(random.Random(7), 1) for _ in range(5)] for _ in range(2)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("tally", "status"),
    [
        (DestroyTally(rounds=2, converged=2), 0),
        (DestroyTally(rounds=2, converged=1), 1),
        (DestroyTally(rounds=2, converged=2, problems=["n1 was healthy, and terminated"]), 1),
        (DestroyTally(), 1),
    ],
)
def test_the_exit_code_reports_the_result(tally: DestroyTally, status: int) -> None:
    """0 only if every round converged."""
    assert tally.status() == status
