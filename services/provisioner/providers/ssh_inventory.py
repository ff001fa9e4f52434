"""Which machines the provider `ssh` may hand out: from its options, or from a file of its own.

The file is read again whenever it has changed, so that a machine is taken out, or put back, without
a restart. What is wrong in it is said with file, line and key.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import asyncssh
import msgspec

from schemas.settings import Setting
from services.primitives.errors import ConfigurationError
from services.provisioner.provider_client.provider import ProvisionRequest
from services.settings.yaml_document import Document, convert, read_document

MACHINES_MAX: Final = 2_000
FILE_BYTES_MAX: Final = 4 * 1_048_576
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


class InventoryMachine(Setting, frozen=True, kw_only=True):
    """One machine."""

    host: str
    """Name or address at which its SSH server answers."""
    name: str = ""
    """Its display name; empty: its host. Claims are recognised by it, so it must not change."""
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 22
    user: str = ""
    """Empty: the provider's `user`. So with the next one."""
    key_file: str = ""
    host_key: str = ""
    """`ssh-ed25519 AAAA…`; empty: the first that is seen is kept."""
    type: str
    """The instance type that pools ask for."""
    gpu_count: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    """0: not said, and not asked about."""
    region: str = ""
    zone: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def display_name(self) -> str:
        """Its name."""
        return self.name or self.host

    @property
    def address(self) -> str:
        """Where it answers, with the port where that is not SSH's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.host if self.port == 22 else f"{host}:{self.port}"  # noqa: PLR2004 - SSH's port

    def fits(self, request: ProvisionRequest) -> bool:
        """Whether it is what is asked for; a place that either does not name is anywhere."""
        return (
            self.type == request.instance_type
            and (self.region in ("", request.region) or not request.region)
            and (self.zone in ("", request.zone) or not request.zone)
            and (not self.gpu_count or self.gpu_count >= request.gpu_count)
        )


class _File(Setting, frozen=True, kw_only=True):
    machines: tuple[InventoryMachine, ...]


class SshInventory:
    """The machines of one provider."""

    def __init__(self, name: str, machines: Sequence[InventoryMachine], file: str) -> None:
        """Those given, or those of a file; ConfigurationError where neither or both are."""
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
        """All of them, as the file says now."""
        if self._file is not None:
            try:
                found = self._file.stat()
                if (found.st_mtime_ns, found.st_ino) != self._read_at:
                    if found.st_size > FILE_BYTES_MAX:
                        raise ConfigurationError(
                            f"larger than {FILE_BYTES_MAX} bytes", file=str(self._file)
                        )
                    self._machines = _parsed(str(self._file), self._file.read_text("utf-8"))
                    self._read_at = (found.st_mtime_ns, found.st_ino)
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigurationError(
                    f"{self._file}: cannot be read: {error}", key=f"{self._where}.inventory"
                ) from error
        return self._machines


def _parsed(file: str, text: str) -> tuple[InventoryMachine, ...]:
    document: Document = read_document(file, text)
    machines: tuple[InventoryMachine, ...] = convert(document, document.value, _File, ()).machines
    if not machines:
        # A file emptied by mistake would confirm every instance as gone.
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
    """Number, key, and what is wrong there."""
    names: dict[str, int] = {}
    places: dict[tuple[str, int], int] = {}
    for number, machine in enumerate(machines):
        if not machine.host:
            yield number, "host", "is empty"
        elif not NAME.match(machine.display_name):
            yield (
                number,
                "name",
                f"{machine.display_name!r} is no name: use 1 to 63 of a-z, 0-9, '.', '_' and '-'",
            )
        elif machine.host_key and not _is_key(machine.host_key):
            yield number, "host_key", "is no public key (`ssh-ed25519 AAAA…`)"
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
