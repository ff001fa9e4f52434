"""The gateway of `navarch serve`: changes, streams over its death, and the page's own commands."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.gateway.access_tokens import digest
from services.http_client import AsyncNavarch
from tests.cli.test_serve import READY, ROOT, Served, navarch, served

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "http-api.md"
CONFIG = f"""
gateway:
  tokens:
    ada: {{sha256: {digest("viewer-token")}, role: viewer}}
    bob: {{sha256: {digest("operator-token")}, role: operator}}
    cid: {{sha256: {digest("admin-token-of-16")}, role: admin}}
providers:
  local: {{type: local, gpu_count: 0}}
pools:
  training: {{provider: local, instance_type: local, min_nodes: 1, max_nodes: 2}}
"""


def caller(url: str, token: str) -> httpx.AsyncClient:
    """Return a client with a token."""
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=20)


async def resumed(client: AsyncNavarch) -> AsyncGenerator[tuple[int, str], None]:
    """Yield every event from the first on, over the death of the gateway."""
    async with aclosing(client.follow_events(after=0)) as events:
        async for event in events:
            yield event.sequence, event.kind


async def node_in_service(client: httpx.AsyncClient) -> str:
    """Wait for the pool's node."""
    async with asyncio.timeout(60):
        while True:
            found = (await client.get("/api/v1/nodes?status=active")).json()["items"]
            if found:
                return str(found[0]["id"])
            await asyncio.sleep(0.1)


async def until(events: AsyncGenerator[tuple[int, str], None], *kinds: str) -> list[int]:
    """The sequences of the events until each of these kinds has come."""
    missing, found = set(kinds), []
    async with asyncio.timeout(60):
        async for sequence, kind in events:
            found.append(sequence)
            missing.discard(kind)
            if not missing:
                return found
    raise AssertionError(missing)


async def stored(client: httpx.AsyncClient, last: int) -> list[int]:
    """Return the sequences of all stored events up to one."""
    found: list[Any] = []
    after, more = 0, True
    while more:
        page = (await client.get(f"/api/v1/events?since=1h&after={after}&limit=1000")).json()
        found += page["items"]
        after, more = page["next"], page["more"]
    return [each["sequence"] for each in found if each["sequence"] <= last]


async def test_a_fleet_is_changed_and_followed_over_http(tmp_path: Path) -> None:
    """An operator cordons; a viewer may not; no event is lost or repeated over a killed gateway."""
    async with served(tmp_path / "fleet", CONFIG) as fleet:
        await fleet.says(READY)
        url = fleet.file()["http"]["gateway"]
        async with (
            caller(url, "viewer-token") as viewer,
            caller(url, "operator-token") as bob,
            AsyncNavarch(url, token="viewer-token") as follower,
        ):
            events = resumed(follower)
            node = await node_in_service(viewer)
            refused = await viewer.post(f"/api/v1/nodes/{node}/cordon")
            cordoned = await bob.post(f"/api/v1/nodes/{node}/cordon", json={"reason": "test"})
            assert (403, 200) == (refused.status_code, cordoned.status_code), cordoned.text
            seen = await until(events, "http-change", "request-accepted", "cordoned")
            os.kill(fleet.file()["pids"]["gateway"], signal.SIGKILL)
            status, out = await navarch("uncordon", node, "--wait", place=fleet.place)
            assert status == 0, out
            seen += await until(events, "uncordoned")
            await events.aclose()
            assert seen == await stored(viewer, seen[-1])
            assert url == fleet.file()["http"]["gateway"]
            why = (await viewer.get(f"/api/v1/nodes/{node}/why")).json()
            held = await bob.post(f"/api/v1/nodes/{node}/hold", json={"for": "1h", "reason": "x"})
            view = (await viewer.get(f"/api/v1/nodes/{node}")).json()
            assert [each.name for each in (await follower.get_status()).pools] == ["training"]
            assert await follower.list_hardware() == []
        assert (node, "node") == (why["about"], why["kind"])
        assert (200, "bob via gateway") == (held.status_code, view["held_by"])
        listed = ("events", "--since", "10m", "--count", str(len(seen)))
        _, shown = await navarch(*listed, place=fleet.place)
        assert f"POST /api/v1/nodes/{node}/cordon as viewer from 127.0.0.1" in shown
        assert "HTTP change forbidden" in shown
        await every_change_is_audited(fleet, node)
        await program_of_the_page(fleet)
        await commands_of_the_page(fleet)
        async with (
            caller(url, "operator-token") as bob,
            AsyncNavarch(url, token="viewer-token") as follower,
        ):
            await its_changes_are_followed(follower, bob)
        fleet.process.send_signal(signal.SIGTERM)
        await fleet.rest()
        assert await fleet.process.wait() == 0


async def its_changes_are_followed(follower: AsyncNavarch, bob: httpx.AsyncClient) -> None:
    """Changes of the pool are followed with the credentials that the gateway has on the bus."""
    async with asyncio.timeout(60), aclosing(follower.follow_pool("training")) as changes:
        whole = await anext(changes)
        assert (whole.whole, len(whole.nodes)) == (True, 1)
        node = whole.nodes[0].node
        await bob.post(f"/api/v1/nodes/{node}/release")
        drained = await bob.post(f"/api/v1/nodes/{node}/drain", json={"mode": "immediate"})
        assert drained.status_code == 200, drained.text
        entries: list[str] = []
        while not (entries and entries[-1].endswith(".saga.done")):
            entries += [each.subject for each in (await anext(changes)).entries]
        saga = drained.json()["saga"]
        logged = [each.subject async for each in follower.follow_saga(saga)]
    assert logged == [each for each in entries if saga in each]


async def every_change_is_audited(fleet: Served, node: str) -> None:
    """Changes by HTTP and by command are audited: who, what, from where, and the outcome."""
    status, out = await navarch("audit", "--since", "10m", "-o", "json", place=fleet.place)
    assert status == 0, out
    rows = {
        (row["by"], row["where"], row["change"], row["outcome"]): row["about"]
        for row in json.loads(out)
    }
    by_command = [key for key in rows if key[2] == "uncordon"]
    assert [key[1:] for key in by_command] == [("bus", "uncordon", "accepted")]
    path = f"POST /api/v1/nodes/{node}/cordon"
    expected = {
        ("bob via gateway", "127.0.0.1", "cordon", "accepted"): f"training/{node}",
        ("bob via gateway", "127.0.0.1", "hold", "accepted"): f"training/{node}",
        ("ada via gateway", "127.0.0.1", path, "forbidden"): "",
    }
    assert {key: about for key, about in rows.items() if key not in by_command} == expected


async def commands_of_the_page(fleet: Served) -> None:
    """Every command of docs/http-api.md succeeds, and no answer is a problem."""
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    token = fleet.place / ".navarch" / "gateway.token"
    token.parent.mkdir()
    token.write_text("admin-token-of-16\n")
    script = "set -euo pipefail\n" + "".join(blocks)
    script = script.replace("http://127.0.0.1:PORT", fleet.file()["http"]["gateway"])
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", script),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=fleet.place,
        env=os.environ
        | {
            "NAVARCH_CONFIG": str(fleet.place / "navarch.yaml"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
    )
    async with asyncio.timeout(150):
        out = (await process.communicate())[0].decode()
    assert process.returncode == 0, out
    assert '"remedy"' not in out
    assert "event: cordoned" in out
    assert len(blocks) >= 5


async def program_of_the_page(fleet: Served) -> None:
    """The example of docs/http-api.md runs as it is printed."""
    [program] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
        env=os.environ
        | {
            "NAVARCH_SERVER": fleet.file()["http"]["gateway"],
            "NAVARCH_AUTH_TOKEN": "operator-token",
            "PYTHONPATH": str(ROOT),
        },
    )
    async with asyncio.timeout(60):
        out = (await process.communicate())[0].decode()
    assert process.returncode == 0, out
    lines = out.splitlines()
    assert lines[0].startswith("training-1-")
    assert lines[1].startswith("cordon http-")
    assert re.match(r"\d+ [a-z-]+ \S+", lines[2]), out
