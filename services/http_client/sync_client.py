"""`Navarch`: the HTTP API as methods that wait, over the asyncio client in a thread of its own."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from threading import Thread
from typing import Any, Self, TypeVar, cast

from services.http_client.api_call import ApiCall, ApiStream, ItemPage
from services.http_client.api_methods import ApiMethods, WaitingClient
from services.http_client.async_client import AsyncNavarch
from services.http_client.http_transport import GIVE_UP_SECONDS, TIMEOUT_SECONDS, TRIES_MAX

T = TypeVar("T")


class Navarch(ApiMethods, WaitingClient):
    """A gateway: `with Navarch("https://navarch.example.com") as fleet`."""

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
        """The items of a stream, each once, over any number of connections."""
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
