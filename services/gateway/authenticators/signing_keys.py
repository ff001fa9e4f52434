"""The public keys of an identity provider: read once in a while, and again for an unknown key."""

import asyncio
import logging
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

import httpx
import jwt
import msgspec

from services.gateway.authenticators.authenticator import UnreachableError
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


class _Discovery(msgspec.Struct, frozen=True):
    issuer: str
    jwks_uri: str


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


class SigningKeys:
    """The keys of one issuer."""

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
    """Whether what is read there is the server's: https, or this machine's own."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    local = parsed.host in ("127.0.0.1", "localhost", "::1")
    return bool(parsed.host) and (parsed.scheme == "https" or (parsed.scheme == "http" and local))
