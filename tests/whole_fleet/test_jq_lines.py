"""The lines that a Slurm site pipes through jq work on the command line's output as written."""

import asyncio
import json
import os
import shutil
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.whole_fleet.fleet import Fleet, serving_fleet

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

POOLS = """
  slurm:
    min_nodes: 2
    max_nodes: 3
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Two nodes, of which the first is sick: its drain is waited for until the end."""
    async with serving_fleet(tmp_path_factory.mktemp("slurm"), POOLS) as running:
        sick, _ = await running.active("slurm", 2)
        running.around.busy.add(sick.node)
        running.break_gpu(sick)
        await running.around.until(lambda: sick.node in running.around.asked)
        yield running


@pytest.fixture
def sick(fleet: Fleet) -> str:
    """The sick node."""
    return next(iter(fleet.around.busy))


async def run(fleet: Fleet, *command: str) -> str:
    """Run a command beside the fleet; return what it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NAVARCH_")}
    environment["NAVARCH_NATS_URL"] = fleet.url
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=PIPE, env=environment
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


LIST = "navarch list --output json | jq -r '.[] | select(.health == \"unhealthy\") | .id'"
HEALTH = "navarch get \"$(hostname)\" --output json 2>/dev/null | jq -r '.health'"
BRIEF = (
    'navarch get "$(hostname)" --output json '
    "| jq '{node: .id, health: .health, gpus: .gpu_count}'"
)
EVENTS_OF = "navarch get \"$(hostname)\" --output json | jq '.health_events'"

Expect = Callable[[str, str], None]


def is_the_sick_node(sick: str, printed: str) -> None:
    """One name a line."""
    assert printed.split() == [sick]


def is_unhealthy(_: str, printed: str) -> None:
    """One word."""
    assert printed == "unhealthy\n"


def is_brief(sick: str, printed: str) -> None:
    """Name, health and number of GPUs."""
    assert json.loads(printed) == {"node": sick, "health": "unhealthy", "gpus": 8}


def is_the_fault(_: str, printed: str) -> None:
    """One fault, with its code and GPU."""
    (event,) = json.loads(printed)
    assert {key: event[key] for key in ("kind", "code", "gpu_index", "result")} == {
        "kind": "xid",
        "code": 79,
        "gpu_index": 3,
        "result": "unhealthy",
    }


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed (apt install jq)")
@pytest.mark.parametrize(
    ("line", "expect"),
    [
        (LIST, is_the_sick_node),
        (HEALTH, is_unhealthy),
        (BRIEF, is_brief),
        (EVENTS_OF, is_the_fault),
    ],
)
async def test_the_line_works_in_a_shell(
    fleet: Fleet, sick: str, line: str, expect: Expect
) -> None:
    """The shell that runs the prolog prints what the script goes by."""
    script = f"set -eo pipefail; hostname() {{ echo {sick}; }}; {line}"
    expect(sick, await run(fleet, "bash", "-c", script))


async def test_the_same_fields_are_there_without_jq(fleet: Fleet, sick: str) -> None:
    """What the lines pick out of the JSON stands in it under these names."""
    nodes: list[dict[str, Any]] = json.loads(await run(fleet, "navarch", "list", "-o", "json"))
    assert [each["id"] for each in nodes if each["health"] == "unhealthy"] == [sick]
    node: dict[str, Any] = json.loads(await run(fleet, "navarch", "get", sick, "-o", "json"))
    assert (node["id"], node["health"], node["gpu_count"]) == (sick, "unhealthy", 8)
    is_the_fault(sick, json.dumps(node["health_events"]))
