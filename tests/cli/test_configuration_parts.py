"""Parts of a configuration that are checked together: nested plugins, ports, sizes, keys."""

import re
from pathlib import Path

import pytest

from services.cli.configuration_check import (
    check_configuration,
    check_file,
    check_served_ports,
    warnings_of,
)
from services.primitives.errors import ConfigurationError
from services.settings.settings_file import load_settings

NESTED = """\
providers: {local: {}}
pools:
  a:
    provider: local
    instance_type: x
    min_nodes: 0
    max_nodes: 4
    autoscaling:
      type: composite
      autoscalers:
        - {type: queu}
        - {type: reactive, scale_up_at: 900}
        - {type: scheduled, schedule: [{start: 99 * * * *, duration: 1h, nodes: 1}]}
        - {type: predictive, fallback: {type: qeue}}
    metrics:
      type: combined
      sources:
        - {type: slrm}
        - {type: prometheus}
"""


def test_each_wrong_part_of_an_autoscaler_and_of_a_source_is_reported(tmp_path: Path) -> None:
    """Not the first alone, and nothing that only follows from another."""
    file = tmp_path / "navarch.yaml"
    file.write_text(NESTED)
    with pytest.raises(ConfigurationError) as found:
        check_file(file, {})
    errors = [(each.line, each.key.partition("a.")[2]) for each in found.value.errors]
    assert errors == [
        (11, "autoscaling.autoscalers.0.type"),
        (12, "autoscaling.autoscalers.1.scale_up_at"),
        (13, "autoscaling.autoscalers.2.schedule.0"),
        (14, "autoscaling.autoscalers.3.fallback.type"),
        (18, "metrics.sources.0.type"),
        (19, "metrics.sources.1"),
    ]
    assert "did you mean 'queue'?" in found.value.errors[0].problem


@pytest.mark.parametrize(
    ("gateway", "key", "other"),
    [
        ("{port: 8471}", "gateway.port", "http.port"),
        ("{probes_port: 8471}", "gateway.probes_port", "http.port"),
        ("{port: 8472, probes_port: 8472}", "gateway.probes_port", "gateway.port"),
    ],
)
def test_ports_that_serve_would_listen_on_twice_are_refused(
    tmp_path: Path, gateway: str, key: str, other: str
) -> None:
    """Services on hosts apart may have the same."""
    file = tmp_path / "navarch.yaml"
    file.write_text(f"http: {{port: 8471}}\ngateway: {gateway}\n")
    settings = load_settings(file, {})
    with pytest.raises(ConfigurationError, match=rf":2: {key}: \d+ is `{other}` too"):
        check_served_ports(settings, file)
    check_configuration(settings, file)
    assert any(key in each for each in warnings_of(settings, file))


def test_ports_that_are_free_or_of_none_differ(tmp_path: Path) -> None:
    """Port 0 is another each time."""
    file = tmp_path / "navarch.yaml"
    for gateway in ("{port: 0, probes_port: 0}", "{port: 8472}", "{port: 0, probes_port: null}"):
        file.write_text(f"http: {{port: 0}}\ngateway: {gateway}\n")
        check_served_ports(load_settings(file, {}), file)


ONE_POOL = """\
providers: {local: {}}
pools:
  a:
    provider: local
    instance_type: local-8gpu
    min_nodes: 0
    max_nodes: 1
"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("autoscaling: {type: scheduled, schedule: [PERIOD]}", "schedule has max_nodes 90"),
        (
            "autoscaling: {type: composite, autoscalers: [{type: scheduled, schedule: [PERIOD]}]}",
            "schedule has max_nodes 90",
        ),
        ("autoscaling: {type: queue}", "pool a: the autoscaler `queue` counts waiting jobs"),
        (
            "setup_commands: [agent]\n    ssh_private_key_path: keys/none",
            "ssh_private_key_path .*/keys/none cannot be read here",
        ),
    ],
)
def test_what_a_pool_will_not_do_is_warned_about(more: str, expected: str, tmp_path: Path) -> None:
    """Sizes outside of its bounds are named, and a set-up without its key."""
    period = "{start: 0 9 * * *, duration: 9h, min_nodes: 1, max_nodes: 90}"
    file = tmp_path / "navarch.yaml"
    file.write_text(f"{ONE_POOL}    {more.replace('PERIOD', period)}\n")
    settings = load_settings(file, {})
    check_configuration(settings, file)
    [warning] = warnings_of(settings, file)
    assert re.search(expected, warning)


def test_a_condition_that_no_agent_reports_is_warned_of(tmp_path: Path) -> None:
    """A rule with a mistyped name never matches; a level of the policy itself has any name."""
    policy = tmp_path / "policy.yaml"
    names = ("pcie-width", "pcie-widht", "own-level", "nvlink-of-tomorrow")
    rules = "".join(
        f'  - {{name: r{number}, condition: event.condition == "{name}", result: degraded}}\n'
        for number, name in enumerate(names)
    )
    policy.write_text(
        "version: 1\nlevels:\n  - {name: own-level, reading: temperature_celsius, "
        "above: 90, for: 1m, kind: thermal}\n"
        f"rules:\n{rules}  - {{name: rest, condition: true, result: healthy}}\n"
    )
    file = tmp_path / "navarch.yaml"
    file.write_text("health_policy: policy.yaml\n")
    found = [each for each in warnings_of(load_settings(file, {}), file) if "condition" in each]
    assert len(found) == 2
    assert "rule r1 names the condition 'pcie-widht'" in found[0]
    assert "did you mean pcie-width?" in found[0]
    assert "rule r3 names the condition 'nvlink-of-tomorrow'" in found[1]
