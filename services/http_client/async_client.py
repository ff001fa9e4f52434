"""`AsyncNavarch`: the HTTP API as methods of an asyncio program."""

import inspect
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeVar

from services.gateway.views import EventView
from services.http_client import gateway_calls
from services.http_client.gateway_calls import ApiCall
from services.http_client.http_transport import (
    GIVE_UP_SECONDS,
    TIMEOUT_SECONDS,
    TRIES_MAX,
    HttpTransport,
)
from services.http_client.server_options import server_options
from services.primitives.clock import SystemClock
from services.primitives.errors import NavarchError

P = ParamSpec("P")
T = TypeVar("T")
I_co = TypeVar("I_co", covariant=True)

PAGES_MAX: Final = 10_000
KEY_BYTES: Final = 12


class ItemPage(Protocol[I_co]):
    """Some items, and the cursor of what follows."""

    @property
    def items(self) -> Sequence[I_co]:
        """The items."""
        ...

    @property
    def next(self) -> str:
        """Empty: that was all."""
        ...


def _awaited(
    call: Callable[P, ApiCall[T]],
) -> Callable[Concatenate["AsyncNavarch", P], Coroutine[Any, Any, T]]:
    """The method that sends a call."""

    @wraps(call)
    async def method(self: "AsyncNavarch", /, *args: P.args, **given: P.kwargs) -> T:
        return await self.send(call(*args, **given))

    return signed(method, call)


def _each(
    call: Callable[P, ApiCall[ItemPage[T]]],
) -> Callable[Concatenate["AsyncNavarch", P], AsyncGenerator[T, None]]:
    """The method that reads all pages, each when it is wanted."""

    @wraps(call)
    async def method(
        self: "AsyncNavarch", /, *args: P.args, **given: P.kwargs
    ) -> AsyncGenerator[T, None]:
        asked = call(*args, **given)
        for _ in range(PAGES_MAX):
            page = await self.send(asked)
            for item in page.items:
                yield item
            if not page.next:
                return
            asked = replace(asked, query={**asked.query, "cursor": page.next})
        raise NavarchError(f"more than {PAGES_MAX} pages of {asked.path}: select fewer")

    return signed(method, call)


M = TypeVar("M", bound=Callable[..., Any])


def signed(method: M, call: Callable[..., Any]) -> M:
    """The method, with the call's parameters for `help` and editors."""
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    own = inspect.signature(call)
    found: Any = method
    found.__signature__ = own.replace(parameters=[me, *own.parameters.values()])
    del found.__wrapped__
    return method


class AsyncNavarch:
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

    list_nodes = _awaited(gateway_calls.list_nodes)
    get_node = _awaited(gateway_calls.get_node)
    get_node_why = _awaited(gateway_calls.get_node_why)
    get_node_timeline = _awaited(gateway_calls.get_node_timeline)
    get_node_samples = _awaited(gateway_calls.get_node_samples)
    get_node_evidence = _awaited(gateway_calls.get_node_evidence)
    list_evidence = _awaited(gateway_calls.list_evidence)
    list_instances = _awaited(gateway_calls.list_instances)
    list_pools = _awaited(gateway_calls.list_pools)
    get_pool = _awaited(gateway_calls.get_pool)
    get_pool_status = _awaited(gateway_calls.get_pool_status)
    get_pool_why = _awaited(gateway_calls.get_pool_why)
    get_pool_history = _awaited(gateway_calls.get_pool_history)
    list_sagas = _awaited(gateway_calls.list_sagas)
    get_saga = _awaited(gateway_calls.get_saga)
    get_saga_why = _awaited(gateway_calls.get_saga_why)
    list_offerings = _awaited(gateway_calls.list_offerings)
    list_incidents = _awaited(gateway_calls.list_incidents)
    get_budget = _awaited(gateway_calls.get_budget)
    get_caller = _awaited(gateway_calls.get_caller)
    get_policy = _awaited(gateway_calls.get_policy)
    list_events = _awaited(gateway_calls.list_events)

    cordon_node = _awaited(gateway_calls.cordon_node)
    uncordon_node = _awaited(gateway_calls.uncordon_node)
    release_node = _awaited(gateway_calls.release_node)
    drain_node = _awaited(gateway_calls.drain_node)
    replace_node = _awaited(gateway_calls.replace_node)
    reset_gpu_node = _awaited(gateway_calls.reset_gpu_node)
    reboot_node = _awaited(gateway_calls.reboot_node)
    terminate_node = _awaited(gateway_calls.terminate_node)
    dry_run_node = _awaited(gateway_calls.dry_run_node)
    hold_node = _awaited(gateway_calls.hold_node)
    diagnose_node = _awaited(gateway_calls.diagnose_node)
    scale_pool = _awaited(gateway_calls.scale_pool)
    open_breaker = _awaited(gateway_calls.open_breaker)
    close_breaker = _awaited(gateway_calls.close_breaker)
    up_pool = _awaited(gateway_calls.up_pool)
    down_pool = _awaited(gateway_calls.down_pool)
    cancel_saga = _awaited(gateway_calls.cancel_saga)
    retry_saga = _awaited(gateway_calls.retry_saga)
    proceed_saga = _awaited(gateway_calls.proceed_saga)

    each_node = _each(gateway_calls.list_nodes)
    each_instance = _each(gateway_calls.list_instances)

    async def each_event(
        self,
        *,
        since: str = "1h",
        pool: str = "",
        node: str = "",
        kinds: Sequence[str] = (),
        limit: int = 1_000,
    ) -> AsyncGenerator[EventView, None]:
        """Stored events, oldest first, in pages of `limit`."""
        after = 0
        for _ in range(PAGES_MAX):
            page = await self.list_events(
                since=since, after=after, pool=pool, node=node, kinds=kinds, limit=limit
            )
            for event in page.items:
                yield event
            if not page.more:
                return
            after = page.next
        raise NavarchError(f"more than {PAGES_MAX} pages of events: begin later")

    def follow_events(
        self,
        *,
        after: int | None = None,
        pool: str = "",
        node: str = "",
        kinds: Sequence[str] = (),
    ) -> AsyncGenerator[EventView, None]:
        """Events as they are stored, each once: after a sequence, or from now on.

        A connection that breaks is made again, and the stream goes on where it was.
        EventsResetError where a restored store has set the events back.
        """
        return self._transport.follow({"pool": pool, "node": node, "type": list(kinds)}, after)
