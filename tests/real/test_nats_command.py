"""The real `nats` command: documented lines on a served fleet, and a backup that is restored."""

import asyncio
import os
import re
import shlex
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas import subjects
from schemas.permissions import OPERATOR
from schemas.topology import EVENTS, EVERY_STREAM
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
from tests.support.clients import connected
from tests.support.inprocess import eventually, navarch
from tests.whole_fleet.fleet import Fleet, serving_fleet

PROGRAM = shutil.which("nats") or shutil.which("nats", path=str(Path.home() / "go/bin"))
pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(200),
    pytest.mark.skipif(
        PROGRAM is None,
        reason="no nats here: go install github.com/nats-io/natscli/nats@v0.5.1",
    ),
]
DOCS = Path(__file__).parents[2] / "docs"
POOLS = """
  training:
    min_nodes: 1
    max_nodes: 2
"""
SECONDS_MAX = 20.0
FOLLOWS = ("nats sub", "nats kv watch")
"""Commands that end only when they are stopped."""
CONSUMES = (["stream", "view"], ["kv", "watch"], ["kv", "ls"])
"""Commands that make a consumer, which users with credentials of their own may not."""


def documented() -> list[str]:
    """The first two sections of docs/events.md, and what operators type after an alert."""
    events, *others = (
        (DOCS / each).read_text("utf-8")
        for each in ("events.md", "troubleshooting.md", "high-availability.md")
    )
    part = events.partition("## Watching")[2].partition("## Subjects")[0]
    found = re.findall(r"^(nats .*?)(?:\s+#.*)?$", "\n".join((part, *others)), re.MULTILINE)
    assert len(found) > 27
    return found


def requests() -> list[str]:
    """Return every line of the documentation that sends a request."""
    pages = "\n".join(
        (DOCS / each).read_text("utf-8") for each in ("events.md", "gpus-on-request.md")
    )
    joined = pages.replace("\\\n", " ")
    found = re.findall(r"^(nats pub .*)$", joined, re.MULTILINE)
    assert len(found) > 20
    return found


async def nats(url: str, *arguments: str, **more: str) -> tuple[int, str]:
    """Exit code and output; one that follows is stopped after its first line."""
    assert PROGRAM is not None
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *arguments,
        env={**os.environ, **({"NATS_URL": url} if url else {}), "NO_COLOR": "1", **more},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    async with asyncio.timeout(SECONDS_MAX):
        if shlex.join(("nats", *arguments)).startswith(FOLLOWS):
            output = await process.stdout.readline()
            process.terminate()
            await process.wait()
            return 0, output.decode()
        output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """Provide one pool of a served fleet."""
    async with serving_fleet(tmp_path, POOLS) as running:
        yield running


async def test_every_documented_line_is_understood(fleet: Fleet) -> None:
    """`stream view` pages on a terminal, so here it is asked for a number of messages."""
    (node,) = await fleet.active("training", 1)
    wrong = {}
    for line in documented():
        words = shlex.split(line.replace("training-3", node.node))[1:]
        if words[:2] == ["stream", "view"]:
            words = ["stream", "get", words[2], "--last-for", words[4] if words[4:] else ">"]
        code, output = await nats(fleet.url, *words)
        if code and "no message found" not in output:
            wrong[line] = output
    assert wrong == {}


async def test_every_documented_request_is_stored_and_can_be_read(fleet: Fleet) -> None:
    """`-J` waits until it is; a request with a wrong key would be refused as one."""
    (node,) = await fleet.active("training", 1)
    for line in requests():
        words = shlex.split(line.replace("training-3", node.node))[1:]
        code, output = await nats(fleet.url, *words)
        assert (code, "Stored in Stream: REQUESTS" in output) == (0, True), (line, output)

    async def answered() -> bool:
        info = await fleet.bus.admin("STREAM.INFO.REQUESTS", {})
        return bool(info["state"]["messages"] == 0)

    await eventually(answered, within_seconds=SECONDS_MAX)
    answers = await fleet.bus.read("EVENTS", subjects.pool_event_wildcard("request-refused"))
    unread = [each.data for each in answers if b"cannot be read" in each.data]
    assert unread == []


async def test_a_written_context_lets_an_operator_do_what_the_page_says(tmp_path: Path) -> None:
    """The context has credentials and inbox of the user, whose name ends a request's subject."""
    async with serving_fleet(tmp_path, POOLS, role=OPERATOR) as secured:
        (node,) = await secured.active("training", 1)
        where = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
        bus = secured.serving.bus
        assert bus is not None
        given = where | {
            "NAVARCH_NATS_URL": secured.url,
            "NAVARCH_NATS_CREDS_FILE": str(bus.directory / "creds" / "tester.creds"),
        }
        code, said, wrong = await navarch("nats-context", "mine", **given)
        assert (code, ".tester" in said) == (0, True), wrong
        _, printed, _ = await navarch("nats-context", "--print", **given)
        whole = tmp_path / "config/nats/context/copied.json"
        whole.write_text(printed)
        for context in ("mine", "copied"):
            for line in documented():
                words = shlex.split(line.replace("training-3", node.node))[1:]
                if words[:2] in CONSUMES:
                    continue
                if ".request." in line:
                    at = next(i for i, each in enumerate(words) if ".request." in each)
                    words[at] += ".tester"
                code, output = await nats("", *words, NATS_CONTEXT=context, **where)
                assert code == 0 or "no message found" in output, (context, line, output)
            refused = ["pub", "-J", f"{subjects.pool_request('training', 'scale')}", '{"nodes": 2}']
            code, output = await nats("", "--context", context, *refused, **where)
            assert code != 0, output


async def test_a_backup_is_restored_into_an_empty_server(
    server: EmbeddedServer, bus: NatsBus, tmp_path: Path
) -> None:
    """Every stream with its messages and durables; the services' own set-up then finds no fault."""
    for number in range(50):
        await bus.publish(f"navarch.v1.pool.p{number}.event.scaled", b"{}", msg_id=f"e{number}")
    code, output = await nats(server.url, "account", "backup", "--force", str(tmp_path / "backup"))
    assert code == 0, output
    empty = EmbeddedServer(tmp_path / "second", sync=False)
    await empty.start()
    try:
        code, output = await nats(empty.url, "account", "restore", str(tmp_path / "backup"))
        assert code == 0, output
        client = await connected(empty)
        await set_up(client, SystemClock(), replicas=1)
        for stream in EVERY_STREAM:
            states = []
            for each in (bus, client):
                info = await each.admin(f"STREAM.INFO.{stream.name}", {})
                states.append((info["state"]["messages"], info["state"]["consumer_count"]))
            assert states[0] == states[1], stream.name
        assert (await client.admin(f"STREAM.INFO.{EVENTS.name}", {}))["state"]["messages"] == 50
        await client.close()
    finally:
        await empty.kill()
