"""The variables that `navarch serve` passes to its services."""

from pathlib import Path

from services.cli.served_bus import (
    ConfiguredVariables,
    configured_variables,
    service_environment,
)
from services.provisioner.provider_client.cloud_credentials import (
    SecretSource,
    StoredCredentials,
    store_credentials,
)
from services.settings.settings_file import load_settings

BASE = dict.fromkeys(
    (
        *("PATH", "HOME", "LC_ALL", "PYTHONPATH", "NAVARCH_LOG_LEVEL", "https_proxy"),
        *("AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "LAMBDA_API_KEY"),
        *("KUBECONFIG", "SLURM_CONF", "GITHUB_TOKEN", "DATABASE_URL", "PAGER_KEY"),
        *("MY_CLOUD_KEY", "STORED_KEY", "NAVARCH_AUTH_TOKEN"),
    ),
    "v",
)
GENERAL = {"PATH", "HOME", "LC_ALL", "PYTHONPATH", "NAVARCH_LOG_LEVEL", "https_proxy"}
CONFIG = """
# a pool that is requested later: ${MY_POOL_KEY}
providers:
  local: {}
  one: {type: lambda, api_key_env: MY_CLOUD_KEY}
  two: {type: lambda}
notifier: {type: webhook, webhook: {cordon_url: "http://h/${PAGER_KEY}"}}
"""


def test_a_service_gets_what_it_needs(tmp_path: Path) -> None:
    """The variables of clouds go to the provisioner alone, those of other programs nowhere."""
    file = tmp_path / "navarch.yaml"
    file.write_text(f"data_dir: {tmp_path}\n{CONFIG}")
    stored = SecretSource(kind="env", where="STORED_KEY", option="api_key_file")
    store_credentials(tmp_path, "two", StoredCredentials(secret=stored), "")
    settings = load_settings(file, BASE)
    configured = configured_variables(settings, file.read_text())
    found = {
        name: set(service_environment(name, BASE, configured)) - GENERAL
        for name in ("pool-manager", "notifier", "provisioner")
    }

    assert {"MY_POOL_KEY", "PAGER_KEY"} == configured.everywhere
    assert {"PAGER_KEY"} == found["pool-manager"]
    assert {"PAGER_KEY", "KUBECONFIG", "SLURM_CONF"} == found["notifier"]
    clouds = {"AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "LAMBDA_API_KEY"}
    own = {"PAGER_KEY", "KUBECONFIG", "MY_CLOUD_KEY", "STORED_KEY"}
    assert own | clouds == found["provisioner"]
    assert set(service_environment("metrics", BASE, ConfiguredVariables())) == GENERAL
    gateway = set(service_environment("gateway", BASE, ConfiguredVariables()))
    assert gateway == GENERAL | {"NAVARCH_AUTH_TOKEN"}
