"""The jq lines documented for Slurm sites work on the command line's output."""

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
    """Two nodes, one of them unhealthy: its drain waits until the end."""
    async with serving_fleet(tmp_path_factory.mktemp("slurm"), POOLS) as running:
        unhealthy, _ = await running.active("slurm", 2)
        running.workload.busy.add(unhealthy.node)
        running.break_gpu(unhealthy)
        await running.workload.until(lambda: unhealthy.node in running.workload.asked)
        yield running


@pytest.fixture
def unhealthy(fleet: Fleet) -> str:
    """Return the name of the unhealthy node."""
    return next(iter(fleet.workload.busy))


async def run(fleet: Fleet, *command: str) -> str:
    """Run a command against the fleet and return its output."""
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


def is_the_unhealthy_node(unhealthy: str, printed: str) -> None:
    """The line prints one name a line."""
    assert printed.split() == [unhealthy]


def is_unhealthy(_: str, printed: str) -> None:
    """The line prints one word."""
    assert printed == "unhealthy\n"


def is_brief(unhealthy: str, printed: str) -> None:
    """Name, health and number of GPUs."""
    assert json.loads(printed) == {"node": unhealthy, "health": "unhealthy", "gpus": 8}


def is_the_fault(_: str, printed: str) -> None:
    """The line prints one fault, with its code and GPU."""
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
        (LIST, is_the_unhealthy_node),
        (HEALTH, is_unhealthy),
        (BRIEF, is_brief),
        (EVENTS_OF, is_the_fault),
    ],
)
async def test_line_works_in_a_shell(
    fleet: Fleet, unhealthy: str, line: str, expect: Expect
) -> None:
    """The shell that runs the prolog prints what the script expects."""
    script = f"set -eo pipefail; hostname() {{ echo {unhealthy}; }}; {line}"
    expect(unhealthy, await run(fleet, "bash", "-c", script))


async def test_json_output_has_the_fields_of_the_lines(fleet: Fleet, unhealthy: str) -> None:
    """The fields that the lines select have these names in the JSON."""
    nodes: list[dict[str, Any]] = json.loads(await run(fleet, "navarch", "list", "-o", "json"))
    assert [each["id"] for each in nodes if each["health"] == "unhealthy"] == [unhealthy]
    node: dict[str, Any] = json.loads(await run(fleet, "navarch", "get", unhealthy, "-o", "json"))
    assert (node["id"], node["health"], node["gpu_count"]) == (unhealthy, "unhealthy", 8)
    is_the_fault(unhealthy, json.dumps(node["health_events"]))
