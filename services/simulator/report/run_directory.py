"""Keeps the directory of one run: its scenario, its log, its report as JSON and as a page."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

from services.primitives.errors import NavarchError
from services.simulator.engine.run_history import LogSink

SCENARIO: Final = "scenario.yaml"
LOG: Final = "run.log"
REPORT: Final = "report.json"
PAGE: Final = "report.html"
RUNS_MAX: Final = 1_000
"""Of one name in one second."""
_OTHER = re.compile(r"[^A-Za-z0-9._-]+")


class RunDirectory:
    """Names where everything about one run is."""

    def __init__(self, base: Path, name: str, now: datetime) -> None:
        """Make it below `base`; its name has the time, so that runs sort."""
        bare = _OTHER.sub("-", name).strip("-.")[:60] or "run"
        first = f"{now:%Y-%m-%d_%H-%M-%S}-{bare}"
        names = [first, *(f"{first}-{number}" for number in range(2, RUNS_MAX))]
        try:
            base.mkdir(parents=True, exist_ok=True)
            self.path = next(path for each in names if _made(path := base / each))
        except OSError as error:
            raise NavarchError(
                f"{base} cannot be written ({error.strerror}): name another directory with --runs"
            ) from error

    @contextmanager
    def logging(self, level: int, *more: tuple[Path, int]) -> Iterator[LogSink]:
        """Yield what writes to the run's log, and to `more` files, from a level on."""
        with ExitStack() as files:
            opened = [
                (files.enter_context(path.open("w", encoding="utf-8")), least)
                for path, least in ((self.path / LOG, level), *more)
            ]

            def write(of: int, line: str) -> None:
                for file, least in opened:
                    if of >= least:
                        file.write(f"{line}\n")

            yield write

    def write(self, name: str, data: bytes) -> None:
        """Write one of its files."""
        (self.path / name).write_bytes(data)


def _made(path: Path) -> bool:
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True
