"""docs/first-cloud.md, run from its scale-up to its last command, with simulated nodes for AWS.

Its policy and its configuration: tests/provisioner/test_first_cloud_page.py.
"""

import asyncio
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.cli.test_serve import READY, Served, environment, navarch, served
from tests.notifier.test_notifier_pages import blocks

pytestmark = pytest.mark.slow

PAGE: Final = "first-cloud.md"
OF_AWS: Final = ("provider", "instance_type", "user_data", "ssh_private_key_path")
SECONDS_MAX: Final = 90
DRILL: Final = "navarch-agent inject"


def sections() -> str:
    """Return the page's configuration, with its pool at a provider of this machine."""
    page: dict[str, Any] = yaml.safe_load(blocks(PAGE, "yaml")[0])
    pool = {key: value for key, value in page["pools"]["first"].items() if key not in OF_AWS}
    pool |= {"provider": "local", "instance_type": "local"}
    priced = {"local": {"local": {"dollars_per_hour": 1.0}}}
    settings = {
        "fleet": page["fleet"],
        "providers": {"local": {"type": "local", "gpu_count": 1}},
        "instance_types": {"types": priced},
        "pools": {"first": pool},
    }
    return yaml.safe_dump(settings)


def commands(number: int) -> list[list[str]]:
    """Return the `navarch` commands of a block of the page, without their comments."""
    lines = blocks(PAGE, "bash")[number].splitlines()
    found = [shlex.split(each, comments=True) for each in lines]
    return [words[1:] for words in found if words[:1] == ["navarch"]]


async def node_that(fleet: Served, holds: Callable[[dict[str, Any]], bool]) -> str:
    """Wait for a node of which something holds, and return its name."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            status, out = await navarch("list", "-o", "json", place=fleet.place)
            assert status == 0, out
            if found := [each for each in json.loads(out) if holds(each)]:
                return str(found[0]["id"])
            await asyncio.sleep(0.2)


async def drill(folder: Path) -> None:
    """Run the page's drill as the agent's own environment has it."""
    [line] = [each for each in blocks(PAGE, "bash")[3].splitlines() if DRILL in each]
    words = line.rpartition(DRILL)[2].strip(" '").split()
    start = json.loads((folder / "start.json").read_text())
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent.command_line", "inject", *words),
        env=environment(**start["environment"]),
    )
    assert await process.wait() == 0


async def test_the_page_leads_to_a_node_that_is_replaced(tmp_path: Path) -> None:
    """Each of its commands succeeds; the fault's node makes way for another, and none is left."""
    shown = commands(2)
    assert [each[0] for each in shown] == ["offerings", "scale", "status", "why", "timeline"]
    async with served(tmp_path / "fleet", sections()) as fleet:
        await fleet.says(READY)
        for words in shown[:-1]:
            status, out = await navarch(*words, place=fleet.place)
            assert status == 0, (words, out)
        first = await node_that(fleet, lambda each: each["status"] == "active")
        assert first.startswith(shown[-1][1].removesuffix("…"))
        status, out = await navarch("timeline", first, place=fleet.place)
        assert (status, "registered" in out) == (0, True), out

        await drill(tmp_path / "fleet" / "data" / "local" / first)
        other = await node_that(
            fleet, lambda each: each["id"] != first and each["status"] == "active"
        )
        status, out = await navarch("why", first, place=fleet.place)
        assert (status, "XID 79" in out, other in out) == (0, True, True), out

        status, out = await navarch("scale", "first", "0", "--wait", place=fleet.place)
        assert (status, other in out) == (0, True), out
        async with asyncio.timeout(SECONDS_MAX):
            while other in out:
                status, out = await navarch("instances", place=fleet.place)
                assert status == 0, out
        status, out = await navarch("leaked", "-o", "json", place=fleet.place)
        assert (status, json.loads(out)) == (0, []), out
