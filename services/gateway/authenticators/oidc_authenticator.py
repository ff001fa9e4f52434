"""Bearer tokens of an OpenID Connect provider: JWTs that its keys have signed; its keys."""

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import httpx
import jwt
import msgspec

from schemas.settings import FilePath, Setting
from services.gateway.access_tokens import Principal
from services.gateway.authenticators.authenticator import (
    NoRoleError,
    Presented,
    RefusedCredentialsError,
    UnreachableError,
)
from services.gateway.authenticators.grants import Grants, granted
from services.primitives.clock import Clock
from services.primitives.redaction import public_url
from services.runtime.bounded_http import bounded_client, failure_text, status_text

log = logging.getLogger(__name__)

FRESH_SECONDS: Final = 600.0
"""Keys are read again after this long: a key that the provider withdrew is then refused."""
AGAIN_SECONDS: Final = 30.0
"""Between two tries, however many tokens name keys that are not known."""
KEPT_SECONDS: Final = 86_400.0
"""For so long the keys are used while the provider cannot be asked."""
ASK_SECONDS_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 262_144
KEYS_MAX: Final = 100
DISCOVERY: Final = "/.well-known/openid-configuration"
KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
        **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
        "EdDSA": "OKP",
    }
)
"""Algorithm of a signature -> type of its key. None of them has a secret key at the verifier."""
CHARS_MAX: Final = 16_384
"""Of a token."""
JWT_DOTS: Final = 2
CALLER_TYPES: Final = ("jwt", "at+jwt", "id+jwt")
LEEWAY_SECONDS: Final = 30.0
"""By which the provider's clock may differ."""
NOT_VALID: Final = "the token is not valid"
"""Said of all that its signature does not prove."""

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Those whose keys are public: a token that is signed with a key that everyone knows is none."""


class _Discovery(msgspec.Struct, frozen=True):
    issuer: str
    jwks_uri: str


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


class SigningKeys:
    """Holds the keys of one issuer."""

    def __init__(self, clock: Clock, issuer: str, keys_url: str, verify: Any = True) -> None:
        """`keys_url` empty: as the issuer's discovery document says. `verify` as of httpx."""
        self._clock = clock
        self._issuer = issuer
        self._keys_url = keys_url
        self._client = bounded_client(
            bytes_max=ANSWER_BYTES_MAX, timeout=ASK_SECONDS_MAX, verify=verify
        )
        self._keys: dict[str, dict[str, Any]] = {}
        self._read_at: float | None = None
        self._tried_at: float | None = None
        self._reading = asyncio.Lock()
        self._problem = ""

    async def find(self, name: str, algorithm: str) -> jwt.PyJWK | None:
        """The key of this name for an algorithm of KINDS; None: the issuer has none.

        An empty name is that of the only key. UnreachableError: its keys are not known.
        """
        if self._age() > FRESH_SECONDS or self._named(name) is None:
            await self._read_again()
        if self._age() > KEPT_SECONDS:
            raise UnreachableError(f"the keys of {public_url(self._issuer)}: {self._problem}")
        found = self._named(name)
        if found is None or found.get("kty") != KINDS[algorithm]:
            return None
        if found.get("alg", algorithm) != algorithm or found.get("use", "sig") != "sig":
            return None
        try:
            return jwt.PyJWK(found, algorithm)
        except jwt.PyJWTError:
            return None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _named(self, name: str) -> dict[str, Any] | None:
        if not name:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(name)

    def _age(self) -> float:
        return float("inf") if self._read_at is None else self._clock.monotonic() - self._read_at

    async def _read_again(self) -> None:
        """Read the keys, unless that was tried a moment ago; callers that wait share the try."""
        async with self._reading:
            now = self._clock.monotonic()
            if self._tried_at is not None and now - self._tried_at < AGAIN_SECONDS:
                return
            self._tried_at = now
            try:
                async with asyncio.timeout(ASK_SECONDS_MAX):
                    self._keys = await self._read()
            except (httpx.HTTPError, httpx.InvalidURL, UnreachableError, TimeoutError) as error:
                problem = failure_text(error)
                if problem != self._problem:
                    log.warning("%s: its keys cannot be read: %s", self._issuer, problem)
                self._problem = problem
                return
            self._problem, self._read_at = "", now

    async def _read(self) -> dict[str, dict[str, Any]]:
        url = self._keys_url
        if not url:
            document = await self._get(self._issuer.rstrip("/") + DISCOVERY, _Discovery)
            if document.issuer != self._issuer:
                raise UnreachableError("its discovery document is of another issuer")
            url = document.jwks_uri
            if not is_protected(url) or url[:5] != self._issuer[:5]:
                raise UnreachableError("its jwks_uri is not https")
        found = (await self._get(url, _KeySet)).keys
        return {str(each.get("kid", "")): each for each in found[:KEYS_MAX]}

    async def _get(self, url: str, kind: type[Any]) -> Any:
        answer = await self._client.get(url)
        if answer.status_code != HTTPStatus.OK:
            raise UnreachableError(f"{public_url(url)} answered {status_text(answer.status_code)}")
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UnreachableError(f"{public_url(url)} did not answer what was asked") from error


def is_protected(url: str) -> bool:
    """Return whether an answer is surely the server's: over https, or from this machine."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    local = parsed.host in ("127.0.0.1", "localhost", "::1")
    return bool(parsed.host) and (parsed.scheme == "https" or (parsed.scheme == "http" and local))


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
        if header.get("alg") not in self._options.algorithms or not is_of_a_caller(header):
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


def is_of_a_caller(header: Mapping[str, Any]) -> bool:
    """Return whether a token's type is one of those with which callers identify themselves.

    An issuer signs others for the same audience with the same keys, which reach others than the
    caller: logout tokens, and events about an account.
    """
    kind = header.get("typ", "JWT")
    return isinstance(kind, str) and kind.lower().removeprefix("application/") in CALLER_TYPES


NAME_CHARS_MAX: Final = 200


def is_name(text: str) -> bool:
    """Return whether a caller can have this name: visible ASCII, as events and logs show it."""
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
