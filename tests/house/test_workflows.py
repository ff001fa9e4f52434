"""The workflows of .github: what they call exists, and they may do no more than they need."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").iterdir())
TARGETS: Final = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_what_exists(path: Path) -> None:
    """Make's targets and files; actions of GitHub's own alone; by default it may only read."""
    text = path.read_text()
    workflow: dict[str, Any] = yaml.safe_load(text)

    assert {"contents": "read"} == workflow["permissions"]
    used = re.findall(r"uses: (\S+)", text)
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", each) for each in used)
    assert set(re.findall(r"run: make ([a-z-]+)", text)) <= set(TARGETS)
    for each in re.findall(r"build -f (\S+)|(\.ci/\w+)", text):
        assert (ROOT / "".join(each)).exists()
    for name, job in workflow["jobs"].items():
        assert "${{" not in "".join(step.get("run", "") for step in job["steps"]), name
