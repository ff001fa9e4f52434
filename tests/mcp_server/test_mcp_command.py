"""Runs `navarch mcp` with the SDK's own client, on a bus with credentials."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters, stdio_client

from schemas.messages import encode
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import PoolRecord, pool_key
from schemas.settings import PoolSpec
from schemas.topology import EVENTS, NODES, POOLS
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Bus
from services.mcp_server.tool_table import TOOLS, tool_rows
from tests.cli.conftest import managing
from tests.support.secured import Secured

ROOT = Path(__file__).parents[2]
HOSTILE = "\x1b[31mfans\u202e"
CORDON = {"verb": "cordon", "name": "training-1", "reason": HOSTILE}


@pytest.fixture
async def fleet(secured: Secured) -> AsyncIterator[NatsBus]:
    """Provide a small fleet on a bus with credentials."""
    bus = await NatsBus.connect(secured.options("pool-manager"))
    spec = PoolSpec(min_nodes=0, max_nodes=4)
    await bus.put(
        POOLS, pool_key("training"), encode(PoolRecord(name="training", spec=spec, desired=3))
    )
    for number in (1, 2, 3):
        record = NodeRecord(pool="training", node=f"training-{number}", state="active")
        await bus.put(NODES, node_key("training", record.node), encode(record))
    async with managing(bus):
        yield bus
    await bus.close()


@asynccontextmanager
async def assistant(secured: Secured, who: str) -> AsyncIterator[Client]:
    """A client whose server has the credentials of a user."""
    environment = {
        "NAVARCH_NATS_URL": secured.url,
        "NAVARCH_NATS_CREDS_FILE": str(secured.file(who)),
        "PYTHONPATH": str(ROOT),
    }
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "services.cli", "mcp"], env=environment, cwd=str(ROOT)
    )
    async with Client(stdio_client(server)) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> tuple[Any, str]:
    """Return what a tool answers, and its error."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    return (None, content.text) if result.is_error else (json.loads(content.text), "")


async def test_an_assistant_reads_the_fleet_and_a_viewers_change_is_refused(
    secured: Secured, fleet: NatsBus
) -> None:
    """The bus refuses; the refusal names the role that is needed, and nothing is requested."""
    async with assistant(secured, "viewer") as client:
        tools = (await client.list_tools()).tools
        nodes, _ = await call(client, "list_nodes", health="unhealthy")
        node, _ = await call(client, "get_node", node="training-2")
        pools, _ = await call(client, "list_pools")
        why, _ = await call(client, "why", name="training-1")
        events, _ = await call(client, "events", since="1h")
        timeline, _ = await call(client, "timeline", node="training-1")
        sagas, _ = await call(client, "list_sagas")
        report, _ = await call(client, "report")
        resource = (await client.read_resource("navarch://fleet")).contents[0]
        plan, _ = await call(client, "plan_change", **CORDON)
        _, refused = await call(client, "confirm_change", token=plan["token"])
        _, missing = await call(client, "why", name="training-9")
        _, mistyped = await call(client, "list_nodes", limit=0)

    assert [each.name for each in tools] == [each.name for each in TOOLS]
    assert [each.name for each in tools if not each.annotations.read_only_hint] == [
        "confirm_change"
    ]
    assert [each["id"] for each in nodes["nodes"]] == ["training-2"]
    assert node["health_events"][0]["code"] == 79
    assert [each["name"] for each in pools] == ["training"]
    assert (why["about"], why["kind"]) == ("training-1", "node")
    assert (events["events"], timeline["events"], sagas, report["rows"]) == ([], [], [], [])
    assert isinstance(resource, types.TextResourceContents)
    assert json.loads(resource.text)["pools"][0]["name"] == "training"
    assert [each["name"] for each in plan["plan"]["gates"]] == ["budget", "hold"]
    assert "needs the role operator" in refused
    assert "there is no node, pool or saga 'training-9'" in missing
    assert "limit" in mistyped
    assert await fleet.last_sequence(EVENTS.name) == 0


async def test_an_operators_change_needs_the_token_of_a_current_plan(
    secured: Secured, fleet: NatsBus
) -> None:
    """The plan alone changes nothing; the event has the user's own name, and text as text."""
    async with assistant(secured, "operator") as client:
        _, wrong = await call(client, "confirm_change", token="cordon-training-1-00")
        plan, _ = await call(client, "plan_change", **CORDON)
        before = await fleet.last_sequence(EVENTS.name)
        done, _ = await call(client, "confirm_change", token=plan["token"])
        _, reused = await call(client, "confirm_change", token=plan["token"])
        after = await fleet.last_sequence(EVENTS.name)
        stale, _ = await call(client, "plan_change", verb="drain", name="training-3")
        await _touch(fleet)
        _, changed = await call(client, "confirm_change", token=stale["token"])
        hopeless, _ = await call(client, "plan_change", verb="replace", name="training-2")
        size, _ = await call(client, "plan_change", verb="scale", name="training", nodes=4)
        scaled, _ = await call(client, "confirm_change", token=size["token"])
        large, _ = await call(client, "plan_change", verb="scale", name="training", nodes=9)
        _, mixed = await call(client, "plan_change", **CORDON, nodes=4)
        raw = await client.call_tool("events", {"since": "1h"})

    assert "no plan has this token" in wrong
    assert (before, after) == (0, 1)
    assert (done["verb"], done["about"], done["pool"]) == ("cordon", "training-1", "training")
    assert done["answer"]["by"] == "operator"
    assert "was used before" in reused
    assert "training-3 has changed since this plan was made" in changed
    assert (hopeless["token"], hopeless["plan"]["refusal"]) == ("", "saga-open")
    assert (size["plan"]["desired"], scaled["answer"]["nodes"]) == (3, 4)
    assert (large["token"], large["plan"]["accepted"]) == ("", False)
    assert "`nodes`" in mixed
    assert isinstance(raw.content[0], types.TextContent)
    assert "\x1b" not in raw.content[0].text
    assert "\u202e" not in raw.content[0].text


async def _touch(bus: Bus) -> None:
    """Change the record of training-3."""
    entry = await bus.get(NODES, node_key("training", "training-3"))
    assert entry is not None
    await bus.put(NODES, node_key("training", "training-3"), entry.value)


def test_the_page_has_every_tool_as_it_is() -> None:
    """The page's table is what `tool_rows` of `services.mcp_server.tool_table` returns."""
    page = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
    assert tool_rows() in page


@pytest.mark.parametrize(
    ("bus_url", "said"),
    [
        ("", "needs the bus, and NAVARCH_SERVER names a gateway: the same tools are at "),
        ("nats://127.0.0.1:1", "NAVARCH_SERVER is not used, as a bus is named: "),
    ],
)
def test_a_gateway_in_the_environment_is_not_passed_over_in_silence(
    bus_url: str, said: str
) -> None:
    """The command says so before it serves or fails, and where the gateway has the same tools."""
    environment = {"NAVARCH_SERVER": "https://fleet.example.com/", "PYTHONPATH": str(ROOT)}
    if bus_url:
        environment["NAVARCH_NATS_URL"] = bus_url
    command = [sys.executable, "-m", "services.cli", "mcp"]
    ran = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert said in ran.stderr.splitlines()[0]
    assert "https://fleet.example.com/mcp" in ran.stderr.splitlines()[0]
