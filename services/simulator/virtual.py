"""Time that passes only when nothing is left to do, and an event loop that is the same every run.

The loop's `time()` is a number that jumps to the next timer as soon as nothing is ready, so every
`asyncio.sleep` and `asyncio.timeout` of the services takes virtual time and hardly any real one.
Tasks and futures hash by a count, because a set of them would otherwise be walked in the order of
memory addresses. What would bring the outside world in (threads, sockets) is refused.
"""

import asyncio
import contextvars
import gc
import itertools
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

T = TypeVar("T")

EPOCH: Final = datetime(2030, 1, 1, tzinfo=UTC)
"""When every simulation begins."""
COLLECT_SECONDS: Final = 600.0
"""Garbage is collected at fixed virtual moments: what finalizers do must not depend on chance."""


class StalledError(RuntimeError):
    """Nothing is ready, no timer runs: the simulation would stand still for ever."""


class Member:
    """Whatever owns tasks and may end with all of them: a simulated process."""

    def __init__(self) -> None:
        """Own nothing yet."""
        self.tasks: dict[asyncio.Task[Any], None] = {}

    def adopt(self, task: "asyncio.Task[Any]") -> None:
        """Own a task until it is done."""
        self.tasks[task] = None
        task.add_done_callback(self._left)

    def _left(self, task: "asyncio.Task[Any]") -> None:
        self.tasks.pop(task, None)


MEMBER: contextvars.ContextVar[Member | None] = contextvars.ContextVar("member", default=None)
"""Whose work is being done; inherited by every task that the work starts."""


class _Task(asyncio.Task[T]):
    """A task with a number."""

    def __init__(self, coro: Any, *, number: int, **more: Any) -> None:
        self._number = number
        super().__init__(coro, **more)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Future(asyncio.Future[Any]):
    """A future with a number."""

    number = 0

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Jump(selectors.SelectSelector):
    """Instead of waiting it lets time jump."""

    def __init__(self) -> None:
        super().__init__()
        self.jump: Callable[[float | None], None] = lambda _: None

    def select(self, timeout: float | None = None) -> list[Any]:
        """Nothing ever comes from outside."""
        self.jump(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        """Begin at zero."""
        selector = _Jump()
        super().__init__(selector)
        selector.jump = self._jump
        self._now = 0.0
        self._collected = 0.0
        self._numbers = itertools.count(1)
        self.set_task_factory(self._make)

    def time(self) -> float:
        """Seconds since the beginning."""
        return self._now

    def _jump(self, timeout: float | None) -> None:
        if timeout is None:
            raise StalledError("nothing is ready and no timer runs")
        if timeout > 0:
            self._now += timeout
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
        member = MEMBER.get() if context is None else context.get(MEMBER, None)
        if member is not None:
            member.adopt(task)
        return task

    def create_future(self) -> _Future:
        """Make a future that hashes by its number."""
        future = _Future(loop=self)
        future.number = next(self._numbers)
        return future

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        """Threads run when they like: not here."""
        del executor, args
        raise RuntimeError(f"{func}: no threads in virtual time")


class VirtualClock:
    """The clock of a simulation, as services ask it."""

    def __init__(self, skew_seconds: float = 0.0) -> None:
        """Show the loop's time, wrong by `skew_seconds`."""
        self._skew = timedelta(seconds=skew_seconds)

    def now(self) -> datetime:
        """The moment, in UTC."""
        return moment(asyncio.get_running_loop().time()) + self._skew

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


def moment(seconds: float) -> datetime:
    """The moment so many seconds after the beginning."""
    return EPOCH + timedelta(seconds=seconds)


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Do the work in a loop of its own, from the beginning of time; nothing of it is left over."""
    loop = VirtualLoop()
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        return loop.run_until_complete(_awaited(work))
    finally:
        try:
            _cancel_all(loop)
        finally:
            loop.close()
            if collecting:
                gc.enable()


async def _awaited(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


def _cancel_all(loop: VirtualLoop) -> None:
    left = sorted(asyncio.all_tasks(loop), key=hash)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
