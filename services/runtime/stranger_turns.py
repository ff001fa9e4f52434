"""Strangers' requests begin one after the other, so that many at once delay no other.

A connection has one request at a time, but there may be thousands of strangers' connections. Were
all their requests begun in one turn of the event loop, a probe or a caller would wait for them all.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, NamedTuple, TypeAlias

from services.runtime.connection_slots import site

STRANGER: Final = "navarch-stranger"
"""Key in a request's state: says whether its connection is open, and no authenticated caller's."""
Scope: TypeAlias = MutableMapping[str, Any]
App: TypeAlias = Callable[[Scope, Any, Any], Awaitable[None]]


class _Waiting(NamedTuple):
    turn: "asyncio.Future[bool]"
    is_stranger: Callable[[], bool]


class StrangerTurns:
    """Middleware that begins one stranger's request in each turn of the loop, each address in turn.

    A request that waits for something later, as for the bus, keeps no other from its turn. Each
    connection has one in the queue at most; those whose connections have ended are dropped.
    """

    def __init__(self, app: App) -> None:
        """Serve `app`."""
        self._app = app
        self._waiting: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        self._is_going_on = False

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer a request, in its turn where it is a stranger's."""
        is_stranger = scope.get("state", {}).get(STRANGER)
        if is_stranger is None or not is_stranger() or await self._turn(scope, is_stranger):
            await self._app(scope, receive, send)

    async def _turn(self, scope: Scope, is_stranger: Callable[[], bool]) -> bool:
        """Wait for it; False: the connection has ended meanwhile."""
        loop = asyncio.get_running_loop()
        place = site((scope.get("client") or ("",))[0])
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting.setdefault(place, deque()).append(_Waiting(turn, is_stranger))
        if not self._is_going_on:
            self._is_going_on = True
            loop.call_soon(self._next)
        return await turn

    def _next(self) -> None:
        began = False
        while self._waiting and not began:
            place, queue = self._waiting.popitem(last=False)
            first = queue.popleft()
            if queue:
                self._waiting[place] = queue
            if not first.turn.done():
                began = first.is_stranger()
                first.turn.set_result(began)
        self._is_going_on = bool(self._waiting)
        if self._is_going_on:
            asyncio.get_running_loop().call_soon(self._next)
