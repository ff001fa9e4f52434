"""`navarch why` on a fleet of real processes whose pool-manager is frozen."""

import json
import os
import signal
from pathlib import Path

import pytest

from schemas.pool_records import pool_key
from schemas.topology import ANSWERS
from tests.support.inprocess import command, eventually
from tests.whole_fleet.fleet import serving_fleet

pytestmark = pytest.mark.slow

POOLS = """
  training:
    min_nodes: 1
    max_nodes: 2
"""


async def test_why_names_the_gate_while_the_pool_manager_is_frozen(tmp_path: Path) -> None:
    """The running pool-manager answers itself; while it is frozen its stored answer is shown."""
    async with serving_fleet(tmp_path, POOLS) as fleet:
        [node] = await fleet.active("training", 1)
        await command(fleet.url, "hold", node.node, "--for", "1h", "--reason", "bisecting")
        asked = json.loads(await command(fleet.url, "why", node.node, "-o", "json"))

        async def stored() -> bool:
            entry = await fleet.bus.get(ANSWERS, pool_key("training"))
            return entry is not None and b"bisecting" in entry.value

        await eventually(stored)
        os.kill(fleet.pids["pool-manager"], signal.SIGSTOP)
        try:
            frozen = json.loads(await command(fleet.url, "why", node.node, "-o", "json"))
        finally:
            os.kill(fleet.pids["pool-manager"], signal.SIGCONT)

    assert [each["gate"] for each in asked["blocked"]] == ["hold"]
    assert asked["blocked"][0]["remedy"] == f"navarch release {node.node}"
    assert frozen["now"][0].startswith("The pool-manager does not answer")
    assert frozen["blocked"] == asked["blocked"]
