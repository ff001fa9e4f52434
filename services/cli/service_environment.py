"""The environment of each service: what it needs of that of `navarch serve`, and no more.

`navarch serve` is often started from an administrator's shell, whose variables may hold secrets of
other programs. A service gets general variables, those that the configuration names, and those that
the SDKs of its job read.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from schemas.permissions import GATEWAY
from schemas.settings import Settings
from services.gateway.access_tokens import VARIABLE
from services.provisioner.provider_client.cloud_credentials import stored_variable
from services.settings.references import named_variables

PROVISIONER: Final = "provisioner"
COMMON: Final = frozenset(
    (
        *("HOME", "LANG", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER"),
        *("VIRTUAL_ENV", "SSL_CERT_DIR", "SSL_CERT_FILE"),
        *("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"),
        *("all_proxy", "https_proxy", "http_proxy", "no_proxy"),
    )
)
COMMON_PREFIXES: Final = ("LC_", "NAVARCH_", "OTEL_", "PYTHON")
KUBERNETES: Final = ("KUBECONFIG", "KUBERNETES_")
PREFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    PROVISIONER: (
        *("AWS_", "AZURE_", "CLOUDSDK_", "COREWEAVE_", "GCE_", "GOOGLE_", "LAMBDA_"),
        *("CC", "DOCKER_", "SSH_AUTH_SOCK", "VAULT_", *KUBERNETES),
    ),
    "notifier": ("RAY_", "SLURM_", *KUBERNETES),
}
"""Service -> how the variables of its SDKs and tools begin."""


class ConfiguredVariables(NamedTuple):
    """The variables that a configuration names."""

    everywhere: frozenset[str] = frozenset()
    """`${NAME}`: every service reads the whole configuration."""
    provisioner: frozenset[str] = frozenset()
    """`…_env: NAME` of providers, and those of stored credentials."""


def service_environment(
    service: str, base: Mapping[str, str], configured: ConfiguredVariables
) -> dict[str, str]:
    """What a service gets of `base`. Pure."""
    known = COMMON | configured.everywhere
    if service != GATEWAY:
        base = {name: value for name, value in base.items() if name != VARIABLE}
    if service == PROVISIONER:
        known |= configured.provisioner
    prefixes = (*COMMON_PREFIXES, *PREFIXES.get(service, ()))
    return {
        name: value for name, value in base.items() if name in known or name.startswith(prefixes)
    }


def configured_variables(settings: Settings, text: str) -> ConfiguredVariables:
    """The variables that a configuration names, of which `text` is the file."""
    return ConfiguredVariables(frozenset(named_variables(text)), frozenset(_of_providers(settings)))


def _of_providers(settings: Settings) -> Iterator[str]:
    for name, plugin in settings.providers.items():
        yield from (str(v) for k, v in plugin.options.items() if k.endswith("_env"))
        yield stored_variable(name, Path(settings.data_dir))
