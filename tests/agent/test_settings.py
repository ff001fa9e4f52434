"""Settings: every wrong one is refused with its place and the remedy, and exit status 2."""

import logging
import re
import socket
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from agent.__main__ import run
from agent.settings import AgentConfig, hostname_of, load
from schemas.duration import Duration, parse_duration
from schemas.enums import FaultKind
from services.primitives.errors import ConfigurationError

NAMES = {"NAVARCH_POOL": "training", "NAVARCH_NODE": "n1"}


def test_the_environment_wins_over_the_file(tmp_path: Path):
    """File, environment and defaults are laid over one another; durations are read."""
    file = tmp_path / "agent.yaml"
    file.write_text("pool: filed\nnode: n1\nheartbeat_ttl: 1m\ngpu_count: 8\n")
    config = load(
        {"NAVARCH_POOL": "training", "NAVARCH_SAMPLE_INTERVAL": "250ms", "NAVARCH_STATE_DIR": ""},
        file,
    )
    assert (config.pool, config.node, config.heartbeat_ttl) == ("training", "n1", 60)
    assert (config.sample_interval, config.gpu_count) == (0.25, 8)
    assert config.state_dir == "/var/lib/navarch-agent"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"NAVARCH_POOL": ""}, "NAVARCH_POOL: is not set"),
        ({"NAVARCH_NODE": "Node.7"}, "NAVARCH_NODE: node 'Node.7' is not a valid name"),
        ({"NAVARCH_POOL": "x" * 40}, "NAVARCH_POOL: pool"),
        ({"NAVARCH_SAMPLE_INTERVAL": "soon"}, "NAVARCH_SAMPLE_INTERVAL: 'soon' is not a duration"),
        ({"NAVARCH_SAMPLE_INTERVAL": "0s"}, "NAVARCH_SAMPLE_INTERVAL: must be more than 0"),
        ({"NAVARCH_HEARTBEAT_TTL": "1500ms"}, "NAVARCH_HEARTBEAT_TTL: 1.5s: the server counts"),
        ({"NAVARCH_HEARTBEAT_TTL": "5s"}, "NAVARCH_HEARTBEAT_INTERVAL: 10s is not below"),
        ({"NAVARCH_GPU_COUNT": "many"}, "NAVARCH_GPU_COUNT: "),
        ({"NAVARCH_GPU_COUNT": "-1"}, "NAVARCH_GPU_COUNT: must be 0 or more"),
        ({"NAVARCH_KMSG_ANY_FACILITY": "perhaps"}, "NAVARCH_KMSG_ANY_FACILITY: "),
        ({"NAVARCH_LOG_LEVEL": "loud"}, "NAVARCH_LOG_LEVEL: 'loud' is no level (known: DEBUG,"),
    ],
)
def test_a_wrong_variable_is_named(environment: dict[str, str], expected: str):
    """The error begins with the variable and says what would be right."""
    with pytest.raises(ConfigurationError) as caught:
        load(NAMES | environment)
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pool: [a]\n", "agent.yaml:1: pool: expected a single value"),
        ("\nsample_intervall: 1s\n", "agent.yaml:2: sample_intervall: not a setting"),
        ("node: n1\nheartbeat_ttl: long\n", "agent.yaml:2: heartbeat_ttl: 'long' is not"),
        ("log_level: loud\n", "agent.yaml:1: log_level: 'loud' is no level (known: DEBUG,"),
        ("- a\n", "agent.yaml:1: expected"),
        ("a: [\n", "agent.yaml:2: not valid YAML"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, expected: str):
    """The error names file and line."""
    file = tmp_path / "agent.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(NAMES, file)
    assert expected in str(caught.value)


def test_the_file_says_how_much_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The file's level holds where the environment gives none."""
    file = tmp_path / "agent.yaml"
    file.write_text("pool: training\nnode: n1\nlog_level: WARNING\n")
    monkeypatch.delenv("NAVARCH_LOG_LEVEL", raising=False)
    assert run(["--config", str(file), "enroll"]) == 0
    assert logging.WARNING == logging.getLogger().level
    monkeypatch.setenv("NAVARCH_LOG_LEVEL", "ERROR")
    assert run(["--config", str(file), "enroll"]) == 0
    assert logging.ERROR == logging.getLogger().level


def test_the_command_ends_with_status_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A wrong setting is one clear line, and exit status 2."""
    monkeypatch.setenv("NAVARCH_POOL", "training")
    monkeypatch.setenv("NAVARCH_NODE", "Bad.Name")
    assert run([]) == 2
    assert capsys.readouterr().err.startswith("navarch-agent: NAVARCH_NODE: node 'Bad.Name'")


def test_the_guide_knows_every_setting_and_every_fault():
    """docs/agent.md names each variable, its default where it is short, and each kind of fault."""
    guide = (Path(__file__).resolve().parents[2] / "docs" / "agent.md").read_text("utf-8")
    names = {f"NAVARCH_{field.name.upper()}" for field in msgspec.structs.fields(AgentConfig)}
    named = set(re.findall(r"`(NAVARCH_[A-Z_]+)`", guide))
    assert names - named == set()
    assert {kind for kind in get_args(FaultKind) if f"`{kind}`" not in guide} == set()
    rows = {line.split("`")[1]: line for line in guide.splitlines() if line.startswith("| `NAV")}
    for field in msgspec.structs.fields(AgentConfig):
        if isinstance(field.default, Duration):
            row = rows[f"NAVARCH_{field.name.upper()}"]
            assert parse_duration(row.split("|")[2].strip(" `")) == field.default


def test_an_agent_in_a_pod_reports_its_node_as_host_name():
    """Workload systems would otherwise look for a node with the pod's name."""
    in_pod = load({"NAVARCH_POOL": "gpu", "NAVARCH_KUBERNETES_NODE": "gpu-0.example"})
    assert (in_pod.node, hostname_of(in_pod)) == ("gpu-0-example", "gpu-0.example")
    alone = load({"NAVARCH_POOL": "gpu", "NAVARCH_NODE": "vm-1"})
    assert hostname_of(alone) == socket.gethostname()
