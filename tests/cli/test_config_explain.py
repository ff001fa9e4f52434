"""`navarch config explain` and `navarch config schema` are run."""

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from services.settings.setting_origins import explain
from services.settings.settings_file import read_configuration
from services.settings.yaml_document import read_document
from tests.support.inprocess import navarch

TEXT = """\
fleet: ours
defaults: {cooldown: 7m}
providers:
  local: {gpu_count: 4}
pools:
  - name: web
    provider: local
    instance_type: x
    scaling:
      min_nodes: 1
      max_nodes: 2
    strategy: cost
notifier:
  type: webhook
  webhook: {drain_status_url: "https://jobs.example.com/secret-path"}
"""
ROOT = Path(__file__).resolve().parents[2]


async def test_explain_prints_each_value_and_its_origin(tmp_path: Path) -> None:
    """Each value's origin is a line, an older place, the pools' defaults, or a default.

    No secret is printed.
    """
    file = tmp_path / "navarch.yaml"
    file.write_text(TEXT)
    status, out, err = await navarch("config", "explain", str(file))
    assert (status, err) == (0, "")
    assert "secret-path" not in out
    lines = out.splitlines()
    for expected in (
        'fleet: "ours"  # line 1',
        "providers.local.gpu_count: 4  # line 4",
        "pools.web.min_nodes: 1  # line 10, as pools.0.scaling.min_nodes",
        "pools.web.cooldown: 7m  # line 2, as defaults.cooldown",
        "pools.web.drain_timeout: 1h  # default",
        "pools.web.strategy.type: cost  # line 12, as pools.0.strategy.type",
        "notifier.webhook.drain_status_url: (secret)  # line 15",
        "notifier.webhook.timeout: 30s  # default",
    ):
        assert expected in lines, out
    _, given, _ = await navarch("config", "explain", str(file), "--given", "--under", "pools.web")
    assert [line.split(":")[0] for line in given.splitlines()] == [
        f"pools.web.{key}"
        for key in (
            *("provider", "instance_type", "min_nodes", "max_nodes"),
            *("strategy.type", "cooldown"),
        )
    ]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("fleet: a", 0),
        ("fleeet: a", 1),
        ("pools: {a: {provider: local, drain_timeout: 5m, max_nodes: 2}}", 0),
        ("pools: {a: {max_nodes: many}}", 1),
        ("pools: {a: {autoscaling: {type: queue, jobs_per_node: 0}}}", 1),
        ("providers: {x: {type: gcp, root_gb: 1}}", 1),
        ("alerts: [{type: log, min_severity: none}]", 1),
        ("defaults: {drain: never}", 1),
    ],
)
async def test_the_schema_finds_what_is_wrong(text: str, wrong: int) -> None:
    """The schema is valid, and knows keys, types, bounds and plugins' options."""
    _, out, _ = await navarch("config", "schema")
    schema = json.loads(out)
    Draft202012Validator.check_schema(schema)
    errors = list(Draft202012Validator(schema).iter_errors(yaml.safe_load(text)))
    assert bool(errors) == bool(wrong), errors


def test_a_variable_is_named() -> None:
    """A variable of the environment counts more than the file."""
    environment = {"NAVARCH_NATS_URL": "nats://elsewhere:4222"}
    configuration = read_configuration(read_document("a.yaml", "nats: {url: x}"), environment)
    [found] = [e for e in explain(configuration, environment, {}) if e.path == ("nats", "url")]
    assert found[1:] == ('"nats://elsewhere:4222"', "NAVARCH_NATS_URL")


async def test_the_shipped_configuration_fits_the_schema() -> None:
    """An editor has nothing to report about it."""
    _, out, _ = await navarch("config", "schema")
    value = yaml.safe_load((ROOT / "config" / "navarch.yaml").read_text())
    assert list(Draft202012Validator(json.loads(out)).iter_errors(value)) == []
