"""A process started to end with its parent does; the kernel ends it."""

import asyncio
import os
import select
import signal
import sys
from pathlib import Path

import pytest

from services.bus.nats.embedded_server import EmbeddedServer
from services.primitives.process_lifetime import ending_with_us

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's mechanism is Linux's")

STARTER = """
import asyncio, sys
from pathlib import Path
from services.bus.nats.embedded_server import EmbeddedServer

async def main():
    server = EmbeddedServer(Path(sys.argv[1]))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
SECONDS_MAX = 10.0


async def test_a_server_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    """No process is left to end it, and it handles no signal in a special way."""
    starter = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", STARTER, str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    assert starter.stdout is not None
    async with asyncio.timeout(SECONDS_MAX):
        server = os.pidfd_open(int(await starter.stdout.readline()))
    try:
        assert ([], [], []) == select.select([server], [], [], 0)
        starter.kill()
        await starter.wait()
        # A process that has ended makes its handle readable.
        assert ([server], [], []) == select.select([server], [], [], SECONDS_MAX)
    finally:
        os.close(server)


async def test_who_is_started_when_its_parent_has_gone_never_begins(tmp_path: Path) -> None:
    """A process whose parent ends between fork and prctl never begins."""
    made = tmp_path / "made"
    command = list(ending_with_us(("touch", str(made))))
    launcher = await asyncio.create_subprocess_exec(*command)
    assert (0, True) == (await launcher.wait(), made.exists())
    made.unlink()
    command[command.index(str(os.getpid()))] = "1"
    launcher = await asyncio.create_subprocess_exec(*command)
    assert (0, False) == (await launcher.wait(), made.exists())


async def test_the_launcher_becomes_the_command(tmp_path: Path) -> None:
    """Signals, the number and the status are the program's own."""
    server = EmbeddedServer(tmp_path)
    await server.start()
    try:
        assert Path(f"/proc/{server.pid}/exe").resolve().name == "nats-server"
    finally:
        os.kill(server.pid, signal.SIGKILL)
        assert await server.wait() == -signal.SIGKILL
