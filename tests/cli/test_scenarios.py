"""Scenarios are run with `navarch simulator run`, `validate` and `interactive`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
GOOD = ROOT / "config" / "scenarios" / "xid-stays-unhealthy.yaml"

FAILS = """
name: fails
fleet: [{id: node-1}]
events:
  - {action: start_fleet}
  - {at: 1m, action: assert, target: node-1, params: {expected_status: cordoned}}
assertions:
  - {type: node_count, expected: 2, message: there are two}
"""

TYPED = """
inject node-1 xid_error    # before anything runs
start
wait node-1 active timeout=1m
inject node-1 xid_error xid_code=79 gpu_index=2
wait node-1 terminated timeout=3m
inject node-2 no_capacity
fly
nodes
pools
assert node-2 active
"""


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Each run has its directory where the command runs."""
    monkeypatch.chdir(tmp_path)


def navarch(*words: str, typed: str = "") -> tuple[int, str]:
    """Run `navarch` with these arguments; return its exit code and output."""
    result = CliRunner().invoke(app, ["simulator", *words], input=typed)
    return result.exit_code, result.output


def test_run_prints_the_story_and_the_assertions():
    """A scenario runs in virtual time; the exit code is that of the assertions."""
    code, said = navarch("run", str(GOOD))
    assert code == 0
    assert "1:00.0   node-1" in said
    assert "XID 48: uncorrectable memory error (GPU 3)" in said
    assert "holds  these nodes are not replaced" in said
    assert "xid-stays-unhealthy: passed: 4 assertions, simulated 4:00" in said


def test_a_failed_scenario_prints_what_it_found(tmp_path):
    """One line for each failed assertion, and exit code 1."""
    file = tmp_path / "fails.yaml"
    file.write_text(FAILS, "utf-8")
    code, said = navarch("run", "--quiet", str(file))
    failed = [line for line in said.splitlines() if line.startswith("FAILED")]
    assert (1, 2) == (code, len(failed))
    assert "node-1 is active" in failed[0]
    assert failed[1] == "FAILED: there are two; found: 1"


def test_run_prints_json():
    """The JSON has steps, assertions, nodes and the story, with the hash of the history."""
    code, said = navarch("run", "--output", "json", str(GOOD))
    answer = json.loads(said)
    assert (0, True, 4) == (code, answer["ok"], len(answer["assertions"]))
    assert {each["node"]: each["status"] for each in answer["nodes"]} == {
        "node-1": "active",
        "node-2": "active",
    }
    assert any(each["title"] == "fault" for each in answer["story"])


def test_validate_runs_nothing(tmp_path):
    """A valid file is confirmed, and every line with an error is named."""
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("name: a\nflet: []\nevents: [{action: fly}]\n", "utf-8")
    code, said = navarch("validate", str(GOOD), str(wrong))
    assert code == 1
    assert f"{GOOD}: xid-stays-unhealthy is in order: 2 nodes" in said
    assert f"{wrong}:2: flet: unknown key" in said
    assert f"{wrong}:3: events.0.action: Invalid enum value 'fly'" in said


def test_interactive_runs_typed_commands():
    """Commands from a pipe run too; an invalid command is reported and skipped."""
    code, said = navarch("interactive", "--nodes", "2", typed=TYPED)
    assert code == 0
    assert "! nothing runs yet; type start" in said
    assert "XID 79 on GPU 2" in said
    assert "! failure_type: no_capacity does not occur on 'node-2'" in said
    assert "! 'fly' is not understood; type help" in said
    lines = {line.split()[0]: line.split() for line in said.splitlines() if line.strip()}
    assert lines["node-1"][2] == "terminated"
    assert lines["training"][:3] == ["training", "2", "closed"]


def test_interactive_explains_why():
    """An explanation is that of `navarch why`, at the fleet's own time.

    An unknown name is an error.
    """
    typed = "start\nstep 10s\ninject node-1 xid_error\nwhy node-1\nwhy mars\nwhy\n"
    code, said = navarch("interactive", "--nodes", "2", typed=typed)
    assert code == 0
    assert "action replace" in said
    assert "Now:   It waits for " in said
    assert "! there is no node, pool or saga 'mars'" in said
    assert "! name a node, a pool or a saga: why node-1" in said


@pytest.mark.parametrize(
    ("typed", "code"), [("", 0), ("quit\n", 0), ("start\nassert all lost\n", 1)]
)
def test_interactive_ends_cleanly(typed, code):
    """The end of the input and quit end it, with the exit code of the assertions."""
    assert navarch("interactive", typed=typed)[0] == code
