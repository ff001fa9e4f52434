"""Bearer tokens of an OpenID Connect provider: JWTs that its keys have signed."""

import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import jwt
import msgspec

from schemas.settings import FilePath, Setting
from services.gateway.access_tokens import Principal
from services.gateway.authenticators.authenticator import (
    NoRoleError,
    Presented,
    RefusedCredentialsError,
)
from services.gateway.authenticators.grants import Grants, granted
from services.gateway.authenticators.signing_keys import SigningKeys, is_protected
from services.primitives.clock import Clock

CHARS_MAX: Final = 16_384
"""Of a token."""
JWT_DOTS: Final = 2
LEEWAY_SECONDS: Final = 30.0
"""By which the provider's clock may differ."""
NOT_VALID: Final = "the token is not valid"
"""Said of all that its signature does not prove."""

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Those whose keys are public: a token that is signed with a key that everyone knows is none."""


class OidcAuthenticator:
    """Verifies the tokens of one issuer for one audience."""

    class Options(Setting, frozen=True, kw_only=True):
        """Where tokens come from, and what their claims are worth here."""

        issuer: Annotated[str, msgspec.Meta(min_length=1)]
        """The tokens' `iss`, `https://login.example.com`, with its discovery document below it."""
        audience: Annotated[str, msgspec.Meta(min_length=1)]
        """The tokens' `aud`: the client that is registered for Navarch at the provider."""
        keys_url: str = ""
        """Where the issuer's keys are; empty: where its discovery document says."""
        algorithms: Annotated[tuple[Algorithm, ...], msgspec.Meta(min_length=1)] = (
            *("RS256", "ES256"),
        )
        """Signatures that are accepted."""
        name_claim: str = "sub"
        """The caller's name in events; `email` counts where it is verified."""
        groups_claim: str = "groups"
        """What `grants` match; a claim within another is `realm_access.roles`."""
        grants: Grants
        """Group -> role and pools, in order; the first that matches counts."""
        ca_file: FilePath = ""
        """Authority of the provider's certificate; empty: those of the machine."""

    def __init__(self, *, options: Options, clock: Clock) -> None:
        """Ask nothing until the first token comes."""
        for key, url in (("issuer", options.issuer), ("keys_url", options.keys_url)):
            if url and not is_protected(url):
                raise ValueError(f"{key} is no https URL")
        self._options = options
        verify = ssl.create_default_context(cafile=options.ca_file) if options.ca_file else True
        self._keys = SigningKeys(clock, options.issuer, options.keys_url, verify)

    async def authenticate(self, presented: Presented) -> Principal | None:
        """Return whom the token names; None where it is no JWT, or of another issuer."""
        token = presented.bearer
        header = _header(token)
        if header is None or _unverified_issuer(token) != self._options.issuer:
            return None
        if header.get("alg") not in self._options.algorithms:
            raise RefusedCredentialsError(NOT_VALID)
        key = await self._keys.find(str(header.get("kid", "")), header["alg"])
        if key is None:
            raise RefusedCredentialsError(NOT_VALID)
        return self._principal(self._claims(token, key, header["alg"]))

    async def close(self) -> None:
        """Close the connections to the provider."""
        await self._keys.close()

    def _claims(self, token: str, key: jwt.PyJWK, algorithm: str) -> dict[str, Any]:
        """The claims of a token that is valid now, for this audience."""
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._options.audience,
                issuer=self._options.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", self._options.name_claim]},
            )
        except jwt.ExpiredSignatureError as error:
            raise RefusedCredentialsError("the token has expired: sign in again") from error
        except jwt.ImmatureSignatureError as error:
            raise RefusedCredentialsError("the token is not valid yet") from error
        except jwt.InvalidAudienceError as error:
            raise RefusedCredentialsError("the token is for another audience") from error
        except jwt.MissingRequiredClaimError as error:
            raise RefusedCredentialsError(f"the token has no claim {error.claim}") from error
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            raise RefusedCredentialsError(NOT_VALID) from error

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        name = claims[self._options.name_claim]
        if not isinstance(name, str) or not is_name(name):
            raise RefusedCredentialsError(f"its claim {self._options.name_claim} is no name")
        if self._options.name_claim == "email" and claims.get("email_verified") is not True:
            raise RefusedCredentialsError("its email is not verified by the provider")
        grant = granted(self._options.grants, groups_of(claims, self._options.groups_claim))
        if grant is None:
            raise NoRoleError(f"no grant matches the groups of {name}")
        try:
            expires = datetime.fromtimestamp(float(claims["exp"]), UTC)
        except (ValueError, OverflowError, OSError) as error:
            raise RefusedCredentialsError(NOT_VALID) from error
        return Principal(name=name, role=grant.role, pools=grant.pools, expires=expires)


NAME_CHARS_MAX: Final = 200


def is_name(text: str) -> bool:
    """Whether a caller can have this name: visible ASCII, as it is shown in events and logs."""
    return (
        0 < len(text) <= NAME_CHARS_MAX
        and text.isascii()
        and text.isprintable()
        and " " not in text
    )


def groups_of(claims: Mapping[str, Any], name: str) -> Sequence[str]:
    """The values of a claim, which may be one text, a list, or within another claim. Pure."""
    value: Any = claims.get(name)
    if value is None and "." in name:
        value = claims
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, str):
        return value.split()
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else ()


def _header(token: str) -> dict[str, Any] | None:
    """The header of a JWT; None: it is none."""
    if token.count(".") != JWT_DOTS or len(token) > CHARS_MAX:
        return None
    try:
        return jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        return None


def _unverified_issuer(token: str) -> str:
    """Whose token it says it is, which decides only who verifies it."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        return ""
    return str(claims.get("iss", ""))
