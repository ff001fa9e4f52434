"""A machine that joins says in one sentence why it cannot, and sends nothing to another bus."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.__main__ import _connect_new, run
from agent.fleet_join import JoinPlace, join, leave, read_token
from agent.settings import environment_values, load
from schemas.join_tokens import JoinToken, encode_token
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_accounts import bootstrap_credentials, read_agent_keys
from services.cli.bus_certificates import AUTHORITY, CERTIFICATE, SERVER, BusCertificates
from services.cli.nats_config_files import ACCOUNTS, SIGNING_FILE, write_accounts
from services.primitives.errors import ConfigurationError, NavarchError

NOW = datetime.now(UTC)
LATER = NOW + timedelta(hours=1)


def bus_directory(place: Path) -> Path:
    """Write keys, and a certificate for 127.0.0.1."""
    write_accounts(place, "tests", NOW)
    BusCertificates(place).write("tests", {SERVER: ["127.0.0.1"]}, NOW)
    return place


def token_of(directory: Path, url: str, node: str = "gpu-01") -> JoinToken:
    """Make a token of a bus."""
    keys = read_agent_keys(directory / SIGNING_FILE)
    return JoinToken(
        url=url,
        pool="gpu",
        node=node,
        secret="secret",
        credentials=bootstrap_credentials(keys, "gpu", node, "secret", NOW, LATER),
        authority=(directory / AUTHORITY).read_text(),
        issued_at=NOW,
        expires_at=LATER,
    )


@pytest.fixture
def port() -> Iterator[int]:
    """A port at which nothing answers."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def place(tmp_path: Path) -> JoinPlace:
    """Provide the files of the machine's agent."""
    return JoinPlace(tmp_path / "etc" / "agent.env", tmp_path / "state")


async def test_a_port_that_is_closed(tmp_path: Path, place: JoinPlace, port: int) -> None:
    """The sentence names the address, and what lets the machine reach it."""
    token = token_of(bus_directory(tmp_path / "bus"), f"tls://127.0.0.1:{port}")
    with pytest.raises(NavarchError, match=f"nothing answers at tls://127.0.0.1:{port}: let this"):
        await join(token, place, _connect_new, lambda: NOW)

    assert not place.settings.exists()


async def test_a_server_that_is_not_the_fleets(tmp_path: Path, place: JoinPlace) -> None:
    """A certificate of another authority ends the connection before the token is sent."""
    theirs = bus_directory(tmp_path / "theirs")
    server = EmbeddedServer(
        tmp_path / "nats", config=theirs / ACCOUNTS, certificate=theirs / CERTIFICATE
    )
    url = await server.start()
    token = token_of(bus_directory(tmp_path / "bus"), url)
    try:
        with pytest.raises(NavarchError, match=r"is not the fleet's, .*nothing was sent"):
            await join(token, place, _connect_new, lambda: NOW)
    finally:
        await server.kill()


async def test_a_fleet_whose_keys_were_replaced(tmp_path: Path, place: JoinPlace) -> None:
    """Another token is needed, although the certificate is right."""
    old, bus = bus_directory(tmp_path / "old"), bus_directory(tmp_path / "bus")
    server = EmbeddedServer(tmp_path / "nats", config=bus / ACCOUNTS, certificate=bus / CERTIFICATE)
    url = await server.start()
    token = replace(token_of(bus, url), credentials=token_of(old, url).credentials)
    try:
        with pytest.raises(NavarchError, match=r"refuses the token: .*make another: navarch join"):
            await join(token, place, _connect_new, lambda: NOW)
    finally:
        await server.kill()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NAVARCH_REBOOT_COMMAND", "touch /x"),
        ("NAVARCH_NVML_LIBRARY", "/tmp/x.so"),
        ("NAVARCH_HEALTH_CHECKS", "os:abort"),
        ("NAVARCH_HEARTBEAT_TTL", "30s\nNAVARCH_RESET_COMMAND=/tmp/x"),
        ("LD_PRELOAD", "/tmp/x.so"),
    ],
)
async def test_a_token_states_no_program(
    tmp_path: Path, place: JoinPlace, name: str, value: str
) -> None:
    """The agent may run as root: who forges a token must not choose what it runs."""
    token = token_of(bus_directory(tmp_path / "bus"), "tls://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="which no token may"):
        await join(replace(token, settings={name: value}), place, _connect_new, lambda: NOW)

    assert not place.settings.exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The sentence says that root, or another place, is needed."""
    (tmp_path / "file").write_text("")
    token = token_of(bus_directory(tmp_path / "bus"), "tls://127.0.0.1:1")
    word = tmp_path / "token"
    word.write_text(encode_token(token))
    command = [sys.executable, "-m", "agent", "join", "--token-file", str(word)]
    command += ["--settings", str(tmp_path / "file" / "agent.env"), "--state", str(tmp_path / "s")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert ended.returncode == 2
    assert "cannot be written" in ended.stderr
    assert "run this as root, or name other places" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_what_is_no_token_is_refused_with_the_remedy() -> None:
    """The word to copy is named."""
    with pytest.raises(ConfigurationError, match=r"begins with navarch-join-1\., which `navarch"):
        read_token("gpu-01")


def test_leave_removes_what_join_wrote(place: JoinPlace, capsys: pytest.CaptureFixture) -> None:
    """Nothing else is removed; a second time there is nothing to remove."""
    for each in (place.settings, place.credentials, place.state / "spool.sqlite"):
        each.parent.mkdir(exist_ok=True)
        each.write_text("x")

    assert str(place.credentials) in leave(place)
    assert [place.state / "spool.sqlite"] == list(place.state.iterdir())
    assert 0 == run(["leave", "--settings", str(place.settings), "--state", str(place.state)])
    assert "has joined no fleet" in capsys.readouterr().out


def test_the_agent_reads_the_file_that_join_wrote(place: JoinPlace) -> None:
    """Variables of the environment win, and other lines do not count."""
    place.settings.parent.mkdir()
    place.settings.write_text('# x\nNAVARCH_POOL=gpu\nNAVARCH_NODE="gpu-01"\nPATH=/x\n')

    assert environment_values("PATH=/x\nNAVARCH_X=1") == {}
    assert ("gpu", "gpu-01") == (
        (config := load({}, place.settings)).pool,
        config.node,
    )
    assert load({"NAVARCH_NODE": "gpu-02"}, place.settings).node == "gpu-02"
