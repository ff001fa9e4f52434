"""POST /mcp with the SDK's own client: the tokens, roles and pools of the HTTP API."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from services.bus.memory.memory_bus import MemoryBus
from services.fleet_client.fleet_client import FleetClient
from services.gateway.assistant_endpoint import AssistantEndpoint
from tests.gateway.conftest import MakeGateway, Manager, changes
from tests.support.serving import serving

CORDON = {"verb": "cordon", "name": "training-1", "reason": "fans"}


class Served:
    """Connects assistants to a gateway at a URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def assistant(self, token: str, mode: str = "auto") -> AsyncIterator[Client]:
        """Connect an assistant with a token."""
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=headers) as http:
            transport = streamable_http_client(f"{self.url}/mcp", http_client=http)
            async with Client(transport, mode=mode) as client:
                yield client


@asynccontextmanager
async def served(bus: MemoryBus, make_gateway: MakeGateway) -> AsyncIterator[Served]:
    """Serve a gateway with the assistants' endpoint."""
    numbers = iter(range(1_000))

    def now() -> datetime:
        return datetime.now(UTC)

    fleet = FleetClient(bus, user="gateway")
    endpoint = AssistantEndpoint(fleet, now, lambda: f"mcp-{next(numbers)}", b"key")
    app: Any = make_gateway(more=[endpoint.route()]).app
    running = asyncio.create_task(endpoint.run())
    async with serving(app) as url:
        yield Served(url)
    running.cancel()
    await asyncio.wait({running})


async def call(client: Client, tool: str, **arguments: Any) -> tuple[Any, str]:
    """Return a tool's answer, and its error."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    return (None, content.text) if result.is_error else (json.loads(content.text), "")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_viewer_reads_and_its_change_is_refused_and_recorded(
    bus: MemoryBus, make_gateway: MakeGateway, manager: Manager, mode: str
) -> None:
    """A viewer is served by the current protocol and the previous one; reading leaves no event."""
    async with (
        served(bus, make_gateway) as gateway,
        gateway.assistant("viewer-token", mode) as client,
    ):
        tools = (await client.list_tools()).tools
        nodes, _ = await call(client, "list_nodes", pool="training")
        why, _ = await call(client, "why", name="training-1")
        before = await changes(bus)
        plan, _ = await call(client, "plan_change", **CORDON)
        _, refused = await call(client, "confirm_change", token=plan["token"])

    assert "confirm_change" in [each.name for each in tools]
    assert [each["id"] for each in nodes["nodes"]] == [f"training-{n}" for n in (1, 2, 3)]
    assert why["about"] == "training-1"
    assert before == []
    assert refused == "this needs the role operator; ada has viewer"
    assert manager.asked == []
    (event,) = await changes(bus)
    assert (event.by, event.role, event.outcome) == ("ada", "viewer", "forbidden")
    assert event.change == "POST /mcp cordon training/training-1"


async def test_an_operators_change_is_made_in_its_own_name_with_its_own_token(
    bus: MemoryBus, make_gateway: MakeGateway, manager: Manager
) -> None:
    """A plan of one caller cannot be confirmed by another, nor twice."""
    async with (
        served(bus, make_gateway) as gateway,
        gateway.assistant("operator-token") as bob,
        gateway.assistant("admin-token") as cid,
    ):
        plan, _ = await call(bob, "plan_change", **CORDON)
        _, stolen = await call(cid, "confirm_change", token=plan["token"])
        asked = list(manager.asked)
        done, _ = await call(bob, "confirm_change", token=plan["token"])
        _, reused = await call(bob, "confirm_change", token=plan["token"])
        other, _ = await call(bob, "plan_change", **{**CORDON, "name": "training-2"})
        _, refused = await call(bob, "confirm_change", token=other["token"])

    assert "no plan has this token" in stolen
    assert asked == []
    assert (done["answer"]["saga"], done["next"]) == ("cordon-1", "why cordon-1 shows its progress")
    assert "was used before" in reused
    assert refused.startswith("refused (saga-open): a saga is open")
    assert "\x1b" not in refused
    assert [(pool, verb, each["by"]) for pool, verb, each in manager.asked] == [
        ("training", "cordon", "bob via gateway"),
        ("training", "cordon", "bob via gateway"),
    ]
    outcomes = [(each.by, each.outcome) for each in await changes(bus)]
    assert outcomes == [("bob", "accepted"), ("bob", "refused")]


async def test_a_token_of_some_pools_finds_nothing_of_the_others(
    bus: MemoryBus, make_gateway: MakeGateway, manager: Manager
) -> None:
    """A token of some pools finds nothing of the whole fleet either."""
    async with (
        served(bus, make_gateway) as gateway,
        gateway.assistant("scoped-token") as client,
    ):
        pools, _ = await call(client, "list_pools")
        nodes, _ = await call(client, "list_nodes")
        answers = [
            await call(client, tool, **arguments)
            for tool, arguments in (
                ("get_node", {"node": "serving-1"}),
                ("list_nodes", {"pool": "serving"}),
                ("why", {"name": "serving-1"}),
                ("why", {"name": "serving"}),
                ("timeline", {"node": "serving-1"}),
                ("events", {}),
                ("events", {"pool": "serving"}),
                ("list_offerings", {}),
                ("report", {}),
                ("cost", {"pool": "serving"}),
                ("list_alerts", {"pool": "serving"}),
                ("plan_change", {"verb": "scale", "name": "serving", "nodes": 1}),
                ("plan_change", {"verb": "drain", "name": "serving-1"}),
            )
        ]
        own, _ = await call(client, "events", pool="training", node="serving-1")
        alerts, _ = await call(client, "list_alerts")
        cost, _ = await call(client, "cost", since="7d")

    assert [each["name"] for each in pools] == ["training"]
    assert {each["pool"] for each in nodes["nodes"]} == {"training"}
    assert [answer for answer, _ in answers] == [None] * len(answers)
    assert all("there is no " in text or "some pools only" in text for _, text in answers), answers
    assert own["events"] == []
    assert [each["pool"] for each in alerts] == ["training"]
    assert {each["pool"] for each in cost["rows"]} == {"training"}
    assert manager.asked == []


def test_a_gateway_starts_without_the_protocols_package() -> None:
    """The protocol's package is loaded when an assistant asks first."""
    code = "import sys, services.gateway.assistant_endpoint; print('mcp' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


@pytest.mark.parametrize(
    ("token", "method", "status"),
    [("", "POST", 401), ("wrong", "POST", 401), ("viewer-token", "GET", 405)],
)
async def test_the_endpoint_needs_a_token_and_has_no_stream_of_its_own(
    bus: MemoryBus, make_gateway: MakeGateway, token: str, method: str, status: int
) -> None:
    """The refusals are problem documents."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with served(bus, make_gateway) as gateway, httpx2.AsyncClient() as http:
        answer = await http.request(method, f"{gateway.url}/mcp", headers=headers, content=b"{}")
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
