"""compose/cluster.yaml on a real Docker engine: each of the three servers dies, and returns."""

import asyncio
from collections.abc import Iterator
from typing import Final

import pytest

from tests.real.compose_project import SERVICES, Compose, break_gpu, project, two_nodes

# The first run builds the image.
pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]
SERVERS: Final = ("nats", "nats-2", "nats-3")
FILES: Final = (
    "compose/compose.yaml",
    "compose/cluster.yaml",
    "tests/real/compose-offline.yaml",
    "tests/real/compose-offline-cluster.yaml",
)


@pytest.fixture(scope="module")
def compose() -> Iterator[Compose]:
    """Provide the project with three servers."""
    with project(FILES) as found:
        asyncio.run(found.start())
        asyncio.run(found.healthy(*SERVERS))
        yield found


@pytest.mark.parametrize("server", SERVERS)
async def test_a_node_is_replaced_while_a_server_is_dead(compose: Compose, server: str) -> None:
    """Two of three are enough; the one that returns catches up."""
    old, _ = await two_nodes(compose.listed)
    compose("kill", server)
    break_gpu(compose, old)
    await two_nodes(compose.listed, without=old)
    compose("start", server)
    await compose.healthy(*SERVERS, *SERVICES)
