"""The `fake` provider's file: every replica of the provisioner on a host opens the same one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Final

from tests.provisioner.provisioner_parts import fake

FILES: Final = 50
"""Enough: without a lock, one file in ten could not be opened by one of its replicas."""
REPLICAS: Final = 4


def test_replicas_that_start_at_once_all_open_a_new_file(tmp_path: Path) -> None:
    """One of two new provisioners ended with "database is locked" as the fleet started."""
    together = Barrier(REPLICAS)

    def start(number: int) -> None:
        together.wait()
        fake(file=str(tmp_path / f"{number}.db")).calls("list")

    with ThreadPoolExecutor(REPLICAS) as replicas:
        for number in range(FILES):
            for started in [replicas.submit(start, number) for _ in range(REPLICAS)]:
                started.result()
