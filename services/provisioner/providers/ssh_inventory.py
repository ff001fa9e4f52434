"""Reads options of the provider `ssh`, and its machines.

The machines are in the options, or in an inventory file. The file is read again whenever it has
changed, so that machines are removed and added without a restart. Errors name file, line and key.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import asyncssh
import msgspec

from schemas.duration import Duration
from schemas.settings import FilePath, Setting
from services.primitives.errors import ConfigurationError
from services.provisioner.provider_client.provider import ProvisionRequest
from services.provisioner.providers.power_control import PowerOptions
from services.settings.yaml_document import Document, convert, read_document

MACHINES_MAX: Final = 2_000
FILE_BYTES_MAX: Final = 4 * 1_048_576
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


class InventoryMachine(Setting, frozen=True, kw_only=True):
    """Describes one machine of an inventory."""

    host: str
    """Name or address at which its SSH server answers."""
    name: str = ""
    """Its display name; empty: its host. Claims are recognised by it, so it must not change."""
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 22
    """Of its SSH server."""
    user: str = ""
    """Empty: the provider's, as for `key_file`."""
    key_file: FilePath = ""
    """Private key of the login; empty: the provider's."""
    host_key: str = ""
    """`ssh-ed25519 AAAA…`; empty: the first key is pinned."""
    type: str
    """The instance type that pools name."""
    gpu_count: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    """0: unknown, and not compared."""
    region: str = ""
    """Where it is, for pools that name regions."""
    zone: str = ""
    """The same for zones."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels of its own."""
    bmc: str = ""
    """Address of its controller, `host` or `host:port`; empty: its power cannot be switched."""
    bmc_system: str = ""
    """Redfish ID of its system, where the controller has several."""

    @property
    def display_name(self) -> str:
        """The name that operators see."""
        return self.name or self.host

    @property
    def address(self) -> str:
        """Return the machine's address, with the port unless it is SSH's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.host if self.port == 22 else f"{host}:{self.port}"  # noqa: PLR2004 - SSH's port

    def fits(self, request: ProvisionRequest) -> bool:
        """Return whether the machine fits the request; an empty region or zone matches any."""
        return (
            self.type == request.instance_type
            and (self.region in ("", request.region) or not request.region)
            and (self.zone in ("", request.zone) or not request.zone)
            and (not self.gpu_count or self.gpu_count >= request.gpu_count)
        )


class SshOptions(Setting, frozen=True, kw_only=True):
    """Configures `providers: {racks: {type: ssh, inventory: machines.yaml, key_file: …}}`."""

    machines: tuple[InventoryMachine, ...] = ()
    inventory: FilePath = ""
    """A file with `machines:` instead; read again when it changes."""
    user: str = "root"
    """The login user, on machines that name none."""
    key_file: FilePath = ""
    """The private key, on the provisioner's host."""
    sudo: bool = True
    """Claim as root, where `user` is another: `sudo -n` must be allowed."""
    claim_folder: str = "/var/lib/navarch"
    """Folder of the claim on each machine; `~/…`: in the user's home."""
    wipe_command: str = ""
    """Runs before a machine is free again; it stays claimed until this succeeds."""
    reboot_command: str = "systemctl reboot"
    """Empty: machines cannot be rebooted."""
    bmc: PowerOptions | None = None
    """Login of the machines' controllers, by which they are switched off and on."""
    connect_timeout: Duration = Duration(10)
    """Time limit of one connection attempt."""
    command_timeout: Duration = Duration(20)
    """Time limit of one command."""
    rest: Duration = Duration(30)
    """How long surveys skip a machine that could not be reached."""


class _File(Setting, frozen=True, kw_only=True):
    machines: tuple[InventoryMachine, ...]


class SshInventory:
    """Reads the machines of one provider."""

    def __init__(self, name: str, machines: Sequence[InventoryMachine], file: str) -> None:
        """Use these machines or those of a file; ConfigurationError for neither or both."""
        self._where = f"providers.{name}"
        self._file = Path(file) if file else None
        self._read_at = (0, 0)
        if bool(machines) == bool(file):
            raise ConfigurationError(
                "name the machines either under `machines`, or in the file that `inventory` names",
                key=self._where,
            )
        if len(machines) > MACHINES_MAX:
            raise ConfigurationError(f"more than {MACHINES_MAX}", key=f"{self._where}.machines")
        for number, key, problem in _problems(machines):
            raise ConfigurationError(problem, key=f"{self._where}.machines.{number}.{key}")
        self._machines = tuple(machines)
        self.machines()

    def machines(self) -> tuple[InventoryMachine, ...]:
        """Return all machines; a changed file is read again."""
        if self._file is not None:
            try:
                found = self._file.stat()
                if (found.st_mtime_ns, found.st_ino) != self._read_at:
                    if found.st_size > FILE_BYTES_MAX:
                        raise ConfigurationError(
                            f"larger than {FILE_BYTES_MAX} bytes", file=str(self._file)
                        )
                    self._machines = _parse(str(self._file), self._file.read_text("utf-8"))
                    self._read_at = (found.st_mtime_ns, found.st_ino)
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigurationError(
                    f"cannot be read: {error}", file=str(self._file), key=f"{self._where}.inventory"
                ) from error
        return self._machines


def _parse(file: str, text: str) -> tuple[InventoryMachine, ...]:
    document: Document = read_document(file, text)
    machines: tuple[InventoryMachine, ...] = convert(document, document.value, _File, ()).machines
    if not machines:
        # A file emptied by mistake would confirm the absence of every instance.
        raise document.error(("machines",), "names no machine")
    if len(machines) > MACHINES_MAX:
        raise document.error(("machines",), f"names more than {MACHINES_MAX} machines")
    for number, key, problem in _problems(machines):
        raise document.error(("machines", number, key), problem)
    return machines


def _is_key(text: str) -> bool:
    try:
        asyncssh.import_public_key(text)
    except ValueError:
        return False
    return True


def _problems(machines: Sequence[InventoryMachine]) -> Iterator[tuple[int, str, str]]:
    """Yield number, key and problem of each invalid machine."""
    names: dict[str, int] = {}
    places: dict[tuple[str, int], int] = {}
    for number, machine in enumerate(machines):
        if not machine.host:
            yield number, "host", "is empty"
        elif not NAME.match(machine.display_name):
            yield (
                number,
                "name",
                f"{machine.display_name!r} is not a name: use 1 to 63 of a-z, 0-9, '.', '_', '-'",
            )
        elif machine.host_key and not _is_key(machine.host_key):
            yield number, "host_key", "is not a public key (`ssh-ed25519 AAAA…`)"
        elif machine.display_name in names:
            yield (
                number,
                "name",
                f"{machine.display_name} is machine {names[machine.display_name]} already",
            )
        elif (machine.host, machine.port) in places:
            other = places[machine.host, machine.port]
            yield number, "host", f"{machine.address} is machine {other} already"
        names[machine.display_name] = number
        places[machine.host, machine.port] = number
