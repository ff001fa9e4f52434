"""A directory for a fleet of a command's own, cleared away whatever becomes of the command.

A process beside it waits for the end of a pipe, which the kernel closes with the command, also with
one that was killed. Whatever of the fleet still runs then is ended, agents included, and the
directory removed. After a command that has cleared up by itself nothing of that is left to do.
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
def cleared_directory(prefix: str) -> Iterator[Path]:
    """A new directory, whose folder `data` a fleet is served from; both are gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    guard = subprocess.Popen(
        [sys.executable, "-m", __name__, str(directory)],
        stdin=subprocess.PIPE,
        # Ctrl-C in a terminal must not reach it.
        start_new_session=True,
    )
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        guard.communicate()


def main() -> None:
    """Wait for the end of the command that started this, and clear up after it."""
    sys.stdin.buffer.read()
    directory = Path(sys.argv[1])
    if not directory.exists():
        return
    # Imported once it is needed: until then this process is to cost little.
    from services.cli.supervisor import end_predecessor  # noqa: PLC0415

    asyncio.run(end_predecessor(directory / DATA_FOLDER))
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
