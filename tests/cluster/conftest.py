"""Starts three servers for a module's tests, with the whole topology at three replicas."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
from tests.support.cluster import Cluster, connected


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """Yield three servers, up in about two seconds."""
    async with Cluster(tmp_path_factory.mktemp("cluster")) as three:
        async with connected(three.url) as bus:
            await set_up(bus, SystemClock(), replicas=3)
        yield three
