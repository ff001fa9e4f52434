"""The user data of a new node has the address of the bus, and credentials of its own.

The credentials are valid for the node's first minutes and one request: a token for the key that the
node creates itself (`enrollment_endpoint`). So user data, which a cloud stores and shows to every
process on the machine, soon contains nothing of value. Everything is derived from the instance's
record, without randomness: a repeated launch request is identical.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from schemas.instance_records import InstanceRecord
from schemas.saga_params import WORKLOAD_NAME
from schemas.settings import AgentSettings, NatsSettings
from services.bus.nats.connection_options import SERVICE
from services.bus.nats.nats_accounts import bootstrap_credentials, read_agent_keys
from services.primitives.errors import NavarchError, SetupError
from services.provisioner.instances.instance_decisions import type_of
from services.settings import placeholders
from services.settings.packaged_files import resource
from services.settings.plain_values import package_problem, plain_problem
from services.settings.setting_paths import resolve_path
from services.settings.setup_validation import user_data_digest

REDACTED: Final = "[credentials]"
BOOTSTRAP_FILE: Final = "/etc/navarch/bootstrap.creds"
AUTHORITY_FILE: Final = "/etc/navarch/bus-ca.pem"
CREDENTIALS_FILE: Final = "/var/lib/navarch-agent/nats.creds"
"""On the node; the last is written by its agent."""

SOURCES: Final = {
    "ControlPlane": "agent.bus_url, agent.region_bus_urls or nats.url",
    "NodeID": "the name of the node",
    "Pool": "the name of the pool",
    "Provider": "provider",
    "Region": "region",
    "InstanceType": "instance_type",
    "WorkloadName": "the node's name of workload_names",
    "AgentPackage": "agent.package",
}
"""Name of one line in a template -> the key that its value is from."""
ENVIRONMENT_NAMES: Final = frozenset({"ControlPlane", "NodeID", "Pool"})
"""Names whose values the agent's environment has, too."""


class UserDataError(NavarchError):
    """User data cannot be rendered; another offering would not help."""


class BootstrapTemplates:
    """Renders the placeholders of setup commands and user data."""

    def __init__(
        self,
        nats: NatsSettings,
        agent: AgentSettings,
        directory: Path,
        host_files: frozenset[str] = frozenset(),
        of_type: Callable[[InstanceRecord], dict[str, str]] = lambda _: {},
    ) -> None:
        """`directory`: the base of templates' relative paths.

        `host_files`: the files of this host that the configuration names. A launch is received over
        the bus and may name no others.
        `of_type`: the agent's settings that follow from a node's instance type.
        """
        self._nats = nats
        self._agent = agent
        self._directory = directory
        self._host_files = host_files
        self._of_type = of_type

    def require_configured(self, file: str, setting: str) -> None:
        """Refuse a file of this host that its configuration does not name."""
        if file not in self._host_files:
            raise SetupError(
                f"{setting} {file} is not named in this provisioner's configuration; write it "
                "under `defaults:` or `pools:` there and restart the provisioner"
            )

    def credentials(self, record: InstanceRecord, valid_seconds: float = 0.0) -> str:
        """Return the node's bootstrap credentials; empty on a bus without authentication.

        `valid_seconds`: how long they hold; 0: as `agent.enroll_within` says.
        """
        nats = self._nats
        if not nats.agent_signing_file:
            if nats.creds_file or nats.nkey_file or nats.user:
                raise SetupError(
                    "new nodes need credentials and nats.agent_signing_file is not set for the "
                    "provisioner: `navarch nats-config` writes it"
                )
            return ""
        keys = read_agent_keys(Path(nats.agent_signing_file))
        if not keys.bootstrap_seed:
            raise SetupError(
                f"nats.agent_signing_file {nats.agent_signing_file} is from an older release: run "
                "`navarch nats-config` again, then `nats-server --signal reload`"
            )
        valid = valid_seconds or self._agent.enroll_within
        until = record.intended_at + timedelta(seconds=valid)
        return bootstrap_credentials(
            keys, record.pool, record.instance, record.token, record.intended_at, until
        )

    def values(self, record: InstanceRecord, names: frozenset[str]) -> dict[str, str]:
        """Return the values for setup commands; credentials only if `names` has them."""
        found = {
            "ControlPlane": self.bus_url(record),
            "NodeID": record.instance,
            "Pool": record.pool,
            "Provider": record.provider,
            "Region": region_of(record),
            "InstanceType": type_of(record),
            "WorkloadName": record.launch.labels.get(WORKLOAD_NAME, record.instance),
            "Credentials": self.credentials(record) if "Credentials" in names else "",
            "BusAuthority": self.authority() if "BusAuthority" in names else "",
        }
        require_plain(found, names | ENVIRONMENT_NAMES)
        return found

    def bus_url(self, record: InstanceRecord) -> str:
        """Return where a node reaches the bus."""
        agent = self._agent
        return agent.region_bus_urls.get(region_of(record)) or agent.bus_url or self._nats.url

    def authority(self) -> str:
        """Return the certificate authority of the bus; empty where the machine's own are used."""
        file = self._nats.tls_ca_file.replace(SERVICE, "provisioner")
        return Path(file).read_text(encoding="ascii") if file else ""

    def digest(self, named: str) -> str:
        """Return the digest of a launch's unfilled template; empty: it cannot be read."""
        return user_data_digest(named, self._directory)

    def user_data(self, record: InstanceRecord) -> str:
        """Return the user data for the machine's first boot, or raise UserDataError."""
        named = record.launch.user_data
        if not named:
            return ""
        auto = named == placeholders.AUTO
        try:
            if not auto:
                self.require_configured(named, "template")
            template_file = Path(resolve_path(named, self._directory))
            file = resource(placeholders.AUTO_TEMPLATE) if auto else template_file
            template = file.read_text(encoding="utf-8")
            names = placeholders.names_in(template)
            values = self.values(record, names)
            values |= {
                "AgentEnvironment": self._environment(record, secured=bool(values["Credentials"])),
                "AgentUnit": resource(placeholders.UNIT).read_text(encoding="utf-8"),
                "AgentPackage": self._agent.package,
            }
            require_plain(values, names)
        except (NavarchError, OSError, UnicodeDecodeError) as error:
            raise UserDataError(f"user_data of pool {record.pool}: {error}") from error
        # Checked again, because the file may have changed since the configuration was read.
        setting = f"user_data {file}"
        if wrong := placeholders.problem(setting, template, placeholders.USER_DATA_NAMES):
            raise UserDataError(f"pool {record.pool}: {wrong}")
        rendered = placeholders.fill(template, values)
        size = len(rendered.encode())
        if size > placeholders.USER_DATA_BYTES_MAX:
            raise UserDataError(
                f"user_data of pool {record.pool} has {size} bytes when rendered, and the limit is "
                f"{placeholders.USER_DATA_BYTES_MAX}: let it fetch long parts",
            )
        return rendered

    def _environment(self, record: InstanceRecord, *, secured: bool) -> str:
        """Return the agent's settings, one per line."""
        lines = self.agent_settings(record)
        if self._nats.tls_ca_file:
            lines["NAVARCH_NATS_TLS_CA_FILE"] = AUTHORITY_FILE
        if secured:
            lines["NAVARCH_NATS_BOOTSTRAP_FILE"] = BOOTSTRAP_FILE
            lines["NAVARCH_NATS_CREDS_FILE"] = CREDENTIALS_FILE
        return "\n".join(f"{name}={value}" for name, value in lines.items())

    def agent_settings(self, record: InstanceRecord) -> dict[str, str]:
        """Return the agent's settings by their variables, without files of the node."""
        agent = self._agent
        lines = {
            "NATS_URL": self.bus_url(record),
            "POOL": record.pool,
            "NODE": record.instance,
            "INSTANCE": record.instance,
            "HEARTBEAT_INTERVAL": f"{agent.heartbeat_interval:g}s",
            "HEARTBEAT_TTL": f"{agent.heartbeat_ttl:g}s",
            "SAMPLE_INTERVAL": f"{agent.sample_interval:g}s",
            "TELEMETRY_INTERVAL": f"{agent.telemetry_interval:g}s",
        }
        if record.launch.gpu_count:
            lines["GPU_COUNT"] = str(record.launch.gpu_count)
        lines |= self._of_type(record)
        return {f"NAVARCH_{name}": value for name, value in lines.items()}


def require_plain(values: Mapping[str, str], names: frozenset[str]) -> None:
    """Raise SetupError if a value of these names could be read as more than one word."""
    for name, key in SOURCES.items():
        check = package_problem if name == "AgentPackage" else plain_problem
        if name in names and (wrong := check(values.get(name, ""))):
            raise SetupError(f"{{{{.{name}}}}}: {key} {wrong}")


def region_of(record: InstanceRecord) -> str:
    """The provider's region of an instance, as far as it is known."""
    offered = record.offering.region if record.offering else record.launch.region
    return record.region or offered


def redact(text: str, secret: str) -> str:
    """Return the text with every line of the credentials replaced."""
    for line in secret.splitlines():
        if line and not line.startswith(("-----", "------")):
            text = text.replace(line, REDACTED)
    return text
