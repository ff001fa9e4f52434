"""Keeps the certificates' files below a bus's directory, and replaces their authority.

`tls/ca.pem` has the authorities that are accepted. The one that signs is that of `keys/ca.key`;
while it is replaced, `keys/ca.next.key` is its successor's. A certificate and its key are one file,
so that neither is ever without the other. Servers of a cluster know each other by certificates of
an authority of their own, in `routes/`: who may join as a server is past all accounts, so no
certificate of a client may be enough.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from schemas.names import token
from services.cli import certificates
from services.primitives.atomic_files import write_secret
from services.primitives.errors import NavarchError

TLS: Final = "tls"
ROUTES: Final = "routes"
AUTHORITY: Final = f"{TLS}/ca.pem"
CLIENTS: Final = f"{TLS}/clients"
SERVER: Final = "server"
"""The name of the certificate that clients see."""
CERTIFICATE: Final = f"{TLS}/{SERVER}.pem"
KEYS: Final = {TLS: "ca", ROUTES: "routes-ca"}
"""Folder -> the name of its authority's key."""
DAYS: Final = {TLS: certificates.CERTIFICATE_DAYS, ROUTES: certificates.AUTHORITY_DAYS}
"""Folder -> the life of its servers' certificates. No client sees those of the routes, so nothing
could warn of their end; against a stolen one their authority is replaced."""
REPLACED: Final = {
    TLS: "replace the authority: `navarch nats-config rotate authority`",
    ROUTES: (
        "remove the folder routes, run this again, give each server its files, and restart the "
        "servers one after the other"
    ),
}
"""Folder -> how its authority is replaced."""


class BusCertificates:
    """The certificates of one bus: those that clients see, or those of the routes."""

    def __init__(self, directory: Path, folder: str = TLS) -> None:
        self._directory = directory
        self._folder = directory / folder
        self._days = DAYS[folder]
        self._accepted = self._folder / "ca.pem"
        self._key = directory / "keys" / f"{KEYS[folder]}.key"
        self._next_key = directory / "keys" / f"{KEYS[folder]}.next.key"
        self._replacement = REPLACED[folder]
        self.written: list[Path] = []

    @property
    def is_under_way(self) -> bool:
        """Return whether the authority is being replaced."""
        return self._next_key.exists() or certificates.count(self._authorities()) > 1

    def write(self, fleet: str, servers: Mapping[str, Sequence[str]], at: datetime) -> None:
        """Write an authority if there never was one, and servers' certificates that are current.

        `servers`: the name of each certificate, and the names and addresses that it is for.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if not self._accepted.exists():
            self._add_authority(fleet, self._key, at)
        accepted = _text(self._accepted)
        for name, hosts in servers.items():
            file = self._server(name)
            if not file.exists() or not certificates.is_current(_text(file), accepted, hosts, at):
                self._write_server(name, hosts, at)

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
        server = _text(self._server(SERVER))
        if self._next_key.exists():
            if not certificates.authority_of(_text(self._next_key), self._authorities()):
                raise NavarchError(
                    f"{self._accepted} lacks the authority of {self._next_key}: run "
                    "`navarch nats-config rotate authority` again"
                )
            self._next_key.replace(self._key)
        authority = self._authority(self._key)
        if not certificates.is_issued_by(server, authority):
            self._write_server(SERVER, certificates.hosts_of(server), at)
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
            raise NavarchError(f"{key} is lost: restore it from a backup, or {self._replacement}")
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

    def _server(self, name: str) -> Path:
        return self._folder / f"{name}.pem"

    def _write_server(self, name: str, hosts: Sequence[str], at: datetime) -> None:
        authority, called = self._authority(self._key), "nats-server"
        if name != SERVER:
            called = f"{called} {name}"
        key = _text(self._key)
        made = certificates.new_certificate(authority, key, called, hosts, at, days=self._days)
        self._write(self._server(name), made)

    def _write(self, file: Path, text: str) -> None:
        write_secret(file, text)
        self.written.append(file)


def _text(file: Path) -> str:
    return file.read_text(encoding="ascii")
