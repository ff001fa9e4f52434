"""Scenario files are read, refused with their problems, and run."""

from pathlib import Path

import pytest

from services.cli.commands.simulator.scenario_commands import why
from services.simulator.inputs.scenario.scenario_file import ScenarioError, read_file, read_text
from services.simulator.inputs.scenario.scenario_runner import run

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted((ROOT / "config" / "scenarios").glob("*.yaml"))

SEEDS_OWN = """
name: test-custom-autoscaler
fleet:
  - id: node-1
    provider: fake
    gpu_count: 8
  - id: node-2
    provider: fake
    gpu_count: 8

events:
  - at: 0s
    action: start_fleet
  - at: 30s
    action: assert
    target: node-1
    params:
      expected_status: active
"""

WRONG = """
name: wrong
flet: []
fleet:
  - {id: node-1, gpus: 8}
  - {id: node-2}
  - {id: node-2, pool: nope}
pools:
  training: {min_nodes: 5, max_node: 3}
settings:
  nats: {}
events:
  - {at: 5s, action: inject_failure, target: node-9, params: {failure_type: xid_error}}
  - {action: start_flet}
  - {action: inject_failure, target: node-1, params: {failure_type: no_capacity}}
  - {action: issue_command, target: node-2, params: {command_type: drain, command_args: {a: 3}}}
assertions:
  - {type: node_count}
  - {type: node_status, target: node-2, expected: happy}
"""
WHERE = [
    "wrong.yaml:3: flet",
    "wrong.yaml:5: fleet.0.gpus",
    "wrong.yaml:7: fleet.2.id",
    "wrong.yaml:7: fleet.2.pool",
    "wrong.yaml:9: pools.training.max_node",
    "wrong.yaml:11: settings.nats",
    "wrong.yaml:13: events.0.target",
    "wrong.yaml:14: events.1.action",
    "wrong.yaml:15: events.2.params.failure_type",
    "wrong.yaml:16: events.3.params.command_args",
    "wrong.yaml:18: assertions.0",
    "wrong.yaml:19: assertions.1.expected",
]


@pytest.mark.slow
@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_what_the_product_promises(file):
    """Every shipped scenario is valid, and all its assertions hold."""
    outcome = run(read_file(file), why=why)
    wrong = [step for step in outcome.steps if not step.ok]
    wrong += [check for check in outcome.checks if not check.ok]
    assert ([], (), True) == (wrong, outcome.defects, outcome.ok)
    assert outcome.checks


def test_the_example_of_the_extension_document_runs():
    """A fleet, a start and an assertion are enough."""
    assert run(read_text("example.yaml", SEEDS_OWN)).ok


def test_all_problems_are_reported_at_once_with_their_lines():
    """Unknown keys, unknown references, parameters that do not fit."""
    with pytest.raises(ScenarioError) as raised:
        read_text("wrong.yaml", WRONG)
    assert WHERE == [": ".join(each.split(": ")[:2]) for each in raised.value.problems]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: a\nfleet: [{id: a}]\nassertions: [{type: node_count, expected: 1}]", "start_fleet"),
        ("name: a\nevents: [{action: wait, params: {duration: 1s}}]", "nothing to play with"),
        ("- a", "must be a mapping"),
        ("name: [", "not valid YAML"),
        ("fleet: [{id: a}]\nevents: [{action: start_fleet}]", "`name` is missing"),
        ("name: a\nfleet: [{id: all}]\nevents: [{action: start_fleet}]", "means something else"),
        ("name: a\nfleet: [{id: a}]\npools: {fleet: {min_nodes: 1}}", "own pool"),
    ],
)
def test_what_cannot_be_played_is_refused(text, problem):
    """An event that cannot be played is refused in words that say what to do."""
    with pytest.raises(ScenarioError, match=problem):
        read_text("a.yaml", text)


def test_an_assertion_that_does_not_hold_fails_the_scenario():
    """A failed assertion says what was found instead."""
    text = SEEDS_OWN.replace("active", "cordoned")
    outcome = run(read_text("example.yaml", text))
    assert not outcome.ok
    assert [each.detail for each in outcome.steps if not each.ok] == [
        "node-1 is active: registered"
    ]


def test_the_same_file_and_seed_have_the_same_history():
    """Two runs have the same history to the byte; another seed has another history."""
    scenario = read_file(ROOT / "config/scenarios/xid-stays-unhealthy.yaml")
    digests = [run(scenario, seed).digest for seed in ("5", "5", "6")]
    assert digests[0] == digests[1] != digests[2]
