"""Access tokens of clouds: one request at a time, which every caller waits for, not for ever.

The clouds' own libraries obtain, keep and renew them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from schemas.enums import ProviderErrorKind
from services.primitives.errors import ConfigurationError
from services.primitives.redaction import redacted, register_secret
from services.provisioner.provider_client.provider_errors import ProviderError

TOKEN_SECONDS_MAX: Final = 60.0
"""How long a request may take: a federated token takes three."""
TEXT_CHARS_MAX: Final = 1000


class CloudTokens:
    """Returns access tokens that stay valid for a while."""

    def __init__(
        self, ask: Callable[[], Awaitable[str]], close: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`ask` returns the token that is kept, or a new one; `close` ends its connections."""
        self._ask = ask
        self._close = close
        self._asking: asyncio.Task[str] | None = None

    async def token(self) -> str:
        """Return a token; ProviderError if none is issued."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_once())
            # No caller may be left to take the error.
            self._asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        # A caller that is cancelled does not end the others' wait.
        return await asyncio.shield(self._asking)

    async def close(self) -> None:
        """End a request that is under way, and the connections."""
        if self._asking is not None:
            self._asking.cancel()
        if self._close is not None:
            await self._close()

    async def _ask_once(self) -> str:
        try:
            async with asyncio.timeout(TOKEN_SECONDS_MAX):
                token = register_secret(await self._ask())
        except ProviderError:
            raise
        except TimeoutError as error:
            raise no_token("TRANSIENT", f"none after {TOKEN_SECONDS_MAX:g} s") from error
        except Exception as error:
            # The libraries raise all sorts of errors for an answer that is not a token.
            raise no_token("TRANSIENT", f"{type(error).__name__} in an answer") from error
        if not (token and token.isascii() and token.isprintable()):
            raise no_token("TRANSIENT", "what was issued cannot be sent in a header")
        return token


def no_token(kind: ProviderErrorKind, why: str) -> ProviderError:
    """Return the error of a request for a token."""
    return ProviderError(
        kind, f"no access token: {redacted(' '.join(why.split()))[:TEXT_CHARS_MAX]}"
    )


def missing_extra(name: str, extra: str) -> ConfigurationError:
    """Return the error of provider `name` without the packages of an extra."""
    return ConfigurationError(
        f"a package is missing: pip install 'navarch[{extra}]'", key=f"providers.{name}"
    )
