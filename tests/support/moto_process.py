"""Runs moto, which answers as AWS does, in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def running_moto() -> Iterator[str]:
    """Yield the server's URL, until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.provisioner.moto_server"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, "moto did not start"
        try:
            yield url
        finally:
            process.kill()
