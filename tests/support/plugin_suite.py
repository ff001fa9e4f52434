"""Runs the tests of a plugin's package in a process of their own, as its author does."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SUITE_SECONDS_MAX: Final = 120


def suite(package: Path) -> str:
    """Run the tests of a package, which pass; return the last line of what pytest prints."""
    done = _run(package)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def failed_modules(package: Path) -> set[str]:
    """Run the tests of a package; return the files in which some fail."""
    done = _run(package)
    lines = [each for each in done.stdout.splitlines() if each.startswith("FAILED ")]
    return {each.removeprefix("FAILED ").partition("::")[0] for each in lines}


def _run(package: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{package}:{ROOT}"}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=package,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS_MAX,
        check=False,
    )
