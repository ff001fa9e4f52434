"""Runs calls that may hang in a thread of their own, under a deadline; the loop never blocks.

NVML calls do hang: in the driver, uninterruptible. The thread is then lost until the call returns,
and nothing else is asked of it meanwhile. It is a daemon, so that it cannot keep the agent alive.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

LOOKS: Final = 4
"""Looks at the progress within one deadline."""


class ProbeHung(Exception):  # noqa: N818 - reads as the state it names
    """The call, or one before it, has not come back in time."""


class ProbeThread:
    """One thread for one kind of call."""

    def __init__(self, name: str) -> None:
        """Start the thread when it is first needed."""
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._running: asyncio.Future[Any] | None = None

    @property
    def hung(self) -> bool:
        """Whether a call is out that has not come back."""
        return self._running is not None and not self._running.done()

    async def call(
        self,
        function: Callable[[], T],
        deadline_seconds: float,
        progress: Callable[[], object] = lambda: None,
    ) -> T:
        """Run `function` in the thread; raise ProbeHung when the deadline passes first.

        Where `progress` gives another value than before, the deadline begins anew: many calls may
        take long together, one may not.
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
            except BaseException as raised:  # noqa: BLE001 - handed to whoever waits for it
                result, error = None, raised
            if loop.is_closed():
                return
            loop.call_soon_threadsafe(_settle, future, result, error)


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
        # Nobody may be waiting any more: the deadline passed. That was told as a fault then.
        future.exception()
    else:
        future.set_result(result)
