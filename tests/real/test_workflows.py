"""actionlint judges the workflows of .github."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAM: Final = shutil.which("actionlint") or shutil.which(
    "actionlint", path=str(Path.home() / "go/bin")
)
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        PROGRAM is None,
        reason="no actionlint: go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.7",
    ),
]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Return actionlint's result for the workflows of a folder."""
    files = sorted(folder.glob("*.yaml"))
    assert files
    command = (str(PROGRAM), "-no-color", *map(str, files))
    return subprocess.run(command, capture_output=True, check=False, text=True, timeout=60)


def test_workflows_have_no_mistake(tmp_path: Path) -> None:
    """The program finds no mistake in ours, and finds one that is put in."""
    folder = ROOT / ".github" / "workflows"
    done = lint(folder)
    assert (done.returncode, done.stdout) == (0, "")

    for each in folder.glob("*.yaml"):
        (tmp_path / each.name).write_text(each.read_text().replace("github.", "githubb."))
    assert 'undefined variable "githubb"' in lint(tmp_path).stdout
