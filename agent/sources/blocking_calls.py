"""Runs calls that may hang in a thread, with a deadline, so that the event loop never blocks.

NVML calls can hang in the driver, uninterruptible. The thread is then lost until the call returns,
and no other call is made in it. It is a daemon thread, so that it cannot keep the agent alive.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

LOOKS: Final = 4
"""Progress checks within one deadline."""


class ProbeHung(Exception):  # noqa: N818 - reads as the state it names
    """The call, or one before it, exceeded its deadline."""


class ProbeThread:
    """Runs calls of one kind in one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._running: asyncio.Future[Any] | None = None

    @property
    def hung(self) -> bool:
        """Return whether a call has not returned yet."""
        return self._running is not None and not self._running.done()

    async def call(
        self,
        function: Callable[[], T],
        deadline_seconds: float,
        progress: Callable[[], object] = lambda: None,
    ) -> T:
        """Run `function` in the thread; raise ProbeHung when the deadline passes first.

        A new value of `progress` restarts the deadline: many calls may take long together, one may
        not.
        """
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, args=(loop,), name=self._name, daemon=True
            )
            self._thread.start()
        if self._running is not None and not self._running.done():
            await self._wait(self._running, deadline_seconds, progress)
        future: asyncio.Future[T] = loop.create_future()
        self._running = future
        self._calls.put((function, future))
        await self._wait(future, deadline_seconds, progress)
        return future.result()

    async def _wait(
        self,
        future: "asyncio.Future[Any]",
        deadline_seconds: float,
        progress: Callable[[], object],
    ) -> None:
        loop = asyncio.get_running_loop()
        before, since = progress(), loop.time()
        while True:
            done, _ = await asyncio.wait({future}, timeout=deadline_seconds / LOOKS)
            if done:
                return
            now = progress()
            if now != before:
                before, since = now, loop.time()
            elif loop.time() - since >= deadline_seconds:
                raise ProbeHung(f"no answer in {deadline_seconds:g} s")

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            function, future = self._calls.get()
            try:
                result, error = function(), None
            except BaseException as raised:  # noqa: BLE001 - passed to the caller
                result, error = None, raised
            if loop.is_closed():
                return
            loop.call_soon_threadsafe(_settle, future, result, error)


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
        # The caller may have given up at the deadline, which was reported as a fault then.
        future.exception()
    else:
        future.set_result(result)
