"""Keeps calls to a provider apart, for those that count requests."""

import asyncio


class Pacer:
    """One turn each interval; who comes together goes one after the other, in order."""

    def __init__(self, interval_seconds: float) -> None:
        """Let the first go at once."""
        self._interval = interval_seconds
        self._free_at = 0.0

    async def turn(self) -> None:
        """Return when it is the caller's turn; a turn that is cancelled is lost to nobody else."""
        now = asyncio.get_running_loop().time()
        at = max(now, self._free_at)
        self._free_at = at + self._interval
        await asyncio.sleep(at - now)
