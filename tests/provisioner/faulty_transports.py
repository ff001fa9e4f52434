"""Transports inject faults between a provider and its cloud.

The provider's process dies, or an answer is lost.
"""

import httpx

from tests.provisioner.provisioner_parts import Life


class MortalTransport(httpx.AsyncHTTPTransport):
    """Dies before a request goes out or after its answer came in, at one point of its life."""

    def __init__(self, life: Life, *, uds: str | None = None) -> None:
        """Live as long as that; go through the socket `uds` where there is one."""
        super().__init__(uds=uds)
        self._life = life

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass it on, and maybe die."""
        self._life.point()
        answer = await super().handle_async_request(request)
        await answer.aread()
        self._life.point()
        return answer


class LosingTransport(httpx.AsyncHTTPTransport):
    """Loses the answer to one request, which takes effect all the same."""

    def __init__(self, number: int) -> None:
        """Lose that of the so-manieth request, counted from one."""
        super().__init__()
        self._left = number

    @property
    def lost(self) -> bool:
        """Return whether the request whose answer is lost has been made."""
        return self._left <= 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass it on, and maybe lose what comes back."""
        answer = await super().handle_async_request(request)
        await answer.aread()
        self._left -= 1
        if self._left == 0:
            raise httpx.ReadTimeout("the answer was lost", request=request)
        return answer
