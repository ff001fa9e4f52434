"""Virtual time: waiting takes no real time, and equal work runs equally."""

import asyncio
import contextvars
import time

import pytest

from services.simulator.engine.virtual_time import (
    EPOCH,
    TASK_OWNER,
    StalledError,
    TaskOwner,
    VirtualClock,
    VirtualLoop,
    run,
)


def test_an_hour_takes_no_time():
    """Sleeps and timeouts take virtual time only."""

    async def hour() -> tuple[float, bool]:
        clock = VirtualClock()
        begun = clock.now()
        await clock.sleep(3_000)
        late = False
        try:
            async with asyncio.timeout(600):
                await asyncio.Event().wait()
        except TimeoutError:
            late = True
        assert begun == EPOCH
        return (clock.now() - begun).total_seconds(), late

    began = time.process_time()
    assert run(hour) == (3_600.0, True)
    # Garbage of the tests before may be collected meanwhile, which takes a second or two.
    assert time.process_time() - began < 60


def test_a_stalled_simulation_is_an_error():
    """A wait that nothing ends is an error, not a hang."""

    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(StalledError):
        run(wait)


def test_sets_of_tasks_are_walked_the_same_way_in_every_run():
    """The order of cancellation does not depend on memory addresses."""

    async def order() -> list[int]:
        ended: list[int] = []

        async def one(number: int) -> None:
            try:
                await asyncio.sleep(100)
            finally:
                ended.append(number)

        tasks = {asyncio.create_task(one(number)) for number in range(50)}
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return ended

    junk = [object() for _ in range(1000)]
    first = run(order)
    del junk[::2]
    assert [run(order) for _ in range(3)] == [first] * 3


def test_threads_are_refused():
    """Threads would not run in a fixed order."""

    async def thread() -> None:
        await asyncio.to_thread(time.monotonic)

    with pytest.raises(RuntimeError, match="no threads in virtual time"):
        run(thread)


def test_a_timer_that_fails_fails_the_run():
    """A run cannot go on where the work of a failed timer is missing."""

    async def work() -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 / 0)
        await asyncio.sleep(2)

    with pytest.raises(ZeroDivisionError):
        run(work)


def test_a_frozen_owner_does_nothing_and_misses_nothing() -> None:
    """The owner's timers come due meanwhile and run afterwards, in order; others go on."""
    seen: list[tuple[float, str]] = []

    async def tick(name: str) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(6):
            await asyncio.sleep(1.0)
            seen.append((loop.time(), name))

    async def world() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        owner = TaskOwner()
        context = contextvars.copy_context()
        context.run(TASK_OWNER.set, owner)
        tasks = [
            loop.create_task(tick("frozen"), context=context),
            loop.create_task(tick("free")),
        ]
        loop.call_at(2.5, loop.freeze, owner, 10.5)
        await asyncio.wait(tasks)

    run(world)
    assert [at for at, name in seen if name == "free"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert [at for at, name in seen if name == "frozen"] == [1.0, 2.0, 13.0, 14.0, 15.0, 16.0]
