"""Caches access tokens until shortly before they expire.

Clouds issue them at a token endpoint, in OAuth's form: a token and its lifetime in seconds.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import httpx
import msgspec

from services.primitives.redaction import register_secret
from services.provisioner.provider_client.provider_errors import ProviderError
from services.runtime.bounded_http import failure_text

RENEW_SECONDS: Final = 225
"""How long before its expiry a token is renewed."""
TEXT_CHARS_MAX: Final = 200


class _Token(msgspec.Struct, frozen=True):
    access_token: str
    expires_in: int


class _Refused(msgspec.Struct, frozen=True):
    error: str = ""
    error_description: str = ""


class TokenCache:
    """Returns access tokens that stay valid for a while."""

    def __init__(self, ask: Callable[[], Awaitable[httpx.Response]], remedy: str = "") -> None:
        """`ask` sends the request; `remedy` says what to do without an answer."""
        self._ask = ask
        self._remedy = remedy
        self._token = ""
        self._until = 0.0
        self._renewing = asyncio.Lock()

    async def token(self) -> str:
        """Return a token; ProviderError if none is issued."""
        async with self._renewing:
            if time.monotonic() >= self._until:
                fresh = await self._fetch()
                self._token = fresh.access_token
                self._until = time.monotonic() + fresh.expires_in - RENEW_SECONDS
            return self._token

    async def _fetch(self) -> _Token:
        try:
            answer = await self._ask()
        except httpx.HTTPError as error:
            why = failure_text(error)
            raise ProviderError("TRANSIENT", f"no access token: {why}{self._remedy}") from error
        if answer.is_server_error or answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            raise ProviderError("TRANSIENT", f"no access token: HTTP {answer.status_code}")
        if not answer.is_success:
            text = _reason(answer.content)
            raise ProviderError("AUTH", f"no access token: HTTP {answer.status_code}{text}")
        try:
            # A number may come as a string.
            fresh = msgspec.json.decode(answer.content, type=_Token, strict=False)
        except msgspec.DecodeError as error:
            raise ProviderError("TRANSIENT", f"no access token: {error}") from error
        register_secret(fresh.access_token)
        return fresh


def _reason(body: bytes) -> str:
    """What OAuth's error answer says; nothing of any other body, which may hold a credential."""
    try:
        refused = msgspec.json.decode(body, type=_Refused)
    except msgspec.DecodeError:
        return ""
    text = ": ".join(each for each in (refused.error, refused.error_description) if each)
    return f": {text[:TEXT_CHARS_MAX]}" if text else ""
