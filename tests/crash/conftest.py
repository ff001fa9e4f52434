"""One fleet for all tests of a module, so that a round does not pay for its start."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.crash.rig import Rig, Shape


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    """A fleet of the module's `SHAPE`, shared by all its rounds."""
    shape: Shape = request.module.SHAPE
    async with Rig(tmp_path_factory.mktemp("crash"), shape) as fleet:
        yield fleet
        await fleet.quiet()
        found, report = await fleet.differences()
        assert not found, report
        assert fleet.unexpected_ends == []
