""".ci/run ends with the real parts that were missing: one line for each test that was skipped."""

import subprocess
import sys
from pathlib import Path

from tests.real.conftest import REASONS

ROOT = Path(__file__).parents[2]
SKIPPED = "no such part here"


def test_each_skipped_test_of_a_real_part_is_noted(tmp_path: Path) -> None:
    """The list has its reason; a test of no real part is not in the list."""
    (tmp_path / "conftest.py").write_text("from tests.real.conftest import *\n")
    (tmp_path / "test_parts.py").write_text(
        "import pytest\n"
        "@pytest.mark.real\n"
        f"@pytest.mark.skipif(True, reason='{SKIPPED}')\n"
        "@pytest.mark.parametrize('number', range(3))\n"
        "def test_part(number): pass\n"
        "@pytest.mark.skip(reason='another matter')\n"
        "def test_other(): pass\n"
        "@pytest.mark.real\n"
        "def test_present(): pass\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = real\n")
    noted = tmp_path / "reasons"
    subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)),
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", REASONS: str(noted)},
        check=True,
        capture_output=True,
    )
    assert noted.read_text().splitlines() == [SKIPPED] * 3
