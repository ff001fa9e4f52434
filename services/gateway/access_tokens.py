"""Decides who may use the HTTP API: bearer tokens, as digests, with role, pools and an end.

Pure.
"""

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from schemas.gateway_settings import GatewayRole, TokenSpec

PREFIX: Final = "navarch_"
"""So that scanners find a token that was committed by mistake."""
VARIABLE: Final = "NAVARCH_AUTH_TOKEN"
"""One token of role admin; the name is also that of its principal, in lower case."""
VARIABLE_NAME: Final = "auth-token"
TOKEN_BYTES: Final = 32
CHARS_MIN: Final = 16
"""Of a token that an operator chose."""
CHARS_MAX: Final = 512
RANKS: Final[Mapping[GatewayRole, int]] = {"viewer": 0, "operator": 1, "admin": 2}


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an authenticated caller."""

    name: str
    role: GatewayRole
    pools: tuple[str, ...] = ()
    """Names or patterns; empty: every pool, and the fleet's own services."""

    expires: datetime | None = None

    def may(self, role: GatewayRole) -> bool:
        """Return whether the caller's role includes another."""
        return RANKS[self.role] >= RANKS[role]

    def sees(self, pool: str) -> bool:
        """Return whether the caller may see a pool; an empty name is the fleet's own services."""
        return not self.pools or any(fnmatchcase(pool, each) for each in self.pools if pool)


class ExpiredTokenError(Exception):
    """The token was valid until `at`."""

    def __init__(self, name: str, at: datetime) -> None:
        super().__init__(f"the token {name} expired at {at.isoformat()}")


ANYONE: Final = Principal(name="anyone", role="admin")
"""Every caller of a gateway without tokens, on a bus without credentials."""


def new_token(random_bytes: Callable[[int], bytes]) -> str:
    """Make a token of 256 random bits."""
    return PREFIX + base64.urlsafe_b64encode(random_bytes(TOKEN_BYTES)).decode().rstrip("=")


def digest(token: str) -> str:
    """Return the digest that is stored of a token.

    It has 256 random bits, so a plain digest cannot be guessed.
    """
    return hashlib.sha256(token.encode()).hexdigest()


def with_variable(tokens: Mapping[str, TokenSpec], value: str) -> dict[str, TokenSpec]:
    """The configured tokens and the one of NAVARCH_AUTH_TOKEN, if it is set."""
    own = {VARIABLE_NAME: TokenSpec(sha256=digest(value), role="admin")} if value else {}
    return {**tokens, **own}


def find_principal(
    tokens: Mapping[str, TokenSpec], presented: str, now: datetime
) -> Principal | None:
    """Return the principal of a token; None: no token of the fleet.

    In a time that depends on no stored digest.
    """
    given, found = digest(presented), ""
    for name, spec in tokens.items():
        if hmac.compare_digest(given, spec.sha256):
            found = name
    if not found:
        return None
    spec = tokens[found]
    if spec.expires is not None and spec.expires <= now:
        raise ExpiredTokenError(found, spec.expires)
    return Principal(name=found, role=spec.role, pools=spec.pools, expires=spec.expires)
