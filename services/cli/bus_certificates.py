"""The certificates' files below a bus's directory, and the replacement of their authority.

`tls/ca.pem` has the authorities that are accepted. The one that signs is that of `keys/ca.key`;
while it is replaced, `keys/ca.next.key` is its successor's. A certificate and its key are one file,
so that neither is ever without the other.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from schemas.names import token
from services.cli import certificates
from services.primitives.atomic_files import write_secret
from services.primitives.errors import NavarchError

AUTHORITY: Final = "tls/ca.pem"
CERTIFICATE: Final = "tls/server.pem"
CLIENTS: Final = "tls/clients"


class BusCertificates:
    """The certificates of one bus."""

    def __init__(self, directory: Path) -> None:
        """Name the bus's directory."""
        self._directory = directory
        self._accepted = directory / AUTHORITY
        self._key = directory / "keys/ca.key"
        self._next_key = directory / "keys/ca.next.key"
        self._server = directory / CERTIFICATE
        self.written: list[Path] = []

    @property
    def is_under_way(self) -> bool:
        """Whether the authority is being replaced."""
        return self._next_key.exists() or certificates.count(self._authorities()) > 1

    def write(self, fleet: str, hosts: Sequence[str], at: datetime) -> None:
        """Write an authority if there never was one, and a server's certificate that is current."""
        if not self._accepted.exists():
            self._add_authority(fleet, self._key, at)
        accepted = self._accepted.read_text(encoding="ascii")
        if not self._server.exists() or not certificates.is_current(
            self._server.read_text(encoding="ascii"), accepted, hosts, at
        ):
            self._write_server(hosts, at)

    def begin(self, fleet: str, at: datetime) -> None:
        """Make another authority that is accepted, and signs clients' certificates."""
        if not self._next_key.exists() and certificates.count(self._authorities()) > 1:
            raise NavarchError(
                f"{self._accepted} has two authorities, and no successor is there: an end was "
                "interrupted; run it again (--finish)"
            )
        self._add_authority(fleet, self._next_key, at)

    def finish(self, at: datetime) -> None:
        """Sign the server's certificate with the new authority, and accept it alone."""
        hosts = certificates.hosts_of(self._server.read_text(encoding="ascii"))
        if self._next_key.exists():
            if not certificates.authority_of(_text(self._next_key), self._authorities()):
                raise NavarchError(
                    f"{self._accepted} lacks the authority of {self._next_key}: run "
                    "`navarch nats-config rotate authority` again"
                )
            self._next_key.replace(self._key)
        authority = self._authority(self._key)
        if not certificates.is_issued_by(self._server.read_text(encoding="ascii"), authority):
            self._write_server(hosts, at)
        if self._authorities() != authority:
            self._write(self._accepted, authority)

    def write_client(self, name: str, at: datetime) -> Path:
        """Write a client's certificate and key, which the server accepts from now on."""
        token(name, "name")
        self._authorities()
        key = self._next_key if self._next_key.exists() else self._key
        made = certificates.new_certificate(self._authority(key), _text(key), name, (), at)
        file = self._directory / CLIENTS / f"{name}.pem"
        file.parent.mkdir(mode=0o700, exist_ok=True)
        self._write(file, made)
        return file

    def _authorities(self) -> str:
        if not self._accepted.exists():
            raise NavarchError(
                f"there is no {self._accepted}: this bus is without TLS (`navarch nats-config "
                "write` without --no-tls adds it)"
            )
        return _text(self._accepted)

    def _authority(self, key: Path) -> str:
        if not key.exists():
            raise NavarchError(
                f"{key} is lost: restore it from a backup, or replace the authority: `navarch "
                "nats-config rotate authority`"
            )
        found = certificates.authority_of(_text(key), self._authorities())
        if not found:
            raise NavarchError(
                f"{key} is not the key of an authority in {self._accepted}: restore the newer one"
            )
        return found

    def _add_authority(self, fleet: str, key: Path, at: datetime) -> None:
        """Make a key and its certificate, where they are missing."""
        if not key.exists():
            self._write(key, certificates.new_key())
        accepted = _text(self._accepted) if self._accepted.exists() else ""
        if not certificates.authority_of(_text(key), accepted):
            self._write(
                self._accepted, certificates.new_authority(fleet, _text(key), at) + accepted
            )

    def _write_server(self, hosts: Sequence[str], at: datetime) -> None:
        authority = self._authority(self._key)
        made = certificates.new_certificate(authority, _text(self._key), "nats-server", hosts, at)
        self._write(self._server, made)

    def _write(self, file: Path, text: str) -> None:
        write_secret(file, text)
        self.written.append(file)


def _text(file: Path) -> str:
    return file.read_text(encoding="ascii")
