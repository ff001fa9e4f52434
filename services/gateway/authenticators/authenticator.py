"""Declares what an authenticator is. The author of a plugin needs this module and `access_tokens`.

docs/write-an-authenticator.md has an example, `services.gateway.conformance` its tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from services.gateway.access_tokens import Principal

SCHEME: Final = "bearer "


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The certificate of the other end of the connection, which the TLS library has verified."""

    names: tuple[str, ...]
    """`CN=ci`, `O=Example`, `DNS:ci.example.com`, `URI:spiffe://…`, `email:…`, each as it is."""
    expires: datetime


@dataclass(frozen=True, slots=True)
class Presented:
    """A request, as far as it says who sends it."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By name in lower case; all of them are the caller's word."""
    address: str
    """The other end of the connection: a proxy's, where there is one."""
    certificate: PeerCertificate | None = None

    @property
    def bearer(self) -> str:
        """The bearer token; empty: there is none."""
        header = self.headers.get("authorization", "")
        return header[len(SCHEME) :].strip() if header[: len(SCHEME)].lower() == SCHEME else ""


class RefusedCredentialsError(Exception):
    """The request has credentials of this kind, and they are not valid; the text says why.

    Its caller reads it: say nothing that helps to guess.
    """


class NoRoleError(Exception):
    """The caller is known, and has no role here."""


class UnreachableError(Exception):
    """The authenticator cannot find out now whether credentials are valid; the text says why."""


class Authenticator(Protocol):
    """One way to know a caller.

    A plugin is a class with an inner struct `Options`, constructed with `options=` and `clock=`,
    of the entry-point group `navarch.authenticators`.
    """

    async def authenticate(self, presented: Presented) -> Principal | None:
        """Return the caller, or None where the request has no credentials of this kind.

        After None the next authenticator is asked. RefusedCredentialsError, NoRoleError and
        UnreachableError end that, as any other exception does.
        """

    async def close(self) -> None:
        """Close all connections."""
