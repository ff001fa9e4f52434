"""Starts what `navarch serve` needs: bus, gateway, and the environment of services.

The first start makes them, later ones keep them. What is stored belongs to one of the server's
accounts, and is moved where this start has another than the one before: with or without `--open`,
or with new keys.
"""

import os
import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from schemas.account_rules import Account
from schemas.gateway_settings import GatewaySettings
from schemas.permissions import GATEWAY, POOL_ADMIN, user_inbox
from schemas.settings import Settings
from services.bus.nats.credentials_file import ROLE_TAG, role_and_key
from services.bus.nats.embedded_server import OPEN_ACCOUNT, file_limit, move_store
from services.bus.nats.nats_accounts import AgentKeys, BusKeys, account_key, credentials
from services.cli.bus_certificates import AUTHORITY, CERTIFICATE, SERVER, BusCertificates
from services.cli.bus_keys import UnusableKeyError
from services.cli.fleet_discovery import CREDS_VARIABLE
from services.cli.nats_config_files import (
    ACCOUNTS,
    REVOCATION_FILE,
    SIGNING_FILE,
    is_signed_by,
    role_keys,
    server_hosts,
    write_accounts,
)
from services.fleet_client.local_user import token_of, user_name
from services.gateway.access_tokens import VARIABLE, new_token
from services.gateway.gateway_start import GATEWAY_KEYS, PORT_VARIABLE, gateway_settings
from services.primitives.atomic_files import write_secret
from services.primitives.errors import ConfigurationError, SetupError
from services.provisioner.provider_client.cloud_credentials import stored_variable
from services.runtime.http_listener import listen
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
SERVED_FILE: Final = "gateway.token"
NO_GATEWAY: Final = (
    "no dashboard and no HTTP API: install this package again with its extra `gateway`"
)
FOLDER: Final = "bus"
OWNER_FILE: Final = "owner.creds"
SIGNING_VARIABLE: Final = "NAVARCH_NATS_AGENT_SIGNING_FILE"
REVOCATION_VARIABLE: Final = "NAVARCH_NATS_REVOCATION_FILE"
AUTHORITY_VARIABLE: Final = "NAVARCH_NATS_TLS_CA_FILE"
ENCRYPTED: Final = "tls"
USUAL_PORT: Final = 8642
"""Of the dashboard and the HTTP API where the configuration names none: links to it stay valid."""
PORT: Final = 4222
"""Of an address that states none."""
SIGNER: Final = "provisioner"
"""The service that makes and revokes the credentials of nodes."""


class ConfiguredVariables(NamedTuple):
    """The variables that a configuration names.

    `navarch serve` is often started from an administrator's shell, whose variables may hold secrets
    of other programs. A service gets general variables, those that the configuration names, and
    those that the SDKs of its job read.
    """

    everywhere: frozenset[str] = frozenset()
    """`${NAME}`: every service reads the whole configuration."""
    provisioner: frozenset[str] = frozenset()
    """`…_env: NAME` of providers, and those of stored credentials."""


def service_environment(
    service: str, base: Mapping[str, str], configured: ConfiguredVariables
) -> dict[str, str]:
    """Return what a service gets of `base`. Pure."""
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


def has_gateway() -> bool:
    """Return whether what the gateway needs is installed; it is an extra of the package."""
    return find_spec("litestar") is not None


def token_file(settings: Settings) -> Path:
    """Return where the token is that serve makes."""
    return Path(settings.data_dir).resolve() / SERVED_FILE


class GatewayPort(NamedTuple):
    """The port of a served gateway, which keeps it, so that its clients find it again."""

    port: str
    remark: str = ""
    """Why it is not the usual one."""


def gateway_port(settings: Settings, environment: Mapping[str, str]) -> GatewayPort:
    """Return the configured port, or the usual one; one that is free where that is taken."""
    own = gateway_settings(settings, environment)
    if own.port or environment.get(PORT_VARIABLE):
        return GatewayPort(_free_port(own))
    try:
        return GatewayPort(_free_port(msgspec.structs.replace(own, port=USUAL_PORT)))
    except ConfigurationError:
        found = _free_port(own)
    return GatewayPort(
        found,
        f"port {USUAL_PORT} of {own.host} is taken, perhaps by another navarch serve: this "
        f"dashboard has port {found} until it ends; gateway.port gives it one of its own",
    )


def _free_port(settings: GatewaySettings) -> str:
    with listen(settings.host, settings.port, GATEWAY_KEYS, None) as free:
        return str(free.getsockname()[1])


def gateway_variables(
    settings: Settings, environment: Mapping[str, str], port: str, *, is_open: bool
) -> dict[str, str]:
    """The variables that the gateway gets beside those of every service."""
    own = gateway_settings(settings, environment)
    found = {PORT_VARIABLE: port}
    file = token_file(settings)
    if own.tokens or settings.authenticators or is_open:
        file.unlink(missing_ok=True)
        return found
    try:
        token = file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        token = new_token(os.urandom)
        write_secret(file, token + "\n")
    return {**found, VARIABLE: token}


def public_address(settings: Settings) -> tuple[str, int]:
    """Return host and port at which machines reach a served bus; no host: they do not. Pure.

    An `agent.bus_url` of another scheme than `tls` is another bus, or this machine's alone.
    """
    split = urlsplit(settings.agent.bus_url)
    if split.scheme != ENCRYPTED or not split.hostname or "," in settings.agent.bus_url:
        return "", -1
    return split.hostname, split.port or PORT


class ServedBus(msgspec.Struct, frozen=True):
    """The bus of a fleet's data directory; `is_open`: it lets every client in."""

    data_dir: Path
    is_open: bool
    host: str = ""
    """By which machines reach it (`agent.bus_url`), encrypted; empty: only this machine does."""
    port: int = -1

    @property
    def directory(self) -> Path:
        """Keys, credentials and accounts, as `navarch nats-config` writes them."""
        return (self.data_dir / FOLDER).resolve()

    @property
    def config(self) -> Path | None:
        """The part of the server's configuration that says who may do what."""
        return None if self.is_open else self.directory / ACCOUNTS

    @property
    def certificate(self) -> Path | None:
        """The server's certificate with its key; None: only this machine reaches the bus."""
        return self.directory / CERTIFICATE if self.host else None

    @property
    def authority_file(self) -> str:
        """The authority of that certificate."""
        return str(self.directory / AUTHORITY) if self.host else ""

    @property
    def operator_file(self) -> str:
        """Credentials of the user who serves the fleet; empty: none are needed."""
        return "" if self.is_open else str(self.directory / OWNER_FILE)

    def variables(self, service: str) -> dict[str, str]:
        """Return where a service finds its credentials."""
        if self.is_open:
            return {}
        found = {CREDS_VARIABLE: str(self.directory / "creds" / f"{service}.creds")}
        if self.host:
            found[AUTHORITY_VARIABLE] = self.authority_file
        if service == SIGNER:
            found[SIGNING_VARIABLE] = str(self.directory / SIGNING_FILE)
            found[REVOCATION_VARIABLE] = str(self.directory / REVOCATION_FILE)
        return found

    def prepare(self, store: Path, fleet: str, at: datetime) -> str:
        """Write what is missing, and move what is `store`d to the account; say so if it was moved.

        The server must not run.
        """
        account = OPEN_ACCOUNT
        if not self.is_open:
            keys = self._keys(fleet, at)
            self._write_owner(role_keys(POOL_ADMIN, keys), at)
            if self.host:
                hosts = server_hosts([self.host], [])
                BusCertificates(self.directory).write(fleet, {SERVER: hosts}, at)
            account = keys.accounts[account_key(Account.FLEET)]
        if not move_store(store, account):
            return ""
        return (
            "the fleet's streams were moved to the open account: credentials protect them no longer"
            if self.is_open
            else "the fleet's streams were moved to its own account: only credentials open them now"
        )

    def command(self, url: str) -> str:
        """Return how the `nats` command reaches the bus."""
        if self.is_open:
            return f"nats --server {url}"
        file = self.operator_file
        box = user_inbox(role_and_key(file)[1])
        authority = f" --tlsca {shlex.quote(self.authority_file)}" if self.host else ""
        return f"nats --server {url}{authority} --creds {shlex.quote(file)} --inbox-prefix {box}"

    def _write_owner(self, keys: AgentKeys, at: datetime) -> None:
        """Write the owner's credentials, which do not expire: the keys are beside them."""
        file = Path(self.operator_file)
        if not is_signed_by(keys, file):
            made = credentials(token_of(user_name()), keys, at, tags=(ROLE_TAG + POOL_ADMIN,))
            write_secret(file, made)

    def _keys(self, fleet: str, at: datetime) -> BusKeys:
        """Write what is missing; SetupError where a key of an earlier start is unusable."""
        try:
            return write_accounts(self.directory, fleet, at, file_limit()).keys()
        except UnusableKeyError as error:
            raise SetupError(
                f"{error.file} is {error.problem}: restore it from a backup, or remove "
                f"{self.directory}; the next start then makes new keys, keeps everything that is "
                "stored, and refuses the credentials that you gave to others"
            ) from error
