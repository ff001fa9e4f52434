"""Asks the gateway's authenticators one after the other who a caller is.

The first that knows the caller counts. One that finds credentials of its kind which are not valid
ends the search: the next might accept them by mistake.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec

from schemas.gateway_settings import TokenSpec
from schemas.settings import AUTHENTICATOR_PLUGINS, PluginSettings
from services.gateway.access_tokens import CHARS_MAX, ExpiredTokenError, Principal, find_principal
from services.gateway.authenticators.authenticator import (
    Authenticator,
    NoRoleError,
    Presented,
    RefusedCredentialsError,
    UnreachableError,
)
from services.gateway.problems import ProblemError
from services.primitives.clock import Clock
from services.settings.plugin_loader import make_plugin

log = logging.getLogger(__name__)

ANSWER_SECONDS_MAX: Final = 10.0
"""Of all authenticators together."""


class TokenAuthenticator:
    """Knows callers by the tokens of the configuration."""

    def __init__(self, tokens: Mapping[str, TokenSpec], now: Callable[[], datetime]) -> None:
        self._tokens = tokens
        self._now = now

    async def authenticate(self, presented: Presented) -> Principal | None:
        """Return the token's owner; None where it is none of these: it may be of another kind."""
        token = presented.bearer
        if not token or len(token) > CHARS_MAX:
            return None
        try:
            return find_principal(self._tokens, token, self._now())
        except ExpiredTokenError as error:
            raise RefusedCredentialsError(str(error)) from error

    async def close(self) -> None:
        """Nothing is open."""


class AuthenticatorChain:
    """Asks the tokens of the configuration, then its authenticators in their order."""

    def __init__(
        self,
        tokens: Mapping[str, TokenSpec],
        others: Mapping[str, Authenticator],
        now: Callable[[], datetime],
    ) -> None:
        """`others` by their names, which begin the names of those whom they know."""
        self._tokens = TokenAuthenticator(tokens, now)
        self._others = others
        self.is_empty = not (tokens or others)
        """Without any, no caller has to say who it is."""

    async def authenticate(self, presented: Presented) -> Principal:
        """Return the caller; raise ProblemError where it is not known."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                found = await self._ask(presented)
        except RefusedCredentialsError as error:
            raise ProblemError(HTTPStatus.UNAUTHORIZED, str(error)) from error
        except NoRoleError as error:
            remedy = "ask an administrator for a grant in `authenticators` of the configuration"
            raise ProblemError(HTTPStatus.FORBIDDEN, str(error), remedy) from error
        except (UnreachableError, TimeoutError) as error:
            log.warning("a caller cannot be authenticated: %s", error)
            detail = str(error) or "the authentication took too long"
            raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, detail) from error
        if found is None:
            has_bearer = "authorization" in presented.headers
            said = "the token is not valid" if has_bearer else "the request has no bearer token"
            raise ProblemError(HTTPStatus.UNAUTHORIZED, said)
        return found

    async def _ask(self, presented: Presented) -> Principal | None:
        if (found := await self._tokens.authenticate(presented)) is not None:
            return found
        for name, each in self._others.items():
            if (found := await each.authenticate(presented)) is not None:
                # So that no provider can name a caller as another does.
                return msgspec.structs.replace(found, name=f"{name}:{found.name}")
        return None

    async def close(self) -> None:
        """Close every authenticator, whatever the others do."""
        await asyncio.gather(
            *(each.close() for each in self._others.values()), return_exceptions=True
        )


def make_authenticators(
    settings: Mapping[str, PluginSettings], file: Path | None, clock: Clock
) -> dict[str, Authenticator]:
    """Construct the configured ones; ConfigurationError where one cannot be."""
    return {
        name: make_plugin(AUTHENTICATOR_PLUGINS, each, file, clock=clock)
        for name, each in settings.items()
    }
