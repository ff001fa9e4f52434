"""`AsyncNavarch` and `Navarch`: the HTTP API as methods that are awaited, or that wait."""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from dataclasses import replace
from threading import Thread
from typing import Any, Final, Self, TypeVar, cast

from services.http_client.api_call import ApiCall, ApiStream, ItemPage
from services.http_client.api_methods import ApiMethods, AwaitedClient, WaitingClient
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
    """Calls a gateway: `async with AsyncNavarch("https://navarch.example.com") as fleet`."""

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
        """Yield the items of a stream, each once, over any number of connections."""
        return self._transport.follow(stream)


class Navarch(ApiMethods, WaitingClient):
    """Calls a gateway: `with Navarch("https://navarch.example.com") as fleet`."""

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
        """As AsyncNavarch."""
        self.client = AsyncNavarch(
            server,
            token=token,
            ca_file=ca_file,
            timeout_seconds=timeout_seconds,
            tries_max=tries_max,
            give_up_seconds=give_up_seconds,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="navarch", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread."""
        if self._loop.is_closed():
            return
        self._wait(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _finish(self) -> None:
        """Close the connections; what still runs in the loop ends before it does."""
        await self.client.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    def send(self, call: ApiCall[T]) -> T:
        """Send a call, and return its answer."""
        return self._wait(self.client.send(call))

    def pages(self, call: ApiCall[ItemPage[T]]) -> Iterator[T]:
        """The items of all pages from a call on, each page asked for when it is wanted."""
        return self.items(self.client.pages(call))

    def follow(self, stream: ApiStream[T]) -> Iterator[T]:
        """Yield the items of a stream, each once, over any number of connections."""
        return self.items(self.client.follow(stream))

    def items(self, source: AsyncIterator[T]) -> Iterator[T]:
        """The items of an asynchronous iterator, each when it is wanted."""
        end = object()

        async def following() -> T | object:
            return await anext(source, end)

        try:
            while (item := self._wait(following())) is not end:
                yield cast("T", item)
        finally:
            if isinstance(source, AsyncGenerator) and not self._loop.is_closed():
                self._wait(source.aclose())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # also of Ctrl-C, which ends what is waited for
            future.cancel()
            raise
