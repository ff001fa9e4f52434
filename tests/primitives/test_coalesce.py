"""Work that many ask for at once: done for all of them together, begun after each has asked."""

import asyncio

import pytest

from services.primitives.coalesce import Joined


class Work:
    """Work that waits to be let go, and counts."""

    def __init__(self) -> None:
        """Not begun."""
        self.begun = 0
        self.goes = asyncio.Event()
        self.fails = False

    async def __call__(self, key: str) -> str:
        """Wait, and say which time it is."""
        self.begun += 1
        number = self.begun
        await self.goes.wait()
        if self.fails:
            raise ValueError(key)
        return f"{key}{number}"


async def asking(joined: Joined[str], key: str, count: int) -> list[asyncio.Task[str]]:
    """Start so many callers, and let them go on as far as they come by themselves."""
    asked = [asyncio.create_task(joined(key)) for _ in range(count)]
    for _ in range(3):
        await asyncio.sleep(0)
    return asked


async def test_a_late_caller_shares_the_next_run() -> None:
    """A run that has begun may not have seen what brought them."""
    work = Work()
    joined = Joined(work)
    first = await asking(joined, "a", 2)
    later = await asking(joined, "a", 50)
    other = await asking(joined, "b", 1)

    assert joined.waited_for("a")
    assert not joined.waited_for("b")
    work.goes.set()
    assert ["a1"] * 2 == await asyncio.gather(*first)
    assert ["b2"] == await asyncio.gather(*other)
    assert ["a3"] * 50 == await asyncio.gather(*later)
    assert not joined.waited_for("a")


async def test_a_failure_is_of_all_who_waited_for_that_run() -> None:
    """A failure is raised to all who waited for that run, and not to those who come after."""
    work = Work()
    joined = Joined(work)
    work.fails = True
    asked = await asking(joined, "a", 2)
    work.goes.set()

    for each in asked:
        with pytest.raises(ValueError, match="a"):
            await each
    work.fails = False
    assert "a2" == await joined("a")


async def test_a_cancelled_caller_does_not_cancel_the_run() -> None:
    """The run goes on for the others."""
    work = Work()
    joined = Joined(work)
    leaving, staying = await asking(joined, "a", 2)
    leaving.cancel()
    work.goes.set()

    assert "a1" == await staying
    assert leaving.cancelled()
