"""`navarch up`, `ssh`, scaling, a restart and `down`, typed as an operator types them."""

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from schemas import subjects
from schemas.pool_records import pool_key
from schemas.topology import NODES, POOLS
from services.primitives.errors import Unavailable
from tests.support.inprocess import command, eventually
from tests.whole_fleet.fleet import Fleet, serving_fleet

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Provide the five services, and a configuration without a pool."""
    async with serving_fleet(tmp_path_factory.mktemp("up"), "  {}\n") as running:
        yield running


async def navarch(fleet: Fleet, *words: str) -> str:
    """Run a command where the configuration is; it must succeed."""
    config = str(fleet.serving.config)
    where = words.index("--") if "--" in words else len(words)
    url = fleet.serving.supervisor.url
    return await command(url, *words[:where], "--config", config, *words[where:])


async def nodes(fleet: Fleet) -> list[str]:
    """Return the nodes of the pool."""
    entries = await fleet.bus.entries(NODES, "mine.*")
    found = [json.loads(each.value) for each in entries]
    return sorted(each["node"] for each in found if each["state"] == "active")


UP = ("up", "--type", "h100", "--name", "mine", "--gpus")


async def test_up_ready_ssh_and_down(fleet: Fleet) -> None:
    """Each is one command; a pool-manager killed in between loses nothing."""
    plan = await navarch(fleet, *UP, "2", "--dry-run")
    assert "mine: 1 node with 2 GPUs each" in plan
    assert await fleet.bus.get(POOLS, pool_key("mine")) is None

    said = await navarch(fleet, *UP, "2", "--yes")
    assert "mine is up: 1 in service" in said
    assert ["100%", "in", "service"] == said.splitlines()[-2].split()[1:]
    first = await nodes(fleet)
    assert 1 == len(first)

    shown = await navarch(fleet, "ssh", "mine", "--print")
    assert f"/{first[0]} &&" in shown
    inside = await navarch(fleet, "ssh", "mine-0", "--", "cat", "instance.json")
    assert first[0] == json.loads(inside)["request"]["node"]

    pid = fleet.serving.supervisor.pids["pool-manager"]
    os.kill(pid, signal.SIGKILL)

    async def again() -> bool:
        if fleet.serving.supervisor.pids.get("pool-manager") in (None, pid):
            return False
        try:
            await fleet.bus.request(subjects.query("pools"), b"{}", timeout_seconds=1)
        except Unavailable:
            return False
        return True

    await eventually(again)
    said = await navarch(fleet, *UP, "4", "--yes")
    assert "mine: 2 nodes with 2 GPUs each; it has 1 now" in said
    both = await nodes(fleet)
    assert 2 == len(both)
    assert set(first) < set(both)

    said = await navarch(fleet, "down", "mine", "--mode", "immediate", "--yes")
    assert "mine is down: the provider confirmed that its last instance is terminated" in said
    assert await fleet.bus.get(POOLS, pool_key("mine")) is None
    left = Path(fleet.serving.directory, "local")
    assert [] == [each for each in left.iterdir() if not each.name.startswith(".")]
