"""The way between a process and the in-memory server: what a simulation bends, breaks and delays.

Every call passes `there` on its way and `back` on its return. Between the two lies its effect, so
a link that raises in `there` has lost the request, and one that raises in `back` has lost the
answer of something that took place.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Link(Protocol):
    """Connects one process with the server."""

    @property
    def up(self) -> bool:
        """Return whether the server can be reached now."""

    async def there(self, call: str, about: str) -> None:
        """Bring a request to the server; Unavailable where it never arrives."""

    async def back(self, call: str, about: str) -> None:
        """Bring the answer back; Unavailable where it is lost."""

    def settles(self, word: str, about: str) -> bool:
        """Return whether an acknowledgement, which has no reply, arrives."""

    def arrives(self, about: str, hand_over: Callable[[], None]) -> None:
        """Hand a delivery over, now or later."""


class PerfectLink:
    """Always up, loses nothing, takes no time."""

    @property
    def up(self) -> bool:
        """Return whether the server can be reached now."""
        return True

    async def there(self, call: str, about: str) -> None:
        """Let others have their turn, as any call over a wire does."""
        del call, about
        await asyncio.sleep(0)

    async def back(self, call: str, about: str) -> None:
        """Nothing is in the way."""
        del call, about

    def settles(self, word: str, about: str) -> bool:
        """Every acknowledgement arrives."""
        del word, about
        return True

    def arrives(self, about: str, hand_over: Callable[[], None]) -> None:
        """Hand it over at once."""
        del about
        hand_over()
