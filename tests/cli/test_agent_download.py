"""The agent is given to machines with a token that holds, by the fleet's own server alone."""

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import httpx
import pytest
from msgspec.structs import replace

from schemas.join_tokens import JoinRecord, JoinToken, digest_of, encode_token
from services.cli.agent_download import download_app, printed_line, why_refused
from services.cli.bus_certificates import AUTHORITY, CERTIFICATE, SERVER, BusCertificates
from services.cli.ssh_join import host_program
from services.cli.ssh_join.agent_wheels import keep_wheels
from services.primitives.errors import NavarchError
from services.primitives.free_ports import free_ports
from services.runtime.process_http import WebServer
from tests.cli.test_agent_wheels import FILES, fill, members

NOW: Final = datetime(2026, 11, 30, 12, tzinfo=UTC)
SECRET: Final = "s" * 32
HELD: Final = JoinRecord(
    pool="gpu",
    node="gpu-01",
    digest=digest_of(SECRET),
    made_at=NOW,
    expires_at=NOW + timedelta(hours=1),
)
GOOD: Final = f"Bearer gpu/gpu-01/{SECRET}"


@pytest.mark.parametrize(
    ("header", "records", "said"),
    [
        (GOOD, [HELD], ""),
        (GOOD, [], "was revoked"),
        (GOOD, [replace(HELD, digest=digest_of("another"))], "was revoked, ended"),
        (GOOD, [replace(HELD, expires_at=NOW)], "ended"),
        (GOOD, [replace(HELD, pool="web")], "of another fleet"),
        (f"Bearer web/gpu-01/{SECRET}", [HELD], "revoked"),
        (f"Bearer gpu/gpu-02/{SECRET}", [HELD], "revoked"),
        ("", [HELD], "a token is needed"),
        ("Bearer gpu/gpu-01/", [HELD], "a token is needed"),
        (f"Bearer ../gpu-01/{SECRET}", [HELD], "a token is needed"),
        (f"Basic gpu/gpu-01/{SECRET}", [HELD], "a token is needed"),
    ],
)
def test_who_has_no_token_that_holds_gets_nothing(
    header: str, records: list[JoinRecord], said: str
) -> None:
    """A token of another pool or node, one that ended and one that was revoked are refused."""
    found = why_refused(header, records, NOW)

    assert said in found
    assert bool(said) == bool(found)


class Downloads:
    """Serves downloads over TLS, with the tokens that a test gives."""

    def __init__(self, place: Path, records: Sequence[JoinRecord], port: int) -> None:
        self.place = place
        self.records = records
        self.asked = 0
        self.port = port
        self.bus = place / "bus"

    async def tokens(self) -> Sequence[JoinRecord]:
        """Return the tokens that are recorded."""
        self.asked += 1
        return self.records

    def authority(self) -> str:
        """Return the authority of the certificate."""
        return (self.bus / AUTHORITY).read_text(encoding="ascii")

    def client(self) -> httpx.AsyncClient:
        """Return a client that accepts that authority alone."""
        context = ssl.create_default_context(cadata=self.authority())
        return httpx.AsyncClient(base_url=f"https://127.0.0.1:{self.port}", verify=context)

    async def run_line(self, token: JoinToken) -> tuple[int, str]:
        """Run the printed line, as a user who is not root would."""
        line = printed_line(encode_token(token), self.port)
        line = line.replace("python3 -c", f"{sys.executable} -c")
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", line), stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
        return process.returncode or 0, said.decode()


@asynccontextmanager
async def downloads(place: Path, records: Sequence[JoinRecord]) -> AsyncIterator[Downloads]:
    """Serve as `navarch serve` does, with a certificate of an authority of its own."""
    for folder in ("keys", "tls"):
        (place / "bus" / folder).mkdir(parents=True)
    (port,) = free_ports(1)
    found = Downloads(place, records, port)
    hosts = {SERVER: ["127.0.0.1"]}
    BusCertificates(found.bus).write("f", hosts, datetime.now(UTC))
    app = download_app(place, found.tokens, lambda: NOW)
    server = WebServer(app, ssl_certfile=str(found.bus / CERTIFICATE))
    with socket.create_server(("127.0.0.1", port)) as listening:
        running = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield found
        finally:
            server.should_exit = True
            await running


def token_for(found: Downloads, authority: str) -> JoinToken:
    """Return a token whose bus is beside the downloads."""
    return JoinToken(
        url=f"tls://127.0.0.1:{found.port}",
        pool="gpu",
        node="gpu-01",
        secret=SECRET,
        credentials="c",
        authority=authority,
        issued_at=NOW,
        expires_at=NOW + timedelta(hours=1),
    )


async def test_a_token_is_worth_the_wheels_and_the_scripts(tmp_path: Path) -> None:
    """The bus is not asked about what has not the form of a token, or was revoked."""
    async with downloads(tmp_path, [HELD]) as found, found.client() as client:
        missing = await client.get("/agent.tar", headers={"Authorization": GOOD})
        keep_wheels(fill(tmp_path / "wheels", FILES), tmp_path)
        given = await client.get("/agent.tar", headers={"Authorization": GOOD})
        asked = found.asked
        none = await client.get("/agent.tar")
        assert asked == found.asked
        found.records = []
        revoked = await client.get("/agent.tar", headers={"Authorization": GOOD})

    assert (503, 403, 403) == (missing.status_code, none.status_code, revoked.status_code)
    assert "no wheels are kept" in missing.text
    assert FILES.items() <= members(given.content).items()
    assert {*host_program.STEPS, "SHA256SUMS"} <= members(given.content).keys()


async def test_a_damaged_file_is_handed_to_no_one(tmp_path: Path) -> None:
    """The answer names it."""
    async with downloads(tmp_path, [HELD]) as found, found.client() as client:
        (tmp_path / "agent-wheels.tar").write_bytes(b"x" * 1024)
        answer = await client.get("/agent.tar", headers={"Authorization": GOOD})

    assert answer.status_code == 503
    assert "agent-wheels.tar is damaged" in answer.text


async def test_the_printed_line_runs_what_the_fleet_says_and_nothing_else(tmp_path: Path) -> None:
    """A server of another authority, as a thief of the address has, is sent no token."""
    async with (
        downloads(tmp_path / "own", [HELD]) as own,
        downloads(tmp_path / "other", [HELD]) as other,
    ):
        stolen = await other.run_line(token_for(other, own.authority()))
        asked = other.asked
        own.records = []
        revoked = await own.run_line(token_for(own, own.authority()))
        bare = await own.run_line(token_for(own, ""))

    assert (1, 1, 1) == (stolen[0], revoked[0], bare[0])
    assert "nothing was run: [SSL: CERTIFICATE_VERIFY_FAILED]" in stolen[1]
    assert asked == 0
    assert "navarch: the token was revoked" in revoked[1]
    assert "nothing was run" in bare[1]


async def test_a_fleet_that_does_not_answer_is_said(tmp_path: Path) -> None:
    """The line says why, and the same token is still good."""

    async def silent() -> Sequence[JoinRecord]:
        raise NavarchError("no provisioner")

    transport = httpx.ASGITransport(app=download_app(tmp_path, silent, lambda: NOW))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        program = await client.get("/install.py", headers={"Authorization": GOOD})
        wheels = await client.get("/agent.tar", headers={"Authorization": GOOD})

    assert "the fleet does not answer: no provisioner" in program.text
    assert (503, "no provisioner") == (wheels.status_code, wheels.text)


def test_a_machine_of_another_node_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is installed over the agent of another fleet or pool; again is harmless."""
    token = {"pool": "gpu", "node": "gpu-01"}
    monkeypatch.setattr(host_program.os, "geteuid", lambda: 0)
    monkeypatch.setattr(host_program, "JOINED", str(tmp_path / "nats.creds"))
    monkeypatch.setattr(host_program, "SETTINGS", str(tmp_path / "agent.env"))
    assert host_program.why_not_here(token) == ""
    (tmp_path / "nats.creds").write_text("x")
    assert "another node already" in host_program.why_not_here(token)
    (tmp_path / "agent.env").write_text("NAVARCH_POOL=gpu\nNAVARCH_NODE=gpu-01\n")
    assert host_program.why_not_here(token) == ""
    (tmp_path / "agent.env").write_text("NAVARCH_POOL=web\nNAVARCH_NODE=gpu-01\n")
    assert "another node already" in host_program.why_not_here(token)
    monkeypatch.setattr(host_program.os, "geteuid", lambda: 1000)
    assert host_program.why_not_here(token) == "run this line as root"
