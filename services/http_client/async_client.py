"""`AsyncNavarch`: the HTTP API as methods of an asyncio program."""

import os
import secrets
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Final, Self, TypeVar

from services.http_client.api_call import ApiCall, ApiStream, ItemPage
from services.http_client.api_methods import ApiMethods, AwaitedClient
from services.http_client.http_transport import (
    GIVE_UP_SECONDS,
    TIMEOUT_SECONDS,
    TRIES_MAX,
    HttpTransport,
)
from services.http_client.server_options import server_options
from services.primitives.clock import SystemClock
from services.primitives.errors import NavarchError

T = TypeVar("T")

PAGES_MAX: Final = 10_000
KEY_BYTES: Final = 12


class AsyncNavarch(ApiMethods, AwaitedClient):
    """A gateway: `async with AsyncNavarch("https://navarch.example.com") as fleet`."""

    def __init__(
        self,
        server: str = "",
        *,
        token: str = "",
        ca_file: str = "",
        timeout_seconds: float = TIMEOUT_SECONDS,
        tries_max: int = TRIES_MAX,
        give_up_seconds: float = GIVE_UP_SECONDS,
    ) -> None:
        """Connect at the first call; what is empty is read from the environment.

        NAVARCH_SERVER, NAVARCH_AUTH_TOKEN, NAVARCH_CA_FILE (the authority of the gateway's
        certificate). A call may take `timeout_seconds`, and is tried `tries_max` times where that
        is safe; a stream ends with NoAnswerError after `give_up_seconds` without a sign of life.
        """
        self._transport = HttpTransport(
            server_options(server, token, ca_file, os.environ),
            SystemClock(),
            lambda: f"client-{secrets.token_hex(KEY_BYTES)}",
            timeout_seconds=timeout_seconds,
            tries_max=tries_max,
            give_up_seconds=give_up_seconds,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def send(self, call: ApiCall[T]) -> T:
        """Send a call, and return its answer."""
        return await self._transport.send(call)

    async def pages(self, call: ApiCall[ItemPage[T]]) -> AsyncGenerator[T, None]:
        """The items of all pages from a call on, each page asked for when it is wanted."""
        cursor = "cursor" if "cursor" in call.query else "after"
        for _ in range(PAGES_MAX):
            page = await self.send(call)
            for item in page.items:
                yield item
            if not getattr(page, "more", page.next):
                return
            call = replace(call, query={**call.query, cursor: page.next})
        raise NavarchError(f"more than {PAGES_MAX} pages of {call.path}: select fewer")

    def follow(self, stream: ApiStream[T]) -> AsyncGenerator[T, None]:
        """The items of a stream, each once, over any number of connections."""
        return self._transport.follow(stream)
