"""What `navarch serve` does with the output and the ends of its services."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.bus.nats.embedded_server import EmbeddedServer
from services.cli import supervisor
from services.cli.supervisor import LINE_BYTES_MAX, Supervisor

WAIT_SECONDS_MAX = 20.0


@asynccontextmanager
async def supervised(
    script: str, server: EmbeddedServer | None = None
) -> AsyncIterator["asyncio.Queue[tuple[str, str]]"]:
    """Every service is this script; yields what is logged."""
    lines: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def execute(_: tuple[str, ...], __: Mapping[str, str]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", script),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=LINE_BYTES_MAX,
        )

    running = Supervisor(
        server=server,
        url="nats://127.0.0.1:1",
        environment=lambda _: {},
        log=lambda name, line: lines.put_nowait((name, line)),
        on_change=lambda: None,
        execute=execute,
    )
    await running.start()
    try:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            yield lines
    finally:
        await running.stop(lambda: None)


async def test_a_line_that_is_too_long_is_reported_and_the_next_ones_are_logged() -> None:
    """A service that logs a whole record does not stop the logging of its other lines."""
    script = f"print('x' * {2 * LINE_BYTES_MAX}); print('after', flush=True); input()"
    seen: dict[str, set[str]] = {}
    async with supervised(script) as lines:
        while "after" not in seen.get("notifier", ()):
            name, line = await lines.get()
            seen.setdefault(name, set()).add(line)
    assert f"notifier wrote a line above {LINE_BYTES_MAX} bytes" in seen["serve"]


@pytest.mark.parametrize(("steady_seconds", "delays"), [(60.0, 3), (0.0, 1)])
async def test_the_delay_of_restarts_begins_again_after_a_steady_run(
    monkeypatch: pytest.MonkeyPatch, steady_seconds: float, delays: int
) -> None:
    """A service that ends at once is restarted later each time; one that ran for long is not."""
    monkeypatch.setattr(supervisor, "STEADY_SECONDS", steady_seconds)
    monkeypatch.setattr(supervisor, "BACKOFF_FIRST_SECONDS", 0.01)
    found = []
    async with supervised("pass") as lines:
        while len(found) < 3:
            _, line = await lines.get()
            if line.startswith("notifier ended with 0; restarting it in "):
                found.append(line.rpartition(" in ")[2])
    assert len(set(found)) == delays


@pytest.mark.parametrize(("steady_seconds", "delays"), [(60.0, 3), (0.0, 1)])
async def test_the_delay_of_the_servers_restarts_begins_again_after_a_steady_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steady_seconds: float, delays: int
) -> None:
    """A server that crashes once a day is back in a quarter of a second each time."""
    monkeypatch.setattr(supervisor, "STEADY_SECONDS", steady_seconds)
    monkeypatch.setattr(supervisor, "BACKOFF_FIRST_SECONDS", 0.01)
    server, found, killed = EmbeddedServer(tmp_path, sync=False), list[str](), 0
    async with supervised("import time; time.sleep(60)", server) as lines:
        for _ in range(3):
            while server.pid in (0, killed):
                await asyncio.sleep(0.001)
            killed = server.pid
            os.kill(killed, signal.SIGKILL)
            line = ""
            while not line.startswith("nats-server ended with -9; restarting it in "):
                _, line = await lines.get()
            found.append(line.rpartition(" in ")[2])
    assert len(set(found)) == delays
