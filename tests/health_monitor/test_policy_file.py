"""Policy files: which are refused when loading, and how faults are judged by them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.node_events import Fault
from services.health_monitor.rules.policy_file import load_policy, parse_policy
from services.primitives.errors import ConfigurationError

NOW = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
DEFAULT = "  - {name: rest, condition: true, result: healthy}\n"


def fault(kind: str = "xid", code: int = 79, **fields: Any) -> Fault:
    values = {"id": "f", "time": NOW, "gpu_index": 0} | fields
    return Fault(pool="training", node="training-7", kind=kind, code=code, **values)


def policy(rules: str, *, default: str = DEFAULT):
    return parse_policy("p.yaml", f"version: 1\nrules:\n{rules}{default}".encode())


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("versoin: 1\nrules: []\n", 1, "versoin: unknown key; did you mean `version`?"),
        ("version: 2\nrules: []\n", 1, "version: 2 is not known; write version: 1"),
        ("version: 1\nrules: []\n", 2, "rules: has no rule; add"),
        ("- 1\n", 1, "must be a mapping"),
        ("version: 1\nrules:\n  - {name: a, condition: true}\n", 3, "`result` is missing; add it"),
        (
            "version: 1\nrules:\n  - name: a\n    condition: true\n    result: broken\n",
            5,
            "Invalid enum value 'broken'",
        ),
        (
            (
                "version: 1\nrules:\n  - name: a\n    condition: true\n    if: true\n"
                "    result: healthy\n"
            ),
            5,
            "rules.0.if: unknown key; known here: name",
        ),
    ],
)
def test_invalid_file_is_refused_with_file_line_and_key(text: str, line: int, expected: str):
    """Each error also says what would be valid."""
    with pytest.raises(ConfigurationError) as caught:
        parse_policy("p.yaml", text.encode())
    assert str(caught.value).startswith(f"p.yaml:{line}:")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("condition: 'event.code =='", "not valid CEL: line 1, column 14 of it"),
        ("condition: 'evnt.code == 1'", "no variable 'evnt'; everything is under `event`"),
        ("condition: 'event.colour == 1'", "an event has no 'colour' (known: code"),
        ("condition: 'event[\"kode\"] == 1'", "an event has no 'kode'"),
        ("condition: 'count(event.code) > 1'", "no function 'count'; known: all"),
        ("condition: 'event.event_type == \"xdi\"'", "'xdi' is no event type; known: diagnostic"),
        ("condition: 'event.event_type in [\"sxdi\"]'", "'sxdi' is no event type"),
        ("condition: 'event.code'", "is 79 for an event of type xid; it must be true or false"),
        ("condition: 'event.code < \"a\"'", "fails for an event of type xid: No such overload"),
        ("condition: 'event.gpu_index + event.message == 1'", "No such overload"),
        ("condition: 'false'", "can never match; remove the rule"),
        ("condition: 'event.code == 1'\n    count: 3", "count: rule 'a': needs a `window`"),
        ("condition: 'event.code == 1'\n    window: 1m", "needs a `count` of 2 or more"),
        (
            "condition: 'event.code == 1'\n    count: 3\n    window: 1m\n    apart: 40s",
            "3 faults that far apart do not fit into the window",
        ),
        ("condition: 'event.code == 1'\n    apart: 1m", "needs `count` and `window`"),
        ("condition: 'event.code == 1'\n    sticky: 1h", "only a degraded result wears off"),
        ("condition: 'event.code == 1'\n    fatal: true", "only an unhealthy result can be fatal"),
        ("condition: 'event.code == 1'\n    action: reboot", "a healthy result cannot ask for"),
        ("condition: 'event.code == 1'\n    cancels: [heat]", "'heat' is no event type"),
        ("condition: 'event.code == 1'\n    window: soon\n    count: 2", "is not a duration"),
    ],
)
def test_rule_that_cannot_work_is_refused(rule: str, expected: str):
    """A rule that never matches, or fails on the first fault, is an error at loading."""
    with pytest.raises(ConfigurationError) as caught:
        policy(f"  - name: a\n    result: healthy\n    {rule}\n")
    assert expected in str(caught.value)
    assert str(caught.value).startswith("p.yaml:")


@pytest.mark.parametrize(
    ("rules", "default", "line", "expected"),
    [
        ("  - {name: a, condition: 'event.code == 1', result: healthy}\n", "", 3, "the last rule"),
        (
            "  - {name: a, condition: true, result: healthy}\n",
            DEFAULT,
            4,
            "rule 'rest': can never be reached: rule 'a' before it matches every event",
        ),
        ("  - {name: rest, condition: 'event.code == 1', result: healthy}\n", DEFAULT, 4, "twice"),
        (
            (
                "  - {name: a, condition: 'event.code == 1', result: healthy}\n"
                "  - {name: b, condition: 'event.code  ==  1', result: healthy}\n"
            ),
            DEFAULT,
            4,
            "can never be reached: rule 'a' before it has the same condition",
        ),
        (
            "  - {name: a, condition: true, result: degraded, count: 2, window: 1m}\n",
            "",
            3,
            "the last rule must match everything",
        ),
    ],
)
def test_unreachable_rules_are_refused(rules, default, line, expected):
    """First match wins: every rule must be reachable, and the last must match everything."""
    with pytest.raises(ConfigurationError) as caught:
        policy(rules, default=default)
    assert str(caught.value).startswith(f"p.yaml:{line}:")
    assert expected in str(caught.value)


def test_original_format_is_accepted():
    """Version as a string, metadata, block conditions, no action."""
    text = """
version: "1"
metadata:
  name: mine
  description: ours
rules:
  - name: fatal-xid
    description: Fatal XID errors
    condition: |
      event.event_type == "xid" && event.metrics.xid_code in [48, 79, 94, 95]
    result: unhealthy
  - name: hot
    condition: has(event.metrics.temperature) && event.metrics.temperature > 90
    result: degraded
  - name: pcie
    condition: event.system == "DCGM_HEALTH_WATCH_PCIE" && event.message.contains("replay")
    result: degraded
  - name: default
    condition: "true"
    result: healthy
"""
    found = parse_policy("p.yaml", text.encode())
    table = [
        (fault(), "unhealthy", "replace", "fatal-xid"),
        (fault(code=31), "healthy", "none", "default"),
        (fault("thermal", 0, metrics={"temperature": 95}), "degraded", "none", "hot"),
        (fault("thermal", 0, metrics={"temperature": 90.5}), "degraded", "none", "hot"),
        (fault("thermal", 0), "healthy", "none", "default"),
        (
            fault("pcie", 0, system="DCGM_HEALTH_WATCH_PCIE", message="a replay"),
            "degraded",
            "none",
            "pcie",
        ),
    ]
    for each, result, action, rule in table:
        judged = found.judge(each, {}, NOW)
        assert (judged.result, judged.action, judged.rule) == (result, action, rule)
    assert found.name == "mine"


def test_condition_that_raises_does_not_match_and_is_counted():
    """A missing or wrongly typed metric is no crash: the next rules decide."""
    found = policy(
        "  - {name: hot, condition: 'event.metrics.temperature > 90', result: degraded}\n"
    )
    for metrics in ({}, {"temperature": "hot"}, {"temperature": True}):
        judged = found.judge(fault(metrics=metrics), {}, NOW)
        assert (judged.rule, [rule for rule, _ in judged.raised]) == ("rest", ["hot"])


def test_policy_hash_covers_the_files_bytes():
    """One changed byte gives another hash."""
    assert policy("").hash != policy("  # a comment\n").hash
    assert len(policy("").hash) == 12


@pytest.mark.parametrize(
    ("seconds", "keys", "matched"),
    [
        ([0, 1, 2], "", [False, False, True]),
        ([0, 1, 700, 701, 702], "", [False, False, False, False, True]),
        ([0, 1, 2, 3], "", [False, False, True, True]),
        ([0, 1, 2, 60, 61, 120], ", apart: 1m", [False, False, False, False, False, True]),
    ],
)
def test_windowed_rule_matches_from_the_nth_fault(seconds, keys, matched):
    """Burst and repeat: `count` faults within `window`, at least `apart` from each other."""
    found = policy(
        "  - {name: w, condition: 'event.code == 31', result: degraded, count: 3, window: 10m"
        f"{keys}}}\n"
    )
    windows, results = {}, []
    for each in seconds:
        at = NOW + timedelta(seconds=each)
        judged = found.judge(fault(code=31, time=at), windows, at)
        windows = judged.windows
        results.append(judged.rule == "w")
    assert results == matched


def test_windows_are_per_gpu_or_per_node():
    """Two GPUs with one fault each are a repeat for the node, not for either GPU."""
    for per, matched in (("gpu", False), ("node", True)):
        found = policy(
            "  - {name: w, condition: 'event.code == 31', result: degraded, count: 2, "
            f"window: 10m, per: {per}}}\n"
        )
        first = found.judge(fault(code=31, gpu_index=0), {}, NOW)
        second = found.judge(fault(code=31, gpu_index=1), first.windows, NOW)
        assert (second.rule == "w") is matched


def test_late_delivery_is_no_burst():
    """Windows use the host's time: an hour of spooled faults delivered at once is no burst."""
    found = policy(
        "  - {name: w, condition: 'event.code == 31', result: degraded, count: 3, window: 1m}\n"
    )
    windows = {}
    for minutes in range(3):
        seen = NOW - timedelta(minutes=30 - 10 * minutes)
        judged = found.judge(fault(code=31, time=seen), windows, NOW)
        windows = judged.windows
    assert judged.rule == "rest"


_METRICS = st.dictionaries(
    st.sampled_from(
        ["temperature", "severity", "remap_failed", "remap_pending", "retired_pages", "pcie_width"]
    ),
    st.one_of(st.integers(-(2**53), 2**53), st.floats(), st.text(max_size=5), st.booleans()),
)


@given(
    kind=st.sampled_from(
        ["xid", "sxid", "thermal", "row_remap", "pcie", "nvlink", "page_retirement"]
    ),
    code=st.integers(0, 100_000),
    gpu=st.integers(-1, 15),
    subcode=st.text(max_size=20),
    metrics=_METRICS,
)
def test_default_policy_judges_any_fault(kind, code, gpu, subcode, metrics):
    """The default policy never raises, and an unknown code is never unhealthy."""
    judged = _DEFAULT_POLICY.judge(
        fault(kind, code, gpu_index=gpu, subcode=subcode, metrics=metrics), {}, NOW
    )
    assert judged.rule != "(none)"
    if judged.rule == "unknown":
        assert judged.result == "degraded"


_DEFAULT_POLICY = load_policy(Path(__file__).parents[2] / "config" / "health-policy.yaml")
