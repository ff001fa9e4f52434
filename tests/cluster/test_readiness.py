"""Probes of a process are answered while a majority of the servers is away."""

import asyncio
from pathlib import Path

import pytest

from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
from services.runtime.readiness import Readiness
from tests.support.cluster import Cluster, connected

pytestmark = pytest.mark.slow
WAIT_SECONDS_MAX = 150.0
LOOK_SECONDS = 0.2


async def until_ready(bus: NatsBus, *, ready: bool, because: str = "") -> str:
    """Ask as a probe does until the answer is that, for that reason; return the reason."""
    asked = Readiness(bus)
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while bool(problem := await asked.problem()) == ready or because not in problem:
            await asyncio.sleep(LOOK_SECONDS)
    return problem


async def test_one_server_of_three_is_not_ready_alone(tmp_path: Path) -> None:
    """The server accepts connections and stores nothing: a connected process can do nothing."""
    async with Cluster(tmp_path / "cluster") as three:
        left, *lost = three.servers
        async with connected(left.url) as bus:
            await set_up(bus, SystemClock(), replicas=3)
            assert await until_ready(bus, ready=True) == ""
            await lost[0].kill()
            assert await until_ready(bus, ready=True) == ""
            await lost[1].kill()
            await until_ready(bus, ready=False, because="majority of its servers")
            assert bus.connected
            await asyncio.gather(*(each.start() for each in lost))
            assert await until_ready(bus, ready=True) == ""
            # All of them: the client knows the others by now, and would be connected again at once.
            await asyncio.gather(*(each.kill() for each in three.servers))
            await until_ready(bus, ready=False, because="not connected")
