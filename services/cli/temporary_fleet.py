"""A temporary directory for a command's own fleet, removed even if the command is killed.

A guard process waits for the end of a pipe, which the kernel closes when the command ends. It then
ends the fleet's processes that still run, agents included, and removes the directory, unless the
command has done so.
"""

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

DATA_FOLDER: Final = "data"


@contextmanager
def temporary_directory(prefix: str) -> Iterator[Path]:
    """Make a directory for a fleet, whose data is in its folder `data`; remove it afterwards."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    guard = subprocess.Popen(
        [sys.executable, "-m", __name__, str(directory)],
        stdin=subprocess.PIPE,
        # Ctrl-C in a terminal must not reach the guard.
        start_new_session=True,
    )
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        guard.communicate()


def main() -> None:
    """Wait for the end of the command that started this process, then clean up."""
    sys.stdin.buffer.read()
    directory = Path(sys.argv[1])
    if not directory.exists():
        return
    # Imported late, so that the waiting process uses little memory.
    from services.cli.supervisor import end_predecessor  # noqa: PLC0415

    asyncio.run(end_predecessor(directory / DATA_FOLDER))
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
