"""`navarch policy`, as operators and scripts run it."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.conditions.declared import CONDITIONS, Declared
from schemas import subjects
from schemas.messages import encode
from schemas.node_events import FACTS, Fault, NodeEvent, Registered, Verdict
from schemas.pool_records import PoolRecord, pool_key
from schemas.settings import HealthSpec, PoolSpec
from schemas.topology import POOLS
from services.bus.nats.nats_bus import NatsBus
from services.cli.app import app
from services.cli.bus_client import BusFleet
from services.cli.commands.policy_commands import _differences_text, _replay
from services.health_monitor.rules.policy_file import parse_policy
from services.primitives.errors import ConfigurationError
from tests.support.settling import arriving

NOW = datetime.now(UTC)
STRICT = b"""
version: 1
rules:
  - {name: mmu, condition: event.code == 31, result: unhealthy, action: replace}
  - {name: kept, condition: event.code == 79, result: degraded}
  - {name: engine, condition: event.code == 13, result: unhealthy, action: reset_gpu}
  - {name: rest, condition: true, result: healthy}
"""


def run(*arguments: str) -> tuple[int, str]:
    """Run the command in this process; return its exit code and what it printed."""
    result = CliRunner().invoke(app, ["policy", *arguments], catch_exceptions=False)
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("arguments", "verdict", "action", "rule"),
    [
        (("--xid", "79"), "unhealthy", "replace", "gpu-off-the-bus"),
        (("--xid", "43"), "healthy", "none", "xid-ignore"),
        (("--xid", "48"), "unhealthy", "reset_gpu", "memory-uncorrectable"),
        (("--xid", "9999"), "degraded", "inspect", "unknown"),
        (("--kind", "fallen_off_bus"), "unhealthy", "replace", "gpu-off-the-bus"),
        (("--kind", "thermal", "--metric", "temperature=60"), "healthy", "none", None),
    ],
)
def test_explain_says_verdict_action_rule_and_why(
    arguments: tuple[str, ...], verdict: str, action: str, rule: str | None
) -> None:
    """The verdict is the same in JSON and in the table."""
    code, out = run("explain", *arguments, "-o", "json")
    answer = json.loads(out)
    assert (0, verdict, action) == (code, answer["verdict"], answer["action"])
    assert rule in (None, answer["rule"])
    assert answer["why"]
    _, page = run("explain", *arguments)
    for each in (verdict, action, answer["rule"], answer["why"], answer["policy"]):
        assert each in page


@pytest.mark.parametrize("row", CONDITIONS, ids=lambda row: row.name)
def test_explain_shows_how_a_condition_is_declared_and_what_is_made_of_it(row: Declared) -> None:
    """The default policy rates each as the agent does, and the page has the whole declaration."""
    code, out = run("explain", "--condition", row.name, "-o", "json")
    answer = json.loads(out)
    found = answer["declared"]
    assert (code, found["condition"], found["level"]) == (0, row.name, row.scope)
    assert (found["severity"], found["remedy"]) == (answer["verdict"], answer["action"])
    _, page = run("explain", "--condition", row.name)
    for each in (row.words, found["read"], found["begins"], found["ends"], answer["rule"]):
        assert each in page


@pytest.mark.parametrize(
    ("delay", "said"),
    [("", ""), ("delay: 90s, ", "counts    once it has held for 1m30s")],
)
def test_explain_says_what_a_policy_makes_of_a_condition(
    tmp_path: Path, delay: str, said: str
) -> None:
    """A policy of one's own may rate a condition by its name, and delay it."""
    file = tmp_path / "own.yaml"
    name = """condition: 'event.condition == "pcie-width"'"""
    file.write_text(
        f"version: 1\nrules:\n"
        f"  - {{name: own, {name}, {delay}result: unhealthy, action: replace}}\n"
        "  - {name: rest, condition: true, result: healthy}\n"
    )
    _, page = run("explain", "--condition", "pcie-width", "--policy", str(file))
    assert re.search(r"verdict +unhealthy\naction|verdict +unhealthy\ncounts", page)
    assert ("counts" in page) == bool(said)
    assert said in page
    _, other = run("explain", "--condition", "rdma-devices", "--policy", str(file))
    assert re.search(r"verdict +healthy", other)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--condition", "pcie-widht"), "did you mean pcie-width?"),
        (("--condition", "x"), "known: driver-failing,"),
        (("--condition", "pcie-width", "--xid", "79"), "name one fault"),
    ],
)
def test_a_condition_that_is_not_there_is_refused(arguments: tuple[str, ...], said: str) -> None:
    """The error names what is near, or every condition."""
    result = CliRunner().invoke(app, ["policy", "explain", *arguments])
    assert result.exit_code
    assert said in f"{result.output} {result.exception}"


@pytest.mark.parametrize(
    ("code", "explained"),
    [
        ("13", "where another node of the same job has it too within 1m"),
        ("45", "has it too within 1m, or anything in the 30m before"),
        ("79", ""),
        ("63", ""),
    ],
)
def test_explain_names_the_effect_in_a_job(code: str, explained: str) -> None:
    """`(one job)` in a node's history is explained with the policy."""
    _, page = run("explain", "--xid", code)
    assert bool(explained) == ("in a job" in page)
    assert explained in " ".join(page.split())


@pytest.mark.parametrize(
    ("arguments", "subcode", "rule"),
    [
        (("--sxid", "22012"), "fatal", "switch-fatal-said"),
        (("--sxid", "22012"), "Fatal", "switch-fatal-said"),
        (("--sxid", "22012"), "FATAL", "switch-fatal-said"),
        (("--sxid", "12026"), "Non-fatal", "switch-inspect"),
        (("--xid", "74"), "Sympathetic", "nvlink-sympathetic"),
        (("--xid", "154"), "Node Reboot Required", "recovery-reboot"),
        (("--kind", "nvlink"), "Down", "nvlink-down"),
    ],
)
def test_a_subcode_is_read_as_the_line_writes_it(
    arguments: tuple[str, ...], subcode: str, rule: str
) -> None:
    """The log says `Fatal` and `Non-fatal`; the policy's words are `fatal` and `nonfatal`."""
    _, out = run("explain", *arguments, "--subcode", subcode, "-o", "json")
    assert rule == json.loads(out)["rule"]


@pytest.mark.parametrize(
    ("arguments", "subcode", "known"),
    [
        (("--sxid", "22012"), "fatl", "'fatl' is no subcode of SXID 22012; known: nonfatal,"),
        (("--xid", "79"), "fatal", "'fatal' is no subcode of XID 79; known: none"),
        (("--kind", "thermal"), "hott", "known: hw_slowdown, hot, memory-hot, near-slowdown"),
    ],
)
def test_an_unknown_subcode_is_refused(
    arguments: tuple[str, ...], subcode: str, known: str
) -> None:
    """An unknown subcode would silently be judged as none."""
    code, out = run("explain", *arguments, "--subcode", subcode)
    assert 2 == code
    assert known in " ".join(re.sub(r"[│╭╮╰╯─]", " ", out).split())


@pytest.mark.parametrize(
    "arguments",
    [(), ("--xid", "79", "--sxid", "1"), ("--kind", "warmth"), ("--xid", "79", "--metric", "hot")],
)
def test_an_invalid_fault_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    """Exit code 2, as for every wrong option."""
    assert 2 == run("explain", *arguments)[0]


def test_explain_takes_the_configured_policy(tmp_path: Path) -> None:
    """The policy beside the configuration file, as the health-monitor of it would."""
    (tmp_path / "p.yaml").write_bytes(STRICT)
    (tmp_path / "navarch.yaml").write_text("health_policy: p.yaml\n")
    _, out = run("explain", "--xid", "31", "--config", str(tmp_path / "navarch.yaml"), "-o", "json")
    assert ("unhealthy", "mmu") == (json.loads(out)["verdict"], json.loads(out)["rule"])


def test_check_accepts_a_valid_policy_and_locates_an_error(tmp_path: Path) -> None:
    """A valid policy gives one line; an invalid one an error with file, line and key."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_bytes(STRICT)
    bad.write_bytes(STRICT.replace(b"event.code == 13", b"event.kode == 13"))
    code, out = run("check", str(good), "-o", "json")
    assert (0, 4) == (code, json.loads(out)["rules"])
    with pytest.raises(ConfigurationError, match=rf"{bad}:6: rules.2.condition: .* no 'kode'"):
        run("check", str(bad))


async def test_a_policy_is_replayed_over_stored_faults(bus: NatsBus) -> None:
    """One node more and one fewer; the pool's `unhealthy_after` counts. Nothing is published."""
    spec = PoolSpec(
        provider="p",
        instance_type="t",
        min_nodes=0,
        max_nodes=9,
        health=HealthSpec(unhealthy_after=2),
    )
    patient = PoolRecord(name="patient", spec=spec, desired=0)
    await bus.create(POOLS, pool_key("patient"), encode(patient))
    for event in (
        *_begun("training", "a"),
        _fault("training", "a", "f-mmu", 31),
        *_begun("training", "b"),
        _fault("training", "b", "f-bus", 79),
        _verdict("training", "b", "f-bus"),
        *_begun("patient", "c"),
        _fault("patient", "c", "f-engine", 13),
    ):
        subject = subjects.node_event(event.pool, event.node, FACTS[type(event)])
        await bus.publish(subject, encode(event), msg_id=event.id)
    await arriving(bus)
    policy = parse_policy("strict.yaml", STRICT)
    before = await bus.last_sequence("EVENTS")
    found, faults = await _replay(BusFleet(bus), policy, NOW - timedelta(hours=1), "")
    text = _differences_text(found, faults, "1h")
    assert [("f-mmu", "unhealthy"), ("f-bus", "degraded"), ("f-engine", "degraded")] == [
        (each.cause, each.would) for each in found
    ]
    assert "3 differences over 3 faults since 1h: 1 nodes more and 1 fewer" in text
    one_pool, _ = await _replay(BusFleet(bus), policy, NOW - timedelta(hours=1), "patient")
    assert ["f-engine"] == [each.cause for each in one_pool]
    assert ([], 0) == await _replay(BusFleet(bus), policy, NOW + timedelta(hours=200), "")
    assert before == await bus.last_sequence("EVENTS")


async def test_faults_before_the_span_count_but_are_not_compared(bus: NatsBus) -> None:
    """A node that was unhealthy before the span is no difference in it."""
    for event in (
        *_begun("training", "b"),
        _fault("training", "b", "f-1", 31),
        _verdict("training", "b", "f-1"),
    ):
        subject = subjects.node_event(event.pool, event.node, FACTS[type(event)])
        await bus.publish(subject, encode(event), msg_id=event.id)
        await arriving(bus)
    start = await bus.last("EVENTS", subjects.node_event("training", "b", "verdict"))
    assert start is not None
    late = _fault("training", "b", "f-2", 31)
    await bus.publish(subjects.node_event("training", "b", "fault"), encode(late), msg_id=late.id)
    await arriving(bus)
    found, faults = await _replay(BusFleet(bus), parse_policy("s", STRICT), start.time, "")
    assert ([], 1) == (found, faults)


def _begun(pool: str, node: str) -> tuple[NodeEvent, NodeEvent]:
    """A node's registration and its first verdict."""
    about = {"time": NOW, "pool": pool, "node": node, "instance": node}
    first = Registered(id=f"registered-{node}", boot_id="b", **about)
    return first, Verdict(id=f"verdict-{first.id}", cause=first.id, status="healthy", **about)


def _fault(pool: str, node: str, identity: str, code: int) -> NodeEvent:
    return Fault(id=identity, time=NOW, pool=pool, node=node, kind="xid", code=code, gpu_index=0)


def _verdict(pool: str, node: str, cause: str) -> NodeEvent:
    return Verdict(
        id=f"verdict-{cause}",
        time=NOW,
        pool=pool,
        node=node,
        status="unhealthy",
        action="replace",
        previous="healthy",
        cause=cause,
    )
