"""Cancels a call at its n-th await, so that the conformance suite can check every time-out.

A call is driven by hand from one await to the next, so that every point of cancellation is reached
once.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any


class CallCancellation:
    """Drives a call from await to await, and cancels it at one of them."""

    def __init__(self, call: Coroutine[Any, Any, Any], point: int) -> None:
        """Cancel it at its await number `point`, counted from one."""
        self._call = call
        self._point = point
        self.reached = False
        """Whether the call had as many awaits."""

    async def run(self) -> None:
        """Drive it to the cut or its end, in its own task, which is then cancelled."""
        await drive_call(self._call, self._at)

    def _at(self, awaits: int) -> None:
        task = asyncio.current_task()
        if awaits == self._point and task is not None:
            self.reached = True
            task.cancel()


@types.coroutine
def drive_call(
    call: Coroutine[Any, Any, Any], at: Callable[[int], None]
) -> Generator[Any, Any, Any]:
    """Pass on what a call awaits, report the count of awaits at each, and return its result."""
    awaits: int = 0
    error: BaseException | None = None
    while True:
        try:
            awaited = call.send(None) if error is None else call.throw(error)
        except StopIteration as ended:
            return ended.value
        awaits, error = awaits + 1, None
        at(awaits)
        try:
            yield awaited
        except BaseException as raised:  # noqa: BLE001 - passed to the call
            error = raised
