"""Asks the gateway's authenticators one after the other who a caller is.

The first that knows the caller counts. One that finds credentials of its kind which are not valid
ends the search: the next might accept them by mistake.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec

from schemas.gateway_settings import TokenSpec
from schemas.plugin_kinds import AUTHENTICATOR
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
from services.primitives.plugin_boundary import GuardedPlugin, PluginFailedError
from services.primitives.plugin_contract import PluginContract
from services.runtime.plugin_host import PluginHost
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


CONTRACT: Final = PluginContract(
    kind=AUTHENTICATOR,
    protocols=(Authenticator,),
    errors=(RefusedCredentialsError, NoRoleError, UnreachableError),
)


class GuardedAuthenticator:
    """An authenticator; whatever its plugin does, a caller is known, refused, or asked to wait."""

    def __init__(self, plugin: GuardedPlugin) -> None:
        self._plugin = plugin

    async def authenticate(self, presented: Presented) -> Principal | None:
        """Return the caller; UnreachableError where the plugin does not answer as it should."""
        try:
            found: Principal | None = await self._plugin.call("authenticate", presented)
        except PluginFailedError as error:
            log.warning("%s", error)
            reason = f"the {self._plugin.kind.name} {self._plugin.source.name} fails; try again"
            raise UnreachableError(reason) from error
        return found

    async def close(self) -> None:
        """Close all connections."""
        await self._plugin.close()


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
    settings: Mapping[str, PluginSettings],
    file: Path | None,
    clock: Clock,
    plugins: PluginHost | None = None,
) -> dict[str, Authenticator]:
    """Construct the configured ones; ConfigurationError where one cannot be."""
    plugins, found = plugins or PluginHost(), dict[str, Authenticator]()
    for name, each in settings.items():
        make = partial(make_plugin, AUTHENTICATOR_PLUGINS, each, file, clock=clock)
        guard = plugins.guard(CONTRACT, make(), each.type, f"authenticator {name}", make=make)
        found[name] = GuardedAuthenticator(guard)
    return found
