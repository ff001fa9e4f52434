"""Settings received over the bus import no module and name no file of a service's host."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Choice
from schemas.messages import encode
from schemas.pool_records import PoolRecord
from schemas.saga_params import LaunchSpec
from schemas.settings import (
    AgentSettings,
    HealthSpec,
    NatsSettings,
    PluginSettings,
    PoolSpec,
    Settings,
)
from services.pool_manager.autoscaling.autoscaler_plugins import Finder
from services.pool_manager.planner.remediator import AlertOnly
from services.pool_manager.remediator_plugins import Remediators
from services.primitives.errors import ConfigurationError
from services.provisioner.bootstrap.user_data import BootstrapTemplates, UserDataError
from services.provisioner.offerings.scheduler_plugins import Schedulers
from services.provisioner.offerings.strategies import Priority
from services.settings.settings_file import parse_settings, requested_pool
from services.settings.stored_pools import host_files, stored_spec

PLUGIN = "attacker_module:Plugin"
POOL: dict[str, Any] = {"provider": "fake", "instance_type": "t", "min_nodes": 0, "max_nodes": 1}
SPEC = PoolSpec(**POOL)
SETTINGS = Settings(providers={"fake": PluginSettings(type="fake")})
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module that could be imported, and must not be."""
    file = tmp_path / "attacker_module.py"
    file.write_text("class Plugin:\n    class Options:\n        pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    assert "attacker_module" not in sys.modules


REQUESTED: dict[str, dict[str, Any]] = {
    "autoscaling.type": {"autoscaling": {"type": "PLUGIN"}},
    "autoscaling.autoscalers.0.type": {
        "autoscaling": {"type": "composite", "autoscalers": [{"type": "PLUGIN"}]}
    },
    "autoscaling.autoscalers.0.autoscalers.0.type": {
        "autoscaling": {
            "type": "composite",
            "autoscalers": [{"type": "composite", "autoscalers": [{"type": "PLUGIN"}]}],
        }
    },
    "strategy.type": {"strategy": "PLUGIN"},
    "health.remediation.type": {"health": {"remediation": "PLUGIN"}},
    "metrics": {"metrics": {"type": "PLUGIN"}},
    "ssh_private_key_path": {"ssh_private_key_path": "/root/.ssh/id_rsa"},
    "user_data": {"user_data": "/etc/shadow"},
}
"""The key that is refused, and the request."""


@pytest.mark.parametrize("key", REQUESTED)
@pytest.mark.parametrize("nested", [False, True], ids=["pool", "scaling"])
def test_request_with_a_module_or_a_file_is_refused(key: str, *, nested: bool) -> None:
    """The error names the key and what to do, also where the older `scaling:` section hides it."""
    given = msgspec.json.decode(
        msgspec.json.encode(REQUESTED[key]).replace(b"PLUGIN", PLUGIN.encode())
    )
    raw = {**POOL, "scaling": given} if nested else {**POOL, **given}
    with pytest.raises(ConfigurationError) as error:
        requested_pool("extra", raw, SETTINGS, Path())
    assert f"pools.extra.{key}" == error.value.key
    assert "configuration" in error.value.problem


def test_defaults_of_the_configuration_apply_to_requested_pools(tmp_path: Path) -> None:
    """An operator with access to the configuration allows a file for requests."""
    (tmp_path / "boot.yaml").write_text("#cloud-config\npackages: []\n")
    own = {"ssh_private_key_path": "/keys/fleet", "user_data": "boot.yaml"}
    settings = msgspec.structs.replace(SETTINGS, defaults=own)

    spec = requested_pool("extra", dict(POOL), settings, tmp_path)

    assert ("/keys/fleet", "boot.yaml") == (spec.ssh_private_key_path, spec.user_data)


def test_record_with_a_module_imports_nothing() -> None:
    """A pool's record may have been written by a service with other rights."""
    named = PluginSettings(type=PLUGIN)
    spec = msgspec.structs.replace(
        SPEC, autoscaling={"type": PLUGIN}, health=HealthSpec(remediation=named), strategy=named
    )
    record = PoolRecord(name="extra", spec=spec, desired=0)

    assert isinstance(Remediators({}, None).of(record), AlertOnly)
    assert Finder(SETTINGS, None).of(record) is None


def test_launch_with_a_module_uses_the_pool_order() -> None:
    """The provisioner reads the strategy from the saga's log."""
    found = Schedulers({}, None).of(Choice(offers=(), strategy=PLUGIN)).plugin
    assert isinstance(found, Priority)


def test_record_names_no_source_of_metrics() -> None:
    """The source of a requested pool is the one in `defaults:`; else there is none."""
    spec = msgspec.structs.replace(
        SPEC,
        autoscaling={"type": "queue"},
        metrics={"type": "http", "url": "http://169.254.169.254"},
    )
    found = Finder(SETTINGS, None).of(PoolRecord(name="extra", spec=spec, desired=0))
    assert found is not None
    assert found.source is None


def test_launch_names_no_file_of_the_host(tmp_path: Path) -> None:
    """The provisioner renders only templates that its own configuration names."""
    secret = tmp_path / "secret"
    secret.write_text("#!the private key\n")
    templates = BootstrapTemplates(NatsSettings(), AgentSettings(), tmp_path, host_files(SETTINGS))
    launch = LaunchSpec(fleet="f", provider="fake", instance_type="t", user_data=str(secret))
    record = InstanceRecord(
        pool="extra", instance="n", provider="fake", token="t", launch=launch, intended_at=NOW
    )
    with pytest.raises(UserDataError, match="is not named in this provisioner's configuration"):
        templates.user_data(record)


def test_secrets_of_a_pool_are_not_stored() -> None:
    """Only a metrics source's type is stored; `${NAME}` of other plugins stays a reference."""
    text = """
    providers: {fake: {}}
    pools:
      a:
        provider: fake
        instance_type: t
        min_nodes: 0
        max_nodes: 1
        autoscaling: {type: queue, jobs_per_node: "${CANARY}"}
        metrics: {type: http, url: "https://u:canary-1@h/canary-2?token=canary-3"}
        health: {remediation: {type: ladder, tries: "${CANARY}"}}
        strategy: {type: cost, note: "${CANARY}"}
    """
    spec = parse_settings("navarch.yaml", text, {"CANARY": "canary-4"}).pools["a"]
    stored = encode(PoolRecord(name="a", spec=stored_spec(spec), desired=0)).decode()

    assert "canary-" not in stored
    assert 3 == stored.count("${CANARY}")
