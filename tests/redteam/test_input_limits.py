"""Policies, configuration and answers that would hang a process or fill its memory are refused."""

import resource
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from schemas.duration import parse_duration
from schemas.node_events import Fault
from services.health_monitor.rules.policy_file import parse_policy
from services.primitives.errors import ConfigurationError
from services.settings.yaml_document import read_document
from services.workload_systems.cluster_access import ClusterAccess

POLICY = """
version: 1
rules:
- name: hangs
  condition: >-
    {condition}
  result: degraded
- {{name: rest, condition: true, result: healthy}}
"""
TEN = "[1,2,3,4,5,6,7,8,9,10]"
BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)]
)


def nested(depth: int, gap: str = "", ranges: str = TEN) -> str:
    """Return a condition of macros within macros."""
    condition = "event.code == 1"
    for n in range(depth):
        condition = f"{ranges}.exists{gap}(x{n}, {condition})"
    return condition


@pytest.mark.parametrize(
    "condition",
    [
        nested(6),
        nested(3, ranges="event.metrics"),
        nested(6, gap=" "),
        nested(6).replace("exists", "existsOne"),
        nested(2, ranges=f"[{','.join('1' * 400)}]"),
        "event.metrics.exists(k, (" + " + ".join(["event.message"] * 120) + ").contains('x'))",
        " || ".join(["event.code == 1"] * 200),
        f"event.code == 1 && other{'/' * 70}",
    ],
    ids=[
        *("literal lists", "metrics", "spaces", "other names", "long lists", "copied texts"),
        *("long", "slashes"),
    ],
)
def test_policy_that_could_delay_faults_is_refused(condition: str) -> None:
    """When it is read, with file, line and key, and without being evaluated."""
    began = time.process_time()
    with pytest.raises(ConfigurationError) as error:
        parse_policy("policy.yaml", POLICY.format(condition=condition).encode())
    assert "rules.0.condition" == error.value.key
    assert time.process_time() - began < 0.5


def test_many_expensive_conditions_are_refused() -> None:
    """The limit is the whole policy's, because every fault is judged by all rules."""
    one = "- {{name: r{n}, condition: 'event.metrics.exists(k, k == \"{n}\")', result: degraded}}\n"
    rules = "".join(one.format(n=n) for n in range(990))
    text = POLICY.format(condition="false || event.code == 1").replace(
        "rules:\n", f"rules:\n{rules}"
    )
    nested_twice = text.replace("k == ", "event.metrics.exists(j, j == k) || k == ")
    with pytest.raises(ConfigurationError, match="fewer macros"):
        parse_policy("policy.yaml", nested_twice.encode())


def test_costliest_allowed_policy_judges_a_fault_in_time() -> None:
    """Two macros over the metrics, of a fault with more metrics than an agent sends."""
    text = POLICY.format(condition=nested(2, ranges="event.metrics"))
    policy = parse_policy("policy.yaml", text.encode())
    now = datetime(2026, 1, 1, tzinfo=UTC)
    fault = Fault(
        id="f",
        time=now,
        pool="p",
        node="n",
        kind="xid",
        message="x" * 1_000_000,
        metrics={f"m{n}": float(n) for n in range(50_000)},
    )
    began = time.process_time()
    policy.judge(fault, {}, now)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BOMB, "aliases repeat more than 10,000 values; use fewer aliases"),
        ("a: &a [*a]", "is more than 64 deep; make it flatter"),
        ("[" * 100_000, "is more than 64 deep"),
        ("- " * 100_000 + "a", "is more than 64 deep"),
        ("{a: " * 50_000, "is more than 64 deep"),
        ("[" + "1," * 300_000 + "1]", "has more than 200,000 values"),
        ("a: " + "1:" * 100_000 + "1", "is too long for a number; put it in quotes"),
    ],
    ids=["aliases", "alias of itself", "brackets", "dashes", "braces", "values", "number"],
)
def test_yaml_bomb_is_refused(text: str, says: str) -> None:
    """The error names file and line; recursion ended the process, and aliases filled its memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigurationError, match=says) as error:
        read_document("navarch.yaml", text)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    assert grown < 40
    assert error.value.line


def test_few_aliases_are_allowed() -> None:
    """Pools may share a section."""
    text = "a: &a {b: [1, 2]}\nc: [*a, *a]\n"
    assert [{"b": [1, 2]}] * 2 == read_document("f", text).value["c"]


def test_kubeconfig_that_is_no_yaml_shows_nothing_of_it(tmp_path: Path) -> None:
    """The parser's own message has a piece of the file, and tokens are in it."""
    file = tmp_path / "config"
    file.write_text("users:\n- {name: a, user: {token: canary-1\n")
    with pytest.raises(ConfigurationError) as error:
        ClusterAccess(kubeconfig=str(file)).check()
    assert "canary" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["9" * 3_000, f"{'9' * 60}h{'9' * 3_000}", f"{'1h' * 2_000}x", "." * 3_000]
)
def test_long_duration_is_refused_unread(text: str) -> None:
    """A request of an operator may have 256 KiB; one of 3 KB took the pool-manager 2.5 s."""
    began = time.process_time()
    with pytest.raises(ValueError, match="is not a duration") as error:
        parse_duration(text)
    assert time.process_time() - began < 0.5
    assert len(str(error.value)) < 200
