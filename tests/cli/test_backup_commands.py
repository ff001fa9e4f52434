"""`navarch backup` and `navarch restore`: who may, into what, and what a failure leaves."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.messages import encode
from schemas.permissions import USER_ROLES
from schemas.pool_records import FLEET_KEY, FleetRecord
from schemas.topology import EVENTS, POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli.nats_config_files import ACCOUNTS
from tests.support import inprocess
from tests.support.clients import connected
from tests.support.secured import Secured

ROOT = Path(__file__).resolve().parents[2]
FILE_BYTES_MAX = 1000


@pytest.fixture
async def empty(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """Run a server without streams."""
    server = EmbeddedServer(tmp_path / "empty", sync=False)
    await server.start()
    yield server
    await server.kill()


async def navarch(*words: str, **variables: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    return await inprocess.navarch(*words, cwd=ROOT, **variables)


async def test_a_backup_says_which_services_ran_and_is_restored_elsewhere(
    manager: NatsBus, server: EmbeddedServer, empty: EmbeddedServer, tmp_path: Path
) -> None:
    """A backup is not restored into a server to which a service is connected."""
    await manager.create(POOLS, FLEET_KEY, encode(FleetRecord(id="prod-1234")))
    directory = str(tmp_path / "backup")
    code, out, error = await navarch("backup", directory, NAVARCH_NATS_URL=server.url)
    assert (code, error) == (0, "")
    assert "fleet prod-1234 as of " in out
    assert "Running meanwhile: pool-manager." in out
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o700
    code, _, error = await navarch("restore", directory, NAVARCH_NATS_URL=server.url)
    assert code == 1
    assert "services are connected to this server (pool-manager): stop them first" in error
    code, out, _ = await navarch("restore", directory, "-o", "json", NAVARCH_NATS_URL=empty.url)
    assert code == 0
    assert json.loads(out)["fleet"] == "prod-1234"
    bus = await connected(empty)
    assert await bus.get(POOLS, FLEET_KEY) is not None
    await bus.close()
    code, _, error = await navarch("restore", directory, NAVARCH_NATS_URL=empty.url)
    assert code == 1
    assert "the server has streams already" in error


@pytest.mark.parametrize("role", USER_ROLES)
async def test_the_administrator_alone_saves_and_restores(
    secured: Secured, tmp_path: Path, role: str
) -> None:
    """Everyone else reads which credentials it takes, and nothing is written."""
    directory = tmp_path / "backup"
    variables = {
        "NAVARCH_NATS_URL": secured.url,
        "NAVARCH_NATS_CREDS_FILE": str(secured.file(role)),
    }
    code, out, error = await navarch("backup", str(directory), **variables)
    if role == "admin":
        assert (code, error) == (0, "")
        code, _, error = await navarch("restore", str(directory), **variables)
        assert "the server has streams already" in error
        empty = EmbeddedServer(tmp_path / "empty", config=secured.directory / ACCOUNTS)
        variables["NAVARCH_NATS_URL"] = await empty.start()
        code, out, error = await navarch("restore", str(directory), **variables)
        await empty.kill()
        assert (code, error) == (0, "")
        assert "Restored: " in out
        return
    assert (code, out) == (1, "")
    assert "this needs an administrator's credentials" in error
    assert not directory.exists()


async def test_a_full_disk_leaves_nothing_of_a_backup(
    bus: NatsBus, server: EmbeddedServer, tmp_path: Path
) -> None:
    """A limit on the size of files refuses a write as a full disk does."""
    for number in range(100):
        await bus.publish(f"navarch.v1.node.p.n{number}.event.fault", os.urandom(100))
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "backup", str(tmp_path / "backup")],
        cwd=ROOT,
        env={**os.environ, "NAVARCH_NATS_URL": server.url},
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX)
        ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "File too large: the backup was not made, and nothing of it is left" in done.stderr
    assert not (tmp_path / "backup").exists()
    assert (await bus.admin(f"STREAM.INFO.{EVENTS.name}", {}))["state"]["messages"] == 100
