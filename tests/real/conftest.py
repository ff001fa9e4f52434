"""Fixtures of the tests against real parts, and the list of the parts that were missing."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

REASONS: Final = "NAVARCH_SKIPPED_REASONS"
"""Variable: the file to which .ci/run has the reason of each skipped test written."""


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are for one user alone."""
    with TemporaryDirectory(prefix="navarch-real-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note why a test against a real part was skipped."""
    file = os.environ.get(REASONS)
    if file and report.skipped and "real" in report.keywords and isinstance(report.longrepr, tuple):
        reason = " ".join(report.longrepr[2].removeprefix("Skipped: ").split())
        with Path(file).open("a", encoding="utf-8") as noted:
            noted.write(f"{reason}\n")
