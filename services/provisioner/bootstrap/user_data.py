"""What a new node is handed at its birth: how to reach the bus, and credentials of its own.

The credentials are for the node's first minutes and hold for one question: a token for the key that
the node makes itself (`enrolling`). So what a cloud keeps of user data, and shows to everybody on
the machine, is worth nothing soon. Everything here derives from the instance's record, never from
chance: a launch that is asked for again is asked for with the same words.
"""

from datetime import timedelta
from pathlib import Path
from typing import Final

from schemas.instance_records import InstanceRecord
from schemas.settings import AgentSettings, NatsSettings
from services.bus.nats.nats_accounts import bootstrap_credentials, read_agent_keys
from services.primitives.errors import NavarchError, SetupError
from services.provisioner.instances.instance_decisions import type_of
from services.settings import placeholders
from services.settings.packaged_files import resource

REDACTED: Final = "[credentials]"
BOOTSTRAP_FILE: Final = "/etc/navarch/bootstrap.creds"
CREDENTIALS_FILE: Final = "/var/lib/navarch-agent/nats.creds"
"""On the node; the second is written by `navarch-agent enroll`."""


class UserDataError(NavarchError):
    """What a machine is to be told cannot be made; no provider can help that."""


class BootstrapTemplates:
    """Fills in what pools' commands and user data ask for."""

    def __init__(self, nats: NatsSettings, agent: AgentSettings, directory: Path) -> None:
        """`directory`: what templates' relative paths start from."""
        self._nats = nats
        self._agent = agent
        self._directory = directory

    def credentials(self, record: InstanceRecord) -> str:
        """The node's bootstrap credentials; empty on a bus that asks for none."""
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
                f"nats.agent_signing_file {nats.agent_signing_file} is of an older release: run "
                "`navarch nats-config` again, then `nats-server --signal reload`"
            )
        until = record.intended_at + timedelta(seconds=self._agent.enroll_within)
        return bootstrap_credentials(
            keys, record.pool, record.instance, record.token, record.intended_at, until
        )

    def values(self, record: InstanceRecord, asked: frozenset[str]) -> dict[str, str]:
        """What setup commands may ask for; credentials only where they do."""
        return {
            "ControlPlane": self._agent.bus_url or self._nats.url,
            "NodeID": record.instance,
            "Pool": record.pool,
            "Provider": record.provider,
            "Region": record.region
            or (record.offering.region if record.offering else record.launch.region),
            "InstanceType": type_of(record),
            "Credentials": self.credentials(record) if "Credentials" in asked else "",
        }

    def user_data(self, record: InstanceRecord) -> str:
        """What the machine is told at its first boot; HandoverError where that cannot be made."""
        named = record.launch.user_data
        if not named:
            return ""
        auto = named == placeholders.AUTO
        try:
            file = resource(placeholders.AUTO_TEMPLATE) if auto else self._directory / named
            template = file.read_text(encoding="utf-8")
            values = self.values(record, placeholders.names_in(template))
            values |= {
                "AgentEnvironment": self._environment(record, secured=bool(values["Credentials"])),
                "AgentUnit": resource(placeholders.UNIT).read_text(encoding="utf-8"),
                "AgentPackage": self._agent.package,
            }
        except (NavarchError, OSError, UnicodeDecodeError) as error:
            raise UserDataError(f"user_data of pool {record.pool}: {error}") from error
        # Checked with the configuration, and again, because the file may have changed since.
        setting = f"user_data {file}"
        if wrong := placeholders.problem(setting, template, placeholders.USER_DATA_NAMES):
            raise UserDataError(f"pool {record.pool}: {wrong}")
        told = placeholders.fill(template, values)
        size = len(told.encode())
        if size > placeholders.USER_DATA_BYTES_MAX:
            raise UserDataError(
                f"user_data of pool {record.pool} is {size} bytes long when filled in, and may be "
                f"{placeholders.USER_DATA_BYTES_MAX}: have it fetch what is long",
            )
        return told

    def _environment(self, record: InstanceRecord, *, secured: bool) -> str:
        """The agent's settings, a line each."""
        agent = self._agent
        lines = {
            "NATS_URL": agent.bus_url or self._nats.url,
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
        if secured:
            lines["NATS_BOOTSTRAP_FILE"] = BOOTSTRAP_FILE
            lines["NATS_CREDS_FILE"] = CREDENTIALS_FILE
        return "\n".join(f"NAVARCH_{name}={value}" for name, value in lines.items())


def redacted(text: str, secret: str) -> str:
    """A text without any line of the credentials, whatever stands around it."""
    for line in secret.splitlines():
        if line and not line.startswith(("-----", "------")):
            text = text.replace(line, REDACTED)
    return text
