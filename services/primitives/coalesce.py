"""Work that many ask for at once, done once for all of them: begun after each of them asked.

Callers that come while it is under way may know of something that it began too early to see; they
wait for the next one, and share that.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Joined(Generic[T]):
    """One run at a time for each key, and one that waits behind it."""

    def __init__(
        self, work: Callable[[str], Awaitable[T]], *, rest_seconds_max: float = 0.0
    ) -> None:
        """`work` is done for a key; after it the key rests as long as that took, up to a bound.

        So it is done for more callers at once, and takes half of the time at most.
        """
        self._work = work
        self._rest_seconds_max = rest_seconds_max
        self._rests_until: dict[str, float] = {}
        self._next: dict[str, asyncio.Task[T]] = {}
        self._now: dict[str, asyncio.Task[T]] = {}

    async def __call__(self, key: str) -> T:
        """What came of a run that began after this call; raise what it raised."""
        task = self._next.get(key)
        if task is None:
            task = asyncio.create_task(self._after(self._now.get(key), key))
            task.add_done_callback(_forget_error)
            self._next[key] = task
        # Shielded: one waiter that is cancelled must not take the run from the others.
        return await asyncio.shield(task)

    def waited_for(self, key: str) -> bool:
        """Return whether a caller waits for the run after this one."""
        return key in self._next

    async def close(self) -> None:
        """Cancel every run; their callers are cancelled as well."""
        tasks = [*self._now.values(), *self._next.values()]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _after(self, earlier: "asyncio.Task[T] | None", key: str) -> T:
        if earlier is not None:
            await asyncio.wait([earlier])
        clock = asyncio.get_running_loop().time
        if (rest := self._rests_until.get(key, 0.0) - clock()) > 0:
            await asyncio.sleep(rest)
        current = self._next.pop(key)
        self._now[key] = current
        began = clock()
        try:
            return await self._work(key)
        finally:
            if self._rest_seconds_max:
                took = min(clock() - began, self._rest_seconds_max)
                self._rests_until[key] = clock() + took
            if self._now.get(key) is current:
                del self._now[key]


def _forget_error(task: "asyncio.Task[T]") -> None:
    """Each caller has it; asyncio would log it where all of them were cancelled."""
    if not task.cancelled():
        task.exception()
