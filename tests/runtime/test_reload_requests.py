"""SIGHUP requests a reload, or says that the terminal is gone."""

import asyncio
import os
import pty
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.support.inprocess import eventually, path_of

PROGRAM = shlex.join([sys.executable, str(path_of("tests/runtime/signalled_program.py"))])


@asynccontextmanager
async def in_terminal(command: str, said: Path) -> AsyncIterator[int]:
    """Run it by a shell in a terminal of its own; what is given is our side of the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(path_of("."))
        os.execv("/bin/bash", ["bash", "--norc", "-i", "-c", command])
    try:
        await eventually(lambda: lines(said, 1))
        yield terminal
    finally:
        with suppress(OSError):
            os.close(terminal)
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(os.waitpid, pid, 0)


async def lines(said: Path, count: int) -> list[str]:
    """Return what the program has written, once that is so many lines."""
    found = said.read_text().splitlines() if said.exists() else []
    return found if len(found) >= count else []


def pid_of(said: Path) -> int:
    """Return the id of the program's process."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes().split(b"\0")
            if os.fsencode(said) in command and b"-c" not in command:
                return int(entry.name)
    raise AssertionError("it does not run")


@pytest.mark.parametrize("start", ["exec {}", "{}; true", "{} & wait"])
async def test_a_closed_terminal_ends_the_process_in_order(tmp_path: Path, start: str) -> None:
    """The kernel's and the shell's signal end it; the same signal before was a request."""
    said = tmp_path / "said"
    async with in_terminal(start.format(f"{PROGRAM} {said}"), said) as terminal:
        os.kill(pid_of(said), signal.SIGHUP)
        assert await eventually(lambda: lines(said, 2)) == ["started", "request"]
        os.close(terminal)
        assert (await eventually(lambda: lines(said, 4)))[2:] == [
            "the terminal was closed",
            "ended",
        ]


@pytest.mark.parametrize(
    ("start", "signals"),
    [
        pytest.param("trap '' HUP; {} & wait", 1, id="nohup"),
        pytest.param("{} & disown; cat", 0, id="disowned"),
    ],
)
async def test_a_process_may_outlive_its_terminal(tmp_path: Path, start: str, signals: int) -> None:
    """A process whose terminal's SIGHUP is ignored or never comes goes on; later ones request."""
    said = tmp_path / "said"
    async with in_terminal(start.format(f"{PROGRAM} {said}"), said) as terminal:
        pid = pid_of(said)
        os.close(terminal)
        for _ in range(signals):
            os.kill(pid, signal.SIGHUP)
        gone = "the terminal is gone; going on without it"
        assert await eventually(lambda: lines(said, 2)) == ["started", gone]
        os.kill(pid, signal.SIGHUP)
        assert (await eventually(lambda: lines(said, 3)))[2:] == ["request"]
        os.kill(pid, signal.SIGTERM)
        assert (await eventually(lambda: lines(said, 4)))[3:] == ["ended"]


async def test_without_a_terminal_sighup_is_a_request(tmp_path: Path) -> None:
    """A process has no terminal under systemd, in a container, and under `navarch serve`."""
    said = tmp_path / "said"
    process = await asyncio.create_subprocess_exec(
        *shlex.split(PROGRAM), said, cwd=path_of("."), start_new_session=True
    )
    await eventually(lambda: lines(said, 1))
    process.send_signal(signal.SIGHUP)
    assert await eventually(lambda: lines(said, 2)) == ["started", "request"]
    process.terminate()
    assert await process.wait() == 0
