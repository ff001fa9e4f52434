"""A thread with an event loop of its own, in which one plugin from outside runs.

Each stretch of the plugin's code between two awaits is a step: it is timed, and written down before
it begins where `on_step` does so. A thread whose step does not end cannot be killed: it is given
up, as a daemon, and its caller goes on with another.
"""

import asyncio
import inspect
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

THREAD_PREFIX: Final = "plugin "
"""The names of all threads of plugins begin with this."""
STATM: Final = Path("/proc/self/statm")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
GROWTH_STEP_SECONDS: Final = 0.005
"""Shorter steps allocate little: the size of the process is not read for them."""
CLOSE_SECONDS: Final = 1.0

log = logging.getLogger(__name__)

OnStep = Callable[[str], None]
"""Is called with a step's label before it begins, and with nothing after it."""


class PluginExitError(Exception):
    """A plugin raised SystemExit or the like, which must not end its thread."""


class PluginThread:
    """Runs the calls of one plugin."""

    def __init__(self, name: str, on_step: OnStep | None = None) -> None:
        """Begin the thread; `name` is part of its own."""
        self.cpu_seconds = 0.0
        self.blocked_seconds = 0.0
        self.grown_bytes = 0
        self._on_step = on_step
        self._step: tuple[str, float] | None = None
        self._last = (0.0, 0.0)
        """When the last step began and ended."""
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._work, name=f"{THREAD_PREFIX}{name}", daemon=True
        )
        self._thread.start()

    @property
    def step(self) -> tuple[str, float] | None:
        """Return the step that runs now, and for how many seconds; None: none does."""
        step = self._step
        return None if step is None else (step[0], time.monotonic() - step[1])

    def longest_lately(self, seconds: float) -> float:
        """Return how long the running step, or the last one within `seconds`, has lasted."""
        step, now = self._step, time.monotonic()
        running = now - step[1] if step is not None else 0.0
        began, ended = self._last
        return max(running, ended - began if now - ended < seconds else 0.0)

    def begin(self, label: str, call: Callable[[], Any]) -> "asyncio.Future[Any]":
        """Begin a call; a coroutine that it returns is awaited in the thread as well."""
        future = asyncio.run_coroutine_threadsafe(self._answer(label, call), self._loop)
        return asyncio.wrap_future(future)

    def close(self) -> None:
        """End the thread with its running step; what it still does is of no interest."""
        self._closed = True
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)

    def join(self) -> bool:
        """Wait a moment for the thread's end, and return whether it has ended."""
        self._thread.join(CLOSE_SECONDS)
        return not self._thread.is_alive()

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._closed:
            try:
                self._loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - a task of the plugin's own raised it
                log.warning("a task in the thread %s raised %r", self._thread.name, error)
        with suppress(Exception):
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
        with suppress(Exception):
            self._loop.close()

    async def _answer(self, label: str, call: Callable[[], Any]) -> Any:
        try:
            found = self._run_step(label, call)
            if inspect.iscoroutine(found):
                return await _Stepped(found, partial(self._run_step, label))
            return await found if inspect.isawaitable(found) else found
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            raise PluginExitError(f"{type(error).__name__}: {error}") from error

    def _run_step(self, label: str, step: Callable[[], Any]) -> Any:
        if self._on_step is not None:
            self._on_step(label)
        size, began, used = _resident_bytes(), time.monotonic(), time.thread_time()
        self._step = (label, began)
        try:
            return step()
        finally:
            self._step = None
            self._last = (began, time.monotonic())
            took = self._last[1] - began
            self.blocked_seconds += took
            self.cpu_seconds += time.thread_time() - used
            if took >= GROWTH_STEP_SECONDS:
                self.grown_bytes += max(_resident_bytes() - size, 0)
            if self._on_step is not None:
                self._on_step("")


class _Stepped(Awaitable[Any]):
    """A plugin's coroutine, each of whose steps is run by `run_step`."""

    def __init__(
        self, work: Coroutine[Any, Any, Any], run_step: Callable[[Callable[[], Any]], Any]
    ) -> None:
        self._work = work
        self._run_step = run_step

    def __await__(self) -> Generator[Any, Any, Any]:
        """Pass on what the coroutine awaits, and what comes of that."""
        step: Callable[[], Any] = partial(self._work.send, None)
        while True:
            try:
                awaited = self._run_step(step)
            except StopIteration as end:
                return end.value
            try:
                value = yield awaited
            except GeneratorExit:
                self._work.close()
                raise
            except BaseException as error:  # noqa: BLE001 - cancellations are the coroutine's, too
                step = partial(self._work.throw, error)
            else:
                step = partial(self._work.send, value)


def _resident_bytes() -> int:
    try:
        return int(STATM.read_bytes().split()[1]) * PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
