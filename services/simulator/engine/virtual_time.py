"""Virtual time: an event loop whose clock jumps to the next timer, the same in every run.

The clock jumps as soon as nothing is ready, so every `asyncio.sleep` and `asyncio.timeout` of the
services takes virtual time and hardly any real time. Tasks and futures hash by a number, because a
set of them would otherwise be iterated in the order of memory addresses. Threads are refused.
"""

import asyncio
import contextvars
import gc
import heapq
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Any, Final, TypeVar

T = TypeVar("T")

EPOCH: Final = datetime(2030, 1, 1, tzinfo=UTC)
"""When every simulation starts."""
COLLECT_SECONDS: Final = 600.0
"""Garbage is collected at fixed virtual times, so that finalizers run at the same moments."""


MOMENTS_MAX: Final = 16
"""Cached moments: the current one is read many times."""
CANCELLED_MIN: Final = 100
"""Fewer cancelled timers than this stay in the heap."""


class StalledError(RuntimeError):
    """Nothing is ready and no timer runs: the simulation cannot continue."""


class TaskOwner:
    """Owns tasks, and can end all of them: a simulated process."""

    def __init__(self) -> None:
        self.tasks: dict[asyncio.Task[Any], None] = {}

    def adopt(self, task: "asyncio.Task[Any]") -> None:
        """Own a task until it is done."""
        self.tasks[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self.tasks.pop(task, None)


TASK_OWNER: contextvars.ContextVar[TaskOwner | None] = contextvars.ContextVar(
    "task_owner", default=None
)
"""The owner of the current task; tasks that it starts inherit it."""


class _Task(asyncio.Task[T]):
    def __init__(self, coro: Any, *, number: int, **more: Any) -> None:
        self._number = number
        super().__init__(coro, **more)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Future(asyncio.Future[Any]):
    number = 0

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs an event loop in virtual time.

    Its own heap of timers replaces the inherited one: timers of the same moment run in the order in
    which they were set, and comparing them costs no call.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ready: deque[asyncio.Handle]
        self._stopping: bool
        self._now = 0.0
        self._collected = 0.0
        self._numbers = itertools.count(1)
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._cancelled = 0
        """Timers in the heap that will not run."""
        self._frozen: dict[TaskOwner | None, list[asyncio.Handle]] = {}
        """Owner -> what it does once it goes on."""
        self.set_task_factory(self._make)

    def time(self) -> float:
        """Return seconds since the start."""
        return self._now

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call at a moment; a moment in the past means next."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        handle._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001 - it counts its cancellation
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Count it if it is in the heap; clear the heap when most of it is cancelled."""
        if not handle._scheduled:  # type: ignore[attr-defined]  # noqa: SLF001 - as asyncio does
            return
        self._cancelled += 1
        if self._cancelled > CANCELLED_MIN and self._cancelled * 2 > len(self._timers):
            # In place: `_run_once` holds the list.
            self._timers[:] = [each for each in self._timers if not each[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _run_once(self) -> None:
        """Run rounds until the loop is to stop: what is ready, or else the next timer's moment."""
        timers, ready = self._timers, self._ready
        while True:
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
                self._cancelled -= 1
            if not ready:
                if not timers:
                    raise StalledError("nothing is ready and no timer runs")
                self._jump(timers[0][0])
            while timers and timers[0][0] <= self._now:
                handle = heapq.heappop(timers)[2]
                handle._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001 - as asyncio does
                if handle.cancelled():
                    self._cancelled -= 1
                else:
                    ready.append(handle)
            for _ in range(len(ready)):
                next_ = ready.popleft()
                if not next_.cancelled() and not (self._frozen and self._holds(next_)):
                    next_._run()  # noqa: SLF001 - as asyncio does
            if self._stopping:
                return

    def freeze(self, owner: TaskOwner, seconds: float) -> None:
        """Stop an owner's tasks at their next awaits for a while, as a signal stops a process.

        Its timers, answers and deliveries come due meanwhile, and run in their order afterwards.
        """
        if owner not in self._frozen:
            self._frozen[owner] = []
            outside = contextvars.copy_context()
            outside.run(TASK_OWNER.set, None)
            self.call_later(seconds, self._thaw, owner, context=outside)

    def _holds(self, handle: asyncio.Handle) -> bool:
        """Whether a step is held back until its owner goes on."""
        context = handle._context  # type: ignore[attr-defined]  # noqa: SLF001 - it has no other name
        held = self._frozen.get(context.get(TASK_OWNER, None))
        if held is None:
            return False
        held.append(handle)
        return True

    def _thaw(self, owner: TaskOwner) -> None:
        self._ready.extend(self._frozen.pop(owner))

    def _jump(self, when: float) -> None:
        self._now = max(self._now, when)
        if self._now - self._collected > COLLECT_SECONDS:
            self._collected = self._now
            gc.collect()

    def _make(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        context: contextvars.Context | None = None,
    ) -> "_Task[T]":
        task: _Task[T] = _Task(coro, loop=loop, context=context, number=next(self._numbers))
        owner = TASK_OWNER.get() if context is None else context.get(TASK_OWNER, None)
        if owner is not None:
            owner.adopt(task)
        return task

    def create_future(self) -> _Future:
        """Make a future that hashes by its number."""
        future = _Future(loop=self)
        future.number = next(self._numbers)
        return future

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        """Refuse: threads do not run in a fixed order."""
        del executor, args
        raise RuntimeError(f"{func}: no threads in virtual time")


class VirtualClock:
    """The clock of a simulation, as services see it."""

    def __init__(self, skew_seconds: float = 0.0) -> None:
        self._skew = timedelta(seconds=skew_seconds)

    def now(self) -> datetime:
        """Return the virtual time, in UTC."""
        found = moment(asyncio.get_running_loop().time())
        return found + self._skew if self._skew else found

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Wait for so many virtual seconds."""
        await asyncio.sleep(seconds)


@lru_cache(maxsize=MOMENTS_MAX)
def moment(seconds: float) -> datetime:
    """Return the time so many seconds after the start."""
    return EPOCH + timedelta(seconds=seconds)


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run the work in a new loop, from the start of virtual time; end every task that is left.

    Collections are at moments of virtual time, so that finalizers run at the same ones every time,
    and look at what the run has made alone: what exists before it is not searched again.
    """
    collecting, frozen = gc.isenabled(), _is_frozen()
    gc.disable()
    if frozen:  # by the program, for as long as it runs: little is left to search
        gc.collect()
    else:
        gc.freeze()
    try:
        return _run_to_end(work)
    finally:
        gc.collect()
        if not frozen:
            gc.unfreeze()
        if collecting:
            gc.enable()


@cache
def _is_frozen() -> bool:
    """Whether the program froze what it had made; asked once: it counts every such object."""
    return gc.get_freeze_count() > 0


def _run_to_end(work: Callable[[], Awaitable[T]]) -> T:
    loop, failed = VirtualLoop(), list[BaseException]()

    def on_failure(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # A task may well have failed as its process was killed; a timer's callback must not.
        if "handle" in context and isinstance(error := context.get("exception"), Exception):
            failed.append(error)

    loop.set_exception_handler(on_failure)
    try:
        found = loop.run_until_complete(_await(work))
        if failed:
            raise failed[0]
        return found
    finally:
        try:
            _cancel_all(loop)
        finally:
            loop.close()


async def _await(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


def _cancel_all(loop: VirtualLoop) -> None:
    left = sorted(asyncio.all_tasks(loop), key=hash)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
