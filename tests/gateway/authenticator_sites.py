"""The conformance suite gets the built-in authenticators with credentials of every kind."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from schemas.gateway_settings import TokenSpec
from services.gateway.access_tokens import digest
from services.gateway.authenticators.authenticator import Authenticator, PeerCertificate, Presented
from services.gateway.authenticators.certificate_authenticator import CertificateAuthenticator
from services.gateway.authenticators.chain import TokenAuthenticator
from services.gateway.authenticators.oidc_authenticator import OidcAuthenticator
from services.primitives.clock import SystemClock
from tests.gateway.oidc_issuer import AUDIENCE, OidcIssuer

ROLES = ("viewer", "operator", "admin")
GRANTS = [{"match": role, "role": role} for role in ROLES]
ADDRESS = "10.0.0.5"


def bearer(token: str) -> Presented:
    """Return a request with a token."""
    return Presented("GET", "/api/v1/nodes", {"authorization": f"Bearer {token}"}, ADDRESS)


class TokenSite:
    """Makes an authenticator with tokens of the configuration."""

    def make(self) -> Authenticator:
        """Return one with a token of each role, and one token that has expired."""
        specs: dict[str, Any] = {
            role: TokenSpec(sha256=digest(f"token-of-{role}"), role=role) for role in ROLES
        }
        specs["old"] = TokenSpec(sha256=digest("expired"), expires=datetime(2020, 1, 1, tzinfo=UTC))
        return TokenAuthenticator(specs, SystemClock().now)

    def valid(self, role: str) -> Presented:
        """Return a request with the role's token."""
        return bearer(f"token-of-{role}")

    def refused(self) -> Mapping[str, Presented]:
        """An unknown token may be of another kind, so only this is refused here."""
        return {"expired": bearer("expired")}


class OidcSite:
    """Makes an authenticator with tokens of a provider."""

    def __init__(self, issuer: OidcIssuer) -> None:
        self._issuer = issuer

    def make(self) -> Authenticator:
        """Return an authenticator of this issuer."""
        raw: Any = {"issuer": self._issuer.url, "audience": AUDIENCE, "grants": GRANTS}
        options = msgspec.convert(raw, OidcAuthenticator.Options)
        return OidcAuthenticator(options=options, clock=SystemClock())

    def valid(self, role: str) -> Presented:
        """Return a request with a token of a caller in the role's group."""
        return bearer(self._issuer.token(groups=[role], sub=f"{role}-1"))

    def refused(self) -> Mapping[str, Presented]:
        """Return requests with invalid tokens; test_oidc.py has all kinds."""
        issuer, late = self._issuer, int(time.time()) - 3600
        return {
            "expired": bearer(issuer.token(groups=["admin"], exp=late)),
            "of another audience": bearer(issuer.token(groups=["admin"], aud="other")),
            "not signed": bearer(issuer.unsigned()),
            "signed with the public key": bearer(issuer.signed_with_public_key("pem")),
            "of another key": bearer(issuer.token("RSA", 2, {"kid": "RSA-1"}, groups=["admin"])),
            "without a group": bearer(issuer.token(groups=[])),
        }


class CertificateSite:
    """Client certificates, as the TLS library has verified them."""

    def make(self) -> Authenticator:
        """Return one with a grant for each role's name."""
        grants = [{"match": f"CN={role}", "role": role} for role in ROLES]
        options = msgspec.convert({"grants": grants}, CertificateAuthenticator.Options)
        return CertificateAuthenticator(options=options, clock=SystemClock())

    def valid(self, role: str) -> Presented:
        """Return a request of a connection with the role's certificate."""
        return self._with(f"CN={role}", days=1)

    def refused(self) -> Mapping[str, Presented]:
        """One that has ended since the handshake, and those that are worth nothing here."""
        return {
            "ended": self._with("CN=admin", days=-1),
            "without a name": self._with("O=admin", days=1),
            "without a grant": self._with("CN=eve", days=1),
        }

    def _with(self, name: str, days: int) -> Presented:
        end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
        return Presented("GET", "/api/v1/nodes", {}, ADDRESS, PeerCertificate((name,), end))
