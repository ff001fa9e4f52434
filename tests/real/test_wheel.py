"""The wheel, in an empty environment outside of the repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "constraints.txt")
PACKAGES: Final = ("agent", "schemas", "services", "config")


def run(*command: str, where: Path) -> str:
    """Both outputs of a command, which must succeed; without the repository on Python's path."""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, check=False, cwd=where, env=outside, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_wheel_is_whole_and_its_demo_runs(tmp_path: Path) -> None:
    """It has its types, licence and policy, and `navarch demo` replaces a node from it alone."""
    source, away = tmp_path / "source", tmp_path / "away"
    away.mkdir()
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in SOURCES:
        shutil.copy(ROOT / name, source / name)
    build = ("-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(source))
    run(sys.executable, *build, where=away)
    wheel = next(tmp_path.glob("navarch-*.whl"))
    names = ZipFile(wheel).namelist()
    ends = ("agent/py.typed", "schemas/py.typed", "services/py.typed", "LICENSE", "NOTICE")
    for end in (*ends, "share/navarch/config/health-policy.yaml"):
        assert any(name.endswith(end) for name in names), end

    run(sys.executable, "-m", "venv", str(tmp_path / "venv"), where=away)
    programs = tmp_path / "venv" / "bin"
    install = ("install", "-q", "-c", str(source / "constraints.txt"))
    run(str(programs / "pip"), *install, f"{wheel}[services,embedded]", where=away)

    assert " replaced " in run(str(programs / "navarch"), "demo", where=away)
