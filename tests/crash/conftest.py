"""One fleet for all tests of a module, so that a round does not pay for its start.

Its services are forked, which starts them without importing everything again. `make crash` starts
them as an operator does, and measures how long that takes.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.crash.rig import Rig, Shape
from tests.support.fork_server import ForkServer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    """A fleet of the module's `SHAPE`, shared by all its rounds."""
    shape: Shape = request.module.SHAPE
    directory = tmp_path_factory.mktemp("crash")
    async with (
        ForkServer() as fork_server,
        Rig(directory, shape, fork_server=fork_server) as fleet,
    ):
        yield fleet
        await fleet.quiet()
        found, report = await fleet.differences()
        assert not found, report
        assert fleet.unexpected_ends == []
