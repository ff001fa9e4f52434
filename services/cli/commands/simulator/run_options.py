"""The options of `navarch simulator run`, and where the lines of a run go."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from services.cli import console
from services.simulator.engine.run_history import LogSink
from services.simulator.inputs.scenario.scenario_format import Scenario
from services.simulator.report.run_directory import SCENARIO, RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Says how to run every file."""

    seed: str = ""
    only: tuple[int, ...] | None = None
    quiet: bool = False
    verbose: bool = False
    debug: bool = False
    compat: str = ""
    runs: Path = Path()
    """Where each run has its directory."""
    output: console.Format = console.Format.TABLE

    @property
    def shows_lines(self) -> bool:
        """Return whether the log is shown, too."""
        return self.verbose or self.debug

    @property
    def again(self) -> str:
        """Return what a command that repeats a run needs beside its file and seed."""
        return f" --compat {self.compat}" if self.compat else ""

    def directory(self, scenario: Scenario) -> RunDirectory:
        """Make the directory of one run, with a copy of its file."""
        made = RunDirectory(self.runs, scenario.name, datetime.now().astimezone())
        made.write(SCENARIO, Path(scenario.file).read_bytes())
        return made

    @contextmanager
    def logging(self, directory: RunDirectory, *more: tuple[Path, int]) -> Iterator[LogSink]:
        """Yield what takes the lines of a run: its log, and stderr where they are shown."""
        least = logging.DEBUG if self.debug else logging.INFO
        with directory.logging(least, *more) as write:

            def write_and_show(level: int, line: str) -> None:
                write(level, line)
                if level >= least:
                    sys.stderr.write(f"{line}\n")

            yield write_and_show if self.shows_lines else write

    def show_directory(self, directory: RunDirectory) -> None:
        """Say where everything about a run is."""
        if not self.output.is_data:
            console.write(f"{'run':<14}{directory.path}")
