"""The index has what the locks name, installable on each Python and processor."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.real.test_release import ROOT, make

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
SYSTEMS: Final = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
"""Debian 10, RHEL 8 and later."""
SOURCE_ONLY: Final = ("nkeys",)
"""Pure Python without a wheel on the index: pip makes one."""


@pytest.fixture(scope="module")
def resolver() -> str:
    """The uv of the release's tools, which reads of each package only what it is made of."""
    if make(".venv/release/.installed").returncode != 0:
        pytest.skip("the tools of requirements-release.txt cannot be installed here")
    return str(ROOT / ".venv/release/bin/uv")


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("lock", ["requirements-lock.txt", "requirements-agent-lock.txt"])
def test_a_lock_has_a_wheel_of_each(
    resolver: str, tmp_path: Path, lock: str, python: str, system: str
) -> None:
    """A wheel of each package has a hash that the lock has; nothing has to be compiled."""
    command = (
        *(resolver, "pip", "install", "--dry-run", "--no-deps", "--require-hashes"),
        *("--target", str(tmp_path), "--python-version", python, "--python-platform", system),
        *("--only-binary", ":all:", *(f"--no-binary={each}" for each in SOURCE_ONLY)),
        *("-r", str(ROOT / lock)),
    )
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    assert "Would install" in done.stderr, done.stderr
