"""`navarch serve` reads the output of its services and restarts those that end."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.bus.nats.embedded_server import EmbeddedServer
from services.cli import supervisor
from services.cli.supervisor import LINE_BYTES_MAX, Supervisor

WAIT_SECONDS_MAX = 60.0


@asynccontextmanager
async def supervised(
    script: str, server: EmbeddedServer | None = None
) -> AsyncIterator["asyncio.Queue[tuple[str, str]]"]:
    """Every service is this script; yields what is logged."""
    async with supervising(script, server) as (_, lines):
        yield lines


@asynccontextmanager
async def supervising(
    script: str,
    server: EmbeddedServer | None = None,
    on_start: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[tuple[Supervisor, "asyncio.Queue[tuple[str, str]]"]]:
    """The same, with the supervisor; `on_start` is called with the name of each process."""
    lines: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def execute(program: tuple[str, ...], _: Mapping[str, str]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", script, *program),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=LINE_BYTES_MAX,
        )

    def environment(child: supervisor.Child) -> Mapping[str, str]:
        on_start(child.service)
        return {}

    running = Supervisor(
        server=server,
        url="nats://127.0.0.1:1",
        environment=environment,
        log=lambda name, line: lines.put_nowait((name, line)),
        on_change=lambda: None,
        execute=execute,
    )
    await running.start()
    try:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            yield running, lines
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


RELOADING = """
import signal, sys, time
stuck = "notifier" in sys.argv[1] and STUCK
signal.signal(signal.SIGHUP, signal.SIG_IGN if stuck else lambda *_: sys.exit(75))
print('{"msg": "ready", "http": "http://h"}', flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("stuck", [False, True])
async def test_processes_are_renewed_in_turn_until_one_is_not_ready_in_time(
    monkeypatch: pytest.MonkeyPatch, *, stuck: bool
) -> None:
    """Processes after the one that is late are left as they are.

    A renewed process starts without a delay, as its end was requested.
    """
    started = Counter[str]()

    def on_start(name: str) -> None:
        started[name] += 1
        if stuck and name == "provisioner" and started[name] == 2:
            # The next one is stuck: it is the only one whose time may run out.
            monkeypatch.setattr(supervisor, "READY_SECONDS_MAX", 0.2)

    script = RELOADING.replace("STUCK", str(stuck))
    async with supervising(script, on_start=on_start) as (running, _):
        await running.ready()
        monkeypatch.setattr(supervisor, "BACKOFF_FIRST_SECONDS", 60.0)
        before = running.pids
        late = await running.renew()
        same = {name for name, pid in running.pids.items() if pid == before[name]}
    assert (late, same) == (("notifier", {"notifier", "metrics"}) if stuck else ("", set()))
