"""`Navarch`: the HTTP API as methods that wait, over the asyncio client in a thread of its own."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import wraps
from threading import Thread
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from services.gateway.views import EventView
from services.http_client import gateway_calls
from services.http_client.async_client import AsyncNavarch, signed
from services.http_client.gateway_calls import ApiCall
from services.http_client.http_transport import GIVE_UP_SECONDS, TIMEOUT_SECONDS, TRIES_MAX

P = ParamSpec("P")
T = TypeVar("T")


def _waiting(call: Callable[P, ApiCall[T]]) -> Callable[Concatenate["Navarch", P], T]:
    """The method that sends a call and waits for its answer."""

    @wraps(call)
    def method(self: "Navarch", /, *args: P.args, **given: P.kwargs) -> T:
        return self.send(call(*args, **given))

    return signed(method, call)


def _each(
    read: Callable[Concatenate[AsyncNavarch, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate["Navarch", P], Iterator[T]]:
    """The method that reads all pages, each when it is wanted."""

    def method(self: "Navarch", /, *args: P.args, **given: P.kwargs) -> Iterator[T]:
        return self.items(read(self.client, *args, **given))

    method.__name__, method.__doc__ = read.__name__, read.__doc__
    return method


class Navarch:
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
        self._wait(self.client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def send(self, call: ApiCall[T]) -> T:
        """Send a call, and return its answer."""
        return self._wait(self.client.send(call))

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

    list_nodes = _waiting(gateway_calls.list_nodes)
    get_node = _waiting(gateway_calls.get_node)
    get_node_why = _waiting(gateway_calls.get_node_why)
    get_node_timeline = _waiting(gateway_calls.get_node_timeline)
    get_node_samples = _waiting(gateway_calls.get_node_samples)
    get_node_evidence = _waiting(gateway_calls.get_node_evidence)
    list_evidence = _waiting(gateway_calls.list_evidence)
    list_instances = _waiting(gateway_calls.list_instances)
    list_pools = _waiting(gateway_calls.list_pools)
    get_pool = _waiting(gateway_calls.get_pool)
    get_pool_status = _waiting(gateway_calls.get_pool_status)
    get_pool_why = _waiting(gateway_calls.get_pool_why)
    get_pool_history = _waiting(gateway_calls.get_pool_history)
    list_sagas = _waiting(gateway_calls.list_sagas)
    get_saga = _waiting(gateway_calls.get_saga)
    get_saga_why = _waiting(gateway_calls.get_saga_why)
    list_offerings = _waiting(gateway_calls.list_offerings)
    list_incidents = _waiting(gateway_calls.list_incidents)
    get_budget = _waiting(gateway_calls.get_budget)
    get_caller = _waiting(gateway_calls.get_caller)
    get_policy = _waiting(gateway_calls.get_policy)
    list_events = _waiting(gateway_calls.list_events)

    cordon_node = _waiting(gateway_calls.cordon_node)
    uncordon_node = _waiting(gateway_calls.uncordon_node)
    release_node = _waiting(gateway_calls.release_node)
    drain_node = _waiting(gateway_calls.drain_node)
    replace_node = _waiting(gateway_calls.replace_node)
    reset_gpu_node = _waiting(gateway_calls.reset_gpu_node)
    reboot_node = _waiting(gateway_calls.reboot_node)
    terminate_node = _waiting(gateway_calls.terminate_node)
    dry_run_node = _waiting(gateway_calls.dry_run_node)
    hold_node = _waiting(gateway_calls.hold_node)
    diagnose_node = _waiting(gateway_calls.diagnose_node)
    scale_pool = _waiting(gateway_calls.scale_pool)
    open_breaker = _waiting(gateway_calls.open_breaker)
    close_breaker = _waiting(gateway_calls.close_breaker)
    up_pool = _waiting(gateway_calls.up_pool)
    down_pool = _waiting(gateway_calls.down_pool)
    cancel_saga = _waiting(gateway_calls.cancel_saga)
    retry_saga = _waiting(gateway_calls.retry_saga)
    proceed_saga = _waiting(gateway_calls.proceed_saga)

    each_node = _each(AsyncNavarch.each_node)
    each_instance = _each(AsyncNavarch.each_instance)
    each_event = _each(AsyncNavarch.each_event)

    def follow_events(
        self,
        *,
        after: int | None = None,
        pool: str = "",
        node: str = "",
        kinds: Sequence[str] = (),
    ) -> Iterator[EventView]:
        """Events as they are stored, as of AsyncNavarch."""
        return self.items(self.client.follow_events(after=after, pool=pool, node=node, kinds=kinds))
