"""Runs `navarch` in a terminal of so many columns, as a person does."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path
from typing import Final

SECONDS_MAX: Final = 60.0
ROWS: Final = 24
STYLES: Final = re.compile(r"\x1b\[[0-9;]*m")


async def in_terminal(
    *arguments: str, url: str = "", columns: int = 80, place: Path | None = None, **more: str
) -> tuple[int, str]:
    """Return its exit code and what it writes to the terminal, with its colours.

    `place`: the checkout in which it runs, without a keyboard; `more`: of its environment.
    """
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    hidden = ("NAVARCH_", "NO_COLOR", "COLUMNS", "TERM")
    fleet = {"NAVARCH_NATS_URL": url} if url else {}
    kept = {key: each for key, each in os.environ.items() if not key.startswith(hidden)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", *arguments),
        stdin=terminal if place is None else asyncio.subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        env=kept | fleet | {"TERM": "xterm"} | more,
        cwd=place,
    )
    os.close(terminal)
    async with asyncio.timeout(SECONDS_MAX):
        shown = await asyncio.to_thread(_everything, master)
        return await process.wait(), shown


def _everything(master: int) -> str:
    """Read until no process has the terminal open."""
    found = []
    try:
        while data := os.read(master, 65_536):
            found.append(data)
    except OSError:
        pass  # Linux says EIO at the end.
    finally:
        os.close(master)
    return b"".join(found).decode().replace("\r\n", "\n")
