"""Client certificates, which the TLS library has verified against `gateway.tls_client_ca_file`."""

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from schemas.settings import Setting
from services.gateway.access_tokens import Principal
from services.gateway.authenticators.authenticator import (
    NoRoleError,
    PeerCertificate,
    Presented,
    RefusedCredentialsError,
)
from services.gateway.authenticators.grants import Grants, granted
from services.primitives.clock import Clock

ATTRIBUTES: Final[Mapping[str, str]] = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
}
SAN_TYPES: Final[Mapping[str, str]] = {"DNS": "DNS", "URI": "URI", "email": "email"}
NAMING: Final = ("CN=", "URI:", "DNS:", "email:")
"""The first of these that a certificate has is its owner's name."""


class CertificateAuthenticator:
    """Knows callers by their certificate."""

    class Options(Setting, frozen=True, kw_only=True):
        """Says what the names in certificates are worth here."""

        grants: Grants
        """`CN=…`, `O=…`, `OU=…`, `DNS:…`, `URI:…` or `email:…` -> role and pools, in order; the
        first that matches counts."""

    def __init__(self, *, options: Options, clock: Clock) -> None:
        self._options = options
        self._clock = clock

    async def authenticate(self, presented: Presented) -> Principal | None:
        """Return whose certificate it is; None: the caller has none, or says itself who it is."""
        found = presented.certificate
        if found is None or "authorization" in presented.headers:
            return None
        if found.expires <= self._clock.now():
            raise RefusedCredentialsError("the client certificate has expired")
        names = (each for kind in NAMING for each in found.names if each.startswith(kind))
        name = next(names, "")
        if not name:
            raise RefusedCredentialsError("the client certificate has no name")
        grant = granted(self._options.grants, found.names)
        if grant is None:
            raise NoRoleError(f"no grant matches the client certificate of {name}")
        return Principal(name=name, role=grant.role, pools=grant.pools, expires=found.expires)

    async def close(self) -> None:
        """Nothing is open."""


def peer_certificate(found: Mapping[str, Any]) -> PeerCertificate | None:
    """Return what `ssl.SSLSocket.getpeercert()` says; None: nothing was presented. Pure.

    Each attribute by itself: one that contains `,O=Example` is no organization.
    """
    if not found:
        return None
    subject = (pair for each in found.get("subject", ()) for pair in each)
    names = [f"{ATTRIBUTES[key]}={value}" for key, value in subject if key in ATTRIBUTES]
    for key, value in found.get("subjectAltName", ()):
        if key in SAN_TYPES:
            names.append(f"{SAN_TYPES[key]}:{value}")
    expires = datetime.fromtimestamp(ssl.cert_time_to_seconds(found["notAfter"]), UTC)
    return PeerCertificate(tuple(names), expires)
