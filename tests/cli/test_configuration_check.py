"""A configuration with which a service would not start is refused before anything starts."""

import re
import socket
from pathlib import Path

import pytest

from schemas.settings import HttpSettings, Setting
from services.cli.configuration_check import check_configuration
from services.primitives.errors import ConfigurationError
from services.runtime.process_http import check_port
from services.settings.drain_warnings import drain_warnings
from services.settings.settings_file import load_settings
from tests.support.inprocess import navarch

POOL = """
providers:
  owned: {type: ssh, machines: [{host: 10.0.0.1}]}
  local: {type: local}
pools:
  training:
    provider: PROVIDER
    instance_type: local-8gpu
    min_nodes: 0
    max_nodes: 1
"""
REFUSED = {
    "provider type": (
        "providers: {cloud: {type: gpc}}\n",
        "navarch.yaml:1: providers.cloud.type: no navarch.providers named 'gpc'",
    ),
    "secret of a provider": (
        "providers:\n  cloud:\n    type: lambda\n    api_key_file: /nowhere/key\n",
        "navarch.yaml:4: providers.cloud.api_key_file: /nowhere/key: No such file or directory",
    ),
    "strategy": (
        POOL.replace("PROVIDER", "local") + "    strategy: cheapest\n",
        "navarch.yaml:11: pools.training.strategy.type: no navarch.schedulers named 'cheapest'",
    ),
    "remediation": (
        POOL.replace("PROVIDER", "local") + "    health:\n      remediation: laddr\n",
        "navarch.yaml:12: pools.training.health.remediation.type: no navarch.remediators named",
    ),
    "autoscaler": (
        POOL.replace("PROVIDER", "local") + "    autoscaling: {type: reactiv}\n",
        "navarch.yaml:11: pools.training.autoscaling.type: no navarch.autoscalers named 'reactiv'",
    ),
    "autoscaler without a type": (
        POOL.replace("PROVIDER", "local") + "    autoscaling: {scale_up_at: 80}\n",
        "navarch.yaml:11: pools.training.autoscaling: `type` is missing; add it",
    ),
    "metrics source": (
        POOL.replace("PROVIDER", "local")
        + "    autoscaling: {type: queue}\n    metrics: {type: slurm}\n",
        "navarch.yaml:12: pools.training.metrics.type: no navarch.metrics_sources named 'slurm'",
    ),
    "alert channel": (
        "alerts:\n- type: log\n- type: pager\n",
        "navarch.yaml:3: alerts.1.type: no navarch.alert_channels named 'pager'",
    ),
    "policy file": (
        "fleet: a\nhealth_policy: policy.yaml\n",
        "navarch.yaml:2: health_policy: .*/policy.yaml does not exist; name the policy's file",
    ),
    "credentials of a service": (
        "nats:\n  creds_file: /nowhere/{service}.creds\n",
        "navarch.yaml:2: nats.creds_file: /nowhere/pool-manager.creds cannot be read: No such file",
    ),
    "TLS certificate": (
        "nats:\n  tls_ca_file: navarch.yaml\n",
        "navarch.yaml:2: nats.tls_ca_file: no usable PEM file",
    ),
    "drain that is never confirmed": (
        "notifier:\n  type: webhook\n  webhook:\n    cordon_url: http://s/cordon\n",
        "navarch.yaml:3: notifier.webhook: `drain_status_url` is missing.*{completes: at-once}",
    ),
    "plugin that cannot be constructed": (
        "alerts:\n- type: tests.cli.test_configuration_check:Broken\n",
        "navarch.yaml:2: alerts.0.type: .*:Broken cannot be constructed: no pager",
    ),
}


class Broken:
    """An alert channel whose constructor fails."""

    Options = Setting

    def __init__(self, **_: object) -> None:
        raise OSError("no pager")


def refusal(place: Path, text: str) -> str:
    file = place / "navarch.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as found:
        check_configuration(load_settings(file, {}), file)
    return str(found.value)


@pytest.mark.parametrize(("text", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_would_end_a_service_at_its_start_is_refused(
    text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence with file, line and key."""
    monkeypatch.chdir(tmp_path)
    assert re.match(re.escape(f"{tmp_path}/") + expected, refusal(tmp_path, text))


def test_what_ships_is_valid() -> None:
    """The example configuration, as it is."""
    file = Path(__file__).resolve().parents[2] / "config" / "navarch.yaml"
    check_configuration(load_settings(file, {}), file)


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    """With the key, before the service starts."""
    file = tmp_path / "navarch.yaml"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        file.write_text(f"http:\n  port: {port}\n")
        with pytest.raises(ConfigurationError, match=f":2: http.port: 127.0.0.1:{port} cannot be"):
            check_port(load_settings(file, {}).http, file)
    check_port(HttpSettings(port=port), file)


@pytest.mark.parametrize(
    ("provider", "notifier", "count"),
    [
        ("local", "", 0),
        ("owned", "", 1),
        ("owned", "notifier: {type: noop, accept_no_drain: true}", 0),
        ("owned", "notifier: {type: webhook, webhook: {drain_status_url: http://s/d}}", 0),
    ],
)
def test_real_machines_without_a_workload_system_are_warned_about(
    provider: str, notifier: str, count: int, tmp_path: Path
) -> None:
    """Until the operator accepts that nodes are terminated with their work."""
    file = tmp_path / "navarch.yaml"
    file.write_text(POOL.replace("PROVIDER", provider) + notifier)
    warnings = drain_warnings(load_settings(file, {}))
    assert len(warnings) == count
    assert all("accept_no_drain: true" in each for each in warnings)


@pytest.mark.parametrize(
    ("notifier", "pool", "expected"),
    [
        ("{type: slurm}", {}, []),
        ("{type: slurm}", {"checkpoint_timeout": "5m"}, []),
        (
            "{type: webhook, drain: {completes: when-called-back}}",
            {"checkpoint_timeout": "5m"},
            ["system webhook"],
        ),
        (
            "{type: webhook, drain: {completes: at-once}, checkpoint_url: 'http://a/b'}",
            {"checkpoint_timeout": "5m"},
            [],
        ),
        ("{type: noop, accept_no_drain: true}", {"checkpoint_timeout": "5m"}, ["system noop"]),
        ("{type: slurm}", {"checkpoint_timeout": "5m", "drain": "immediate"}, ["no effect with"]),
    ],
)
def test_a_checkpoint_that_nothing_can_request_is_warned_about(
    notifier: str, pool: dict[str, str], expected: list[str], tmp_path: Path
) -> None:
    """When the configuration is checked, and when the notifier starts."""
    file = tmp_path / "navarch.yaml"
    more = "".join(f"    {key}: {value}\n" for key, value in pool.items())
    file.write_text(POOL.replace("PROVIDER", "owned") + more + f"notifier: {notifier}\n")
    warnings = drain_warnings(load_settings(file, {}))
    assert len(warnings) == len(expected)
    assert all(part in each for part, each in zip(expected, warnings, strict=True))


def test_data_is_kept_beside_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the command runs; an absolute path stays."""
    (tmp_path / "a.yaml").write_text("fleet: a\n")
    (tmp_path / "b.yaml").write_text("data_dir: /var/lib/navarch\n")
    monkeypatch.chdir("/")
    assert load_settings(tmp_path / "a.yaml", {}).data_dir == str(tmp_path / ".navarch")
    assert load_settings(tmp_path / "b.yaml", {}).data_dir == "/var/lib/navarch"


async def test_the_commands_refuse_it_before_anything_starts(tmp_path: Path) -> None:
    """One sentence, exit code 1, and no data directory."""
    file = tmp_path / "navarch.yaml"
    file.write_text("alerts:\n- type: pager\n")
    for arguments in (("serve", "--config", file), ("config", "validate", file)):
        status, out, err = await navarch(*map(str, arguments))
        assert (status, out) == (1, "")
        assert err.startswith(f"navarch: {file}:2: alerts.0.type: no navarch.alert_chan")
        assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [file]
