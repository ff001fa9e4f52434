"""A configuration with which a service would not start is refused before anything starts."""

import re
import socket
from pathlib import Path

import pytest

from schemas.instance_type_catalogue import InstanceTypes
from schemas.settings import PROVIDER_PLUGINS, HttpSettings, PluginSettings, Setting
from services.cli.configuration_check import check_configuration, check_file, data_dir_problem
from services.primitives.errors import ConfigurationError
from services.runtime.http_listener import check_port
from services.settings.drain_warnings import cordons_gpus, drain_warnings
from services.settings.instance_type_file import load_instance_types
from services.settings.offering_warnings import offering_warnings
from services.settings.plugin_loader import load_plugin
from services.settings.settings_file import load_settings, parse_settings, requested_pool
from services.settings.stored_pools import host_files
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
REQUESTED = {"provider": "local", "instance_type": "x", "min_nodes": 0, "max_nodes": 1}
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
        + "    autoscaling: {type: queue}\n    metrics: {type: lsf}\n",
        "navarch.yaml:12: pools.training.metrics.type: no navarch.metrics_sources named 'lsf'",
    ),
    "alert channel": (
        "alerts:\n- type: log\n- type: pager\n",
        "navarch.yaml:3: alerts.1.type: no navarch.alert_channels named 'pager'",
    ),
    "policy file": (
        "fleet: a\nhealth_policy: policy.yaml\n",
        "navarch.yaml:2: health_policy: .*/policy.yaml does not exist; name the policy's file",
    ),
    "fleet's name": ("fleet: a b/c\n", "navarch.yaml:1: fleet: fleet 'a b/c' is not a valid name"),
    "address of the bus": (
        "fleet: a\nnats: {url: 'http://localhost:4222'}\n",
        "navarch.yaml:2: nats.url: is no address of nats-server: write nats://host:4222",
    ),
    "address of the agents' bus": (
        "fleet: a\nagent: {bus_url: 'nats://a:1,https://b'}\n",
        "navarch.yaml:2: agent.bus_url: is no address of nats-server",
    ),
    "trace collector": (
        "fleet: a\ntracing: {otlp_endpoint: 'collector:4317'}\n",
        "navarch.yaml:2: tracing.otlp_endpoint: is not a URL",
    ),
    "heartbeats that end before the next": (
        "agent:\n  heartbeat_interval: 30s\n  heartbeat_ttl: 10s\n",
        "navarch.yaml:3: agent.heartbeat_ttl: 10s is not above heartbeat_interval 30s",
    ),
    "heartbeats in parts of a second": (
        "agent: {heartbeat_ttl: 2500ms, heartbeat_interval: 1s}\n",
        "navarch.yaml:1: agent.heartbeat_ttl: must be whole seconds",
    ),
    "older heartbeats": (
        "server: {heartbeat_interval: 30s, heartbeat_timeout: 10s}\n",
        "navarch.yaml:1: agent.heartbeat_ttl: 10s is not above",
    ),
    "no interval": (
        "agent:\n  sample_interval: 0s\n",
        "navarch.yaml:2: agent.sample_interval: must be more than 0",
    ),
    "a folder for a policy": (
        "fleet: a\nhealth_policy: .\n",
        "navarch.yaml:2: health_policy: .* is not a file",
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
    """The refusal is one sentence with file, line and key."""
    monkeypatch.chdir(tmp_path)
    lines = refusal(tmp_path, text).splitlines()
    assert any(re.match(re.escape(f"{tmp_path}/") + expected, line) for line in lines), lines


def test_what_ships_is_valid() -> None:
    """The example configuration, as it is."""
    file = Path(__file__).resolve().parents[2] / "config" / "navarch.yaml"
    check_configuration(load_settings(file, {}), file)


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    """A port in use is refused with its key, before the service starts."""
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
    """The warning remains until the operator accepts that nodes are terminated with their work."""
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


GPU = {"health": "{cordon_scope: gpu}"}


@pytest.mark.parametrize(
    ("notifier", "pool", "expected"),
    [
        ("{type: kubernetes, gpu_cordon: device-taint}", GPU, ""),
        ("{type: kubernetes, gpu_cordon: label}", GPU, ""),
        ("{type: exec, command: [cordon], cordons_gpus: true}", GPU, ""),
        ("{type: webhook, drain: {completes: at-once}, cordon_gpus_url: 'http://a/b'}", GPU, ""),
        ("{type: kubernetes}", GPU, "system kubernetes"),
        ("{type: exec, command: [cordon]}", GPU, "system exec"),
        ("{type: webhook, drain: {completes: at-once}}", GPU, "system webhook"),
        ("{type: slurm}", GPU, "system slurm: its notifier cannot keep work off a single GPU"),
        ("{type: slurm}", {}, ""),
        ("{type: ray}", GPU, "system ray"),
        (
            "{type: kubernetes, gpu_cordon: label}",
            GPU | {"budget": "{max_quarantined: 0}"},
            "quarantines no node",
        ),
        (
            "{type: kubernetes, gpu_cordon: label}",
            {"health": "{cordon_scope: gpu, auto_replace: false}"},
            "quarantines no node",
        ),
    ],
)
def test_a_cordon_of_gpus_that_nothing_does_is_warned_about(
    notifier: str, pool: dict[str, str], expected: str, tmp_path: Path
) -> None:
    """Nodes are cordoned whole there, and the health-monitor judges them so."""
    file = tmp_path / "navarch.yaml"
    more = "".join(f"    {key}: {value}\n" for key, value in pool.items())
    file.write_text(POOL.replace("PROVIDER", "owned") + more + f"notifier: {notifier}\n")
    settings = load_settings(file, {})
    warnings = drain_warnings(settings)
    assert len(warnings) == bool(expected)
    assert all(expected in each for each in warnings)
    (spec,) = settings.pools.values()
    assert cordons_gpus(settings, spec) is (pool != {} and not expected)


def test_data_is_kept_beside_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data's place does not depend on where the command runs; an absolute path stays."""
    (tmp_path / "a.yaml").write_text("fleet: a\n")
    (tmp_path / "b.yaml").write_text("data_dir: /var/lib/navarch\n")
    monkeypatch.chdir("/")
    assert load_settings(tmp_path / "a.yaml", {}).data_dir == str(tmp_path / ".navarch")
    assert load_settings(tmp_path / "b.yaml", {}).data_dir == "/var/lib/navarch"


MISTAKES = """\
nats:
  replica: 3
  creds_file: /nowhere/{service}.creds
http: {port: 70000}
providers:
  cloud: {type: gpc}
  local: {type: local, gpu_cont: 8}
pools:
  one:
    provider: lokal
    instance_type: x
    min_nodes: 3
    max_nodes: 2
    windows:
      - {name: a, kind: freeze, start: soon, duration: 1h}
  two:
    provider: local
    instance_type: x
    min_node: 1
    max_nodes: many
    autoscaling: {type: reactiv}
    metrics: {type: htp}
    windows: [{name: b, kind: freeze, duration: 1h}, {name: c, kind: freze, start: "", duration: x}]
  three:
    provider: local
    instance_type: x
    min_nodes: 0
    max_nodes: 1
    strategy: cheapest
    health: {remediation: laddr}
    autoscaling: {type: queue, jobs: 1}
    metrics: {type: http}
notifier: {type: slrum}
alerts: [{type: pager}, {type: slack}]
health_policy: nowhere.yaml
"""
WRONG = [
    (2, "nats.replica", "did you mean `replicas`"),
    (4, "http.port", "must be 65535 or less"),
    (6, "providers.cloud.type", "no navarch.providers named 'gpc'"),
    (7, "providers.local.gpu_cont", "did you mean `gpu_count`"),
    (10, "pools.one.provider", ""),
    (12, "pools.one.min_nodes", "3 is above max_nodes 2"),
    (15, "pools.one.windows.0.start", ""),
    (19, "pools.two.min_node", "did you mean `min_nodes`"),
    (20, "pools.two.max_nodes", "must be a whole number"),
    (21, "pools.two.autoscaling.type", "no navarch.autoscalers named"),
    (22, "pools.two.metrics.type", "no navarch.metrics_sources named"),
    (23, "pools.two.windows.0", "`start` is missing"),
    (23, "pools.two.windows.1.kind", "Invalid enum value 'freze'"),
    (23, "pools.two.windows.1.duration", "is not a duration"),
    (29, "pools.three.strategy.type", "no navarch.schedulers named"),
    (30, "pools.three.health.remediation.type", "no navarch.remediators named"),
    (31, "pools.three.autoscaling.jobs", "unknown key"),
    (32, "pools.three.metrics", "`url` is missing"),
    (33, "notifier.type", "no navarch.notifiers named"),
    (34, "alerts.0.type", "no navarch.alert_channels named"),
    (34, "alerts.1", ""),
    (35, "health_policy", "does not exist"),
]


def test_all_that_is_wrong_is_reported_at_once(tmp_path: Path) -> None:
    """All errors are in the file's order: of its sections, plugins and the files that it names."""
    file = tmp_path / "navarch.yaml"
    file.write_text(MISTAKES)
    with pytest.raises(ConfigurationError) as found:
        check_file(file, {})
    errors = [(each.line, each.key, each.problem) for each in found.value.errors]
    for line, key, text in WRONG:
        assert [text in each[2] for each in errors if each[:2] == (line, key)] == [True], (
            key,
            errors,
        )
    assert [each[0] for each in errors] == sorted(each[0] for each in errors)
    assert len(errors) == len(WRONG)


def test_paths_are_beside_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the command runs, in settings and in plugins' options."""
    monkeypatch.setenv("HOME", "/home/ops")
    monkeypatch.chdir("/")
    file = tmp_path / "navarch.yaml"
    file.write_text(
        "nats: {creds_file: 'bus/{service}.creds'}\n"
        "defaults: {ssh_private_key_path: keys/fleet}\n"
        + POOL.replace("PROVIDER", "local")
        + "    ssh_private_key_path: ~/.ssh/fleet\n"
        + "  other: {provider: local, instance_type: x, min_nodes: 0, max_nodes: 1}\n"
    )
    settings = load_settings(file, {})
    assert settings.nats.creds_file == f"{tmp_path}/bus/{{service}}.creds"
    assert settings.pools["training"].ssh_private_key_path == "/home/ops/.ssh/fleet"
    assert settings.pools["other"].ssh_private_key_path == f"{tmp_path}/keys/fleet"
    asked = requested_pool("more", {**REQUESTED}, settings, tmp_path)
    assert asked.ssh_private_key_path in host_files(settings)
    plugin = PluginSettings(type="lambda", options={"api_key_file": "key"})
    _, options = load_plugin(PROVIDER_PLUGINS, plugin, file)
    assert options.api_key_file == f"{tmp_path}/key"


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        ("{provider: local, instance_type: whatever}", ""),
        ("{provider: gcp, instance_type: a3-highgpu-8g, zones: [us-central1-a]}", ""),
        ("{provider: gcp, instance_type: h100-8x, zones: [us-central1-a]}", ""),
        ("{provider: gcp, instance_type: a3-highgpu-8g}", "launches nothing without a zone"),
        (
            "{provider: gcp, instance_type: a3-higpu-8g, zones: [us-central1-a]}",
            "is not in the catalogue, .* did you mean a3-highgpu-8g",
        ),
        (
            "{providers: [{name: lambda}, {name: gcp, zones: [z]}], instance_type: ours}",
            "'ours' of provider lambda is not in the catalogue",
        ),
        (
            "{provider: gcp, instance_type: h100-8x, zones: [z], market: [reserved, spot]}",
            "provider gcp names no reserved capacity, .* set its `reservation`$",
        ),
        (
            "{provider: lambda, instance_type: gpu_8x_h100_sxm5, market: [on-demand, reserved]}",
            "provider lambda names no reserved capacity, .* take the market out$",
        ),
        ("{provider: held, instance_type: h100-8x, zones: [z], market: reserved}", ""),
    ],
)
def test_what_a_provider_will_not_launch_is_warned_about(pool: str, expected: str) -> None:
    """A type that the catalogue does not have, and a place that the provider needs."""
    held = "held: {type: gcp, project: p, reservation: h100}"
    text = (
        f"providers: {{local: {{}}, lambda: {{}}, gcp: {{project: p}}, {held}}}\npools: {{a: POOL}}"
    )
    text = text.replace("POOL", pool.replace("{p", "{min_nodes: 0, max_nodes: 1, p"))
    settings = parse_settings("navarch.yaml", text, {})
    found = "; ".join(offering_warnings(settings, load_instance_types(InstanceTypes(), None)))
    assert bool(found) == bool(expected)
    assert re.search(expected, found)


async def test_validate_prints_notes_and_warnings(tmp_path: Path) -> None:
    """Each note and warning is printed once, with its lines."""
    file = tmp_path / "navarch.yaml"
    text = "providers: {local: {}}\n" + POOL[POOL.index("pools:") :].replace("PROVIDER", "local")
    file.write_text("server: {address: ':1'}\n" + text)
    status, out, err = await navarch("config", "validate", str(file))
    assert (status, err) == (0, "")
    assert out.startswith("NOTE: line 1: `server.address` has no effect")
    assert out.endswith(f"{file} is valid: 1 pools, 1 providers\n")


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


def test_a_data_dir_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """A folder that exists or can be created is valid; a file in its place or above it is not."""
    (tmp_path / "file").touch()
    assert not data_dir_problem(tmp_path)
    assert not data_dir_problem(tmp_path / "new" / "deep")
    for each in (tmp_path / "file", tmp_path / "file" / "deep"):
        assert data_dir_problem(each) == f"{tmp_path}/file is not a directory"
    assert not (tmp_path / "new").exists()
