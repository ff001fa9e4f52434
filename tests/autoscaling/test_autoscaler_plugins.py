"""An autoscaler in its own package, installed as users would, and run in a scenario."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from services.simulator.inputs.scenario.scenario_file import ScenarioError, read_text

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "examples" / "office_hours"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The package as pip installs it: its module, and the metadata from its pyproject.toml.

    Written by hand, since a build needs tools that not every environment has.
    """
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text("utf-8"))["project"]
    site = tmp_path / "site"
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(metadata, "utf-8")
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in each.items())
        for group, each in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(points, "utf-8")
    module = PACKAGE / "navarch_office_hours.py"
    (site / module.name).write_bytes(module.read_bytes())
    return site


@pytest.mark.slow
def test_scenario_runs_a_plugin(installed, tmp_path):
    """An entry point and a name in the pool are all that it needs."""
    given = (str(PACKAGE / "scenario.yaml"), "--runs", str(tmp_path))
    run = subprocess.run(
        [sys.executable, "-m", "services.cli", "simulator", "run", *given],
        cwd=ROOT,
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (0, "") == (run.returncode, run.stderr), run.stdout
    assert "autoscaler office-hours: outside of office hours" in run.stdout


def test_scenario_without_the_package_is_refused():
    """The refusal has the scenario's line and the known names."""
    text = (PACKAGE / "scenario.yaml").read_text("utf-8")
    with pytest.raises(ScenarioError) as raised:
        read_text("scenario.yaml", text)
    problem = raised.value.problems[0]
    assert problem.startswith("scenario.yaml:14: pools.awake.autoscaling")
    assert "no navarch.autoscalers named 'office-hours'" in problem
