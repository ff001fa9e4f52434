"""Wrong files: each problem is reported with file, line, key and remedy, never as a traceback.

And the forms of the original's files, which keep their meaning.
"""

import random
import re
from pathlib import Path

import pytest
import yaml

from services.simulator.inputs.scenario.scenario_file import ScenarioError, read_text
from services.simulator.inputs.scenario.scenario_runner import run

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted((ROOT / "config" / "scenarios").rglob("*.yaml"))
HEAD = "name: a\nfleet: [{id: a, gpu_count: 4}, {id: b}]\n"
START = HEAD + "events:\n  - {at: 0, action: start_fleet}\n"
XID = "  - {action: inject_failure, target: a, params: {failure_type: %s}}\n"
COUNT = START + "assertions:\n  - {type: node_count, expected: 1%s}\n"
WRONG = {
    "events is no list": (HEAD + "events: 7", "a.yaml:3: events: must be a list (`- …`)"),
    "fleet is no list": ("name: a\nfleet: {id: a}", "a.yaml:2: fleet: must be a list (`- …`)"),
    "a pool is a number": (HEAD + "pools: {p: 3}", "a.yaml:3: pools.p: must be a mapping"),
    "an unnamed pool": (HEAD + "pools:\n- {min_nodes: 1}", "a.yaml:4: pools.0: a pool in a list"),
    "a pool listed twice": (
        HEAD + "pools:\n- {name: p}\n- {name: p}",
        "a.yaml:5: pools.1: pool 'p' is there twice; rename one",
    ),
    "a key of a listed pool": (
        HEAD + "pools:\n- name: p\n  min_node: 1",
        "a.yaml:5: pools.p.min_node: unknown key",
    ),
    "a number for a name": (
        "name: 7\nfleet: [{id: a}]",
        "a.yaml:1: name: must be a text, not a number; put it in quotes",
    ),
    "a negative time": (
        HEAD + "events:\n- {at: -5s, action: start_fleet}",
        "a.yaml:4: events.0.at: '-5s' is not a duration: it must be zero or more",
    ),
    "a time without end": (
        HEAD + "events:\n- {at: 99999999h, action: start_fleet}",
        "a.yaml:4: events.0.at: '99999999h' is not a duration: ten years are the most",
    ),
    "a variable": (
        HEAD + "pools: {p: {instance_type: '${TYPE}'}}",
        "a.yaml:3: pools.p.instance_type: ${TYPE} has no value in a scenario; write the value",
    ),
    "a parameter of another failure": (
        START + XID % "temperature, xid_code: 79",
        (
            "a.yaml:5: events.1.params.xid_code: says nothing about temperature, "
            "but about false_report, xid_error"
        ),
    ),
    "a GPU too many": (
        START + XID % "xid_error, gpu_index: 4",
        "a.yaml:5: events.1.params.gpu_index: a has 4 GPUs; the last is 3",
    ),
    "an assert that waits": (
        START + "  - {action: assert, target: a, params: {expected_status: active, timeout: 5s}}",
        "a.yaml:5: events.1.params.timeout: an assert looks once; write `action: wait_for_status`",
    ),
    "a key of another assertion": (
        COUNT % ", saga: replace",
        "a.yaml:6: assertions.0.saga: says nothing about node_count, but about saga_count",
    ),
    "a place of a node": (
        START + "  - {action: inject_failure, target: a, params: "
        "{failure_type: preemption, market: spot}}",
        "a.yaml:5: events.1.params.market: says nothing about a, but about 'cloud'",
    ),
    "a place of a failure that has none": (
        START + "  - {action: inject_failure, target: cloud, params: "
        "{failure_type: list_error, zone: a}}",
        "a.yaml:5: events.1.params.zone: says nothing about list_error, but about fixed_capacity",
    ),
    "a zone that no pool names": (
        START + "  - {action: inject_failure, target: cloud, params: "
        "{failure_type: no_capacity, zone: mars}}",
        "a.yaml:5: events.1.params.zone: no pool may launch mars; there are: fake gpu_8x on-demand",
    ),
    "a place that counts nothing": (
        START + "assertions:\n  - {type: instance_count, market: spot, expected: 1}",
        "a.yaml:6: assertions.0.market: no pool may launch spot; there are: fake gpu_8x on-demand",
    ),
    "an assertion after the end": (
        START + "duration: 5m\nassertions:\n  - {type: node_count, expected: 1, at: 6m}",
        "a.yaml:7: assertions.0.at: is after the scenario's `duration`; make that longer",
    ),
    "why without words": (
        START + "assertions:\n  - {type: why, target: a}",
        "a.yaml:6: assertions.0: expects nothing; add `contains: words of the answer`",
    ),
    "why of all nodes": (
        START + "assertions:\n  - {type: why, contains: capacity}",
        "a.yaml:6: assertions.0.target: `why` is asked of a node or a pool; there are: fleet, a, b",
    ),
    "a type without an instance type": (
        START + "settings:\n  instance_types: {abstract: {big: {aws: [p9]}}}",
        "a.yaml:6: settings.instance_types.abstract.big.aws: ",
    ),
    "an alias of itself": ("name: a\nfleet: &x [*x]", "a.yaml:2: fleet.0.0: is more than 64 deep"),
    "a control character": ("name: a\nfleet: [\x07]", "a.yaml:2: not valid YAML: the character"),
}
JUNK = (
    *(None, True, 0, -1, 10**30, 1.5, float("nan"), "", " ", "all", "node-1", "-5s", "99999999h"),
    *([], [1], {}, {"a": 1}, {1: 2}, [[[]]], "${HOME}", "os:system", "150%", {"type": "x:y"}, b"a"),
)


@pytest.mark.parametrize(("text", "reported"), WRONG.values(), ids=WRONG.keys())
def test_a_problem_is_reported_with_its_line_and_remedy(text, reported):
    """Exactly one problem, with its line and what to write instead."""
    with pytest.raises(ScenarioError) as raised:
        read_text("a.yaml", text)
    assert [reported] == [problem[: len(reported)] for problem in raised.value.problems]


def places(value, path=()):
    """Yield the path of every place in a document."""
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value or ())):
        if isinstance(value, dict | list):
            yield from (
                places(value[key], (*path, key))
                if isinstance(value[key], dict | list)
                else [(*path, key)]
            )


def spoilt(document, chance):
    """The document with one or two places replaced by junk."""
    for _ in range(chance.choice((1, 1, 2))):
        path = chance.choice(list(places(document)) or [()])
        inside = document
        for key in path[:-1]:
            inside = inside[key]
        if not path:
            continue
        if chance.random() < 0.3:
            del inside[path[-1]]
        else:
            inside[path[-1]] = chance.choice(JUNK)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def problems_of(text):
    """Return the problems of a scenario file's text; none where it is well-formed."""
    try:
        read_text("a.yaml", text)
    except ScenarioError as error:
        return error.problems
    return []


def test_every_problem_of_a_spoilt_file_has_a_line():
    """Two hundred spoilt files: each is valid, or every problem has its file and line."""
    chance = random.Random(1)
    texts = [file.read_text("utf-8") for file in SHIPPED]
    refused = 0
    for _ in range(200):
        text = spoilt(yaml.safe_load(chance.choice(texts)), chance)
        problems = problems_of(text)
        refused += bool(problems)
        found = [re.match(r"a\.yaml:(\d+): ", problem) for problem in problems]
        assert all(each and 1 <= int(each[1]) <= text.count("\n") + 1 for each in found), problems
    assert refused > 60


ORIGINAL = """
name: in-the-words-of-the-original
fleet:
  - id: node-1
    provider: gcp
  - id: node-2
    provider: aws
events:
  - at: 0s
    action: start_fleet
  - at: 3s
    action: log
    params:
      log_message: "All nodes are there after three seconds"
  - at: 3s
    action: assert
    target: all
    params: {expected_status: active}
  - at: 4s
    action: issue_command
    target: node-1
    params:
      command_type: cordon
      command_args: {reason: maintenance}
  - at: 6s
    action: wait
  - action: assert
    target: node-1
    params: {expected_status: cordoned}
  - at: 7s
    action: inject_failure
    target: node-2
    params: {failure_type: nvml_failure, message: no answer, gpu_index: 2}
assertions:
  - {type: health_status, target: node-2, expected: degraded}
"""


def test_the_originals_files_keep_their_meaning():
    """A fleet is in service three seconds after its start; `wait` needs no params."""
    outcome = run(read_text("a.yaml", ORIGINAL))
    assert [] == [each for each in outcome.steps if not each.ok]
    assert outcome.ok


def test_every_promise_is_in_the_list():
    """Once, and the list has nothing else; every file starts with its promise."""
    folder = ROOT / "config" / "scenarios"
    named = re.findall(r"\]\(([a-z0-9-]+)\.yaml\)", (folder / "README.md").read_text("utf-8"))
    assert sorted(file.stem for file in folder.glob("*.yaml")) == sorted(named)
    assert [] == [file.name for file in SHIPPED if not file.read_text("utf-8").startswith("# ")]


def test_an_assertion_has_its_moment():
    """An assertion is evaluated at its moment, after the events of that moment."""
    text = START + (
        "  - {at: 10s, action: issue_command, target: a, params: {command_type: cordon}}\n"
        "duration: 20s\nassertions:\n"
        "  - {type: node_count, status: cordoned, expected: 1}\n"
        "  - {type: node_count, status: cordoned, expected: 0, at: 9s}\n"
        "  - {type: node_count, status: cordoned, expected: 0, at: 15s}\n"
    )
    outcome = run(read_text("a.yaml", text))
    found = [(each.ok, each.at and round(each.at)) for each in outcome.checks]
    assert [(True, None), (True, 9), (False, 15)] == found


def commanded(command):
    """Return whether the run passed, and its last detail, after a command to a cordoned node."""
    params = "{command_type: cordon}"
    text = START + f"  - {{at: 5s, action: issue_command, target: a, params: {params}}}\n"
    text += f"  - {{at: 7s, action: issue_command, target: a, params: {command}}}\n"
    outcome = run(read_text("a.yaml", text + "duration: 10s\n"))
    return outcome.ok, outcome.steps[-1].detail


@pytest.mark.parametrize(
    ("command", "ok", "reason"),
    [
        ("{command_type: uncordon}", True, ""),
        ("{command_type: hold, reason: r, command_args: {for: 999h}}", False, "refused: "),
        ("{command_type: hold, reason: r, command_args: {for: 999h}, refused: true}", True, ""),
        ("{command_type: uncordon, refused: true}", False, "not refused, as it was to be"),
    ],
)
def test_a_command_that_is_refused_fails_the_scenario(command, ok, reason):
    """Unless the file expects the refusal."""
    found, detail = commanded(command)
    assert (ok, True) == (found, detail.startswith(reason)), detail


def test_a_failure_that_finds_no_machine_is_reported():
    """A fault waits for a machine that is not made yet, and fails if the machine is gone."""
    text = START + XID % "xid_error"
    outcome = run(read_text("a.yaml", text + "duration: 20s\n"))
    assert {"a": "unhealthy", "b": "active"} == {each.node: each.status for each in outcome.nodes}
    text = START.replace("name: a", "name: a\nduration: 3m") + (
        "  - {at: 5s, action: issue_command, target: a, params: {command_type: terminate}}\n"
        "  - {action: wait_for_status, target: a, params: {expected_status: terminated}}\n"
    )
    outcome = run(read_text("a.yaml", text + XID % "xid_error"))
    assert (False, "no fault was injected: a no longer exists") == (
        outcome.ok,
        outcome.steps[-1].detail,
    )
