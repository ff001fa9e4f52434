"""Every exit code of the table in docs/operate.md is produced by a command."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from tests.support import inprocess

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (\d+) \| ", re.MULTILINE)
LINES = {
    0: "status",
    1: "cordon no-such-node",
    2: "status --no-such-option",
    3: "doctor --check",
}
INTERRUPTED = 130


def test_the_table_is_complete() -> None:
    """The page has the codes that are produced here, and no other."""
    text = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    table = text.split("| exit code | what it says |")[1].split("\n\n")[0]
    assert [int(each) for each in ROW.findall(table)] == [*LINES, INTERRUPTED]


@pytest.mark.parametrize(("code", "line"), LINES.items())
async def test_a_command_ends_with_its_code(
    manager: NatsBus, server: EmbeddedServer, code: int, line: str
) -> None:
    """A pool-manager alone has a status that is well, and a doctor who finds the others lacking."""
    status, _, err = await inprocess.navarch(*line.split(), NAVARCH_NATS_URL=server.url)
    assert (manager.connected, status) == (True, code), err


async def test_ctrl_c_ends_a_command_that_follows(manager: NatsBus, server: EmbeddedServer) -> None:
    """The command ends by itself, without a traceback."""
    # A shell without job control has the jobs in its background, and so these tests, ignore it.
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "events", "--since", "1h", "--follow"),
        env=os.environ | {"NAVARCH_NATS_URL": server.url},
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    signal.signal(signal.SIGINT, ignored)
    assert manager.connected
    assert process.stdout is not None
    await inprocess.navarch("cordon", "training-1", NAVARCH_NATS_URL=server.url)
    async with asyncio.timeout(30):
        await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert (process.returncode, b"Traceback" in err) == (INTERRUPTED, False), err
