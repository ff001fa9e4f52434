"""Fleets that stand for a whole module, so that a round costs a round and not a fleet."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.crash.rig import Rig, Shape


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    """A fleet of the shape that the module names, shared by all its rounds."""
    shape: Shape = request.module.SHAPE
    async with Rig(tmp_path_factory.mktemp("crash"), shape) as fleet:
        yield fleet
        await fleet.quiet()
        found, told = await fleet.differences()
        assert not found, told
        assert fleet.unasked == []
