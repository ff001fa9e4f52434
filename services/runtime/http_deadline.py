"""What HTTP connections of uvicorn lack: a limit on the wait for a request, peer certificates."""

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

PEER_CERTIFICATE: Final = "navarch-peer-certificate"
"""Key in a request's state: what `ssl.SSLSocket.getpeercert()` says; empty without one."""
HEAD_SECONDS_MAX: Final = 10.0
"""From the connection, or from a request's first byte, to the end of its head."""


class PromptH11Protocol(H11Protocol):
    """HTTP/1.1 with that limit; an answer that is under way, as an event stream, has none."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peercert") or {}
        self.app_state = {**self.app_state, PEER_CERTIFICATE: peer}
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait on for the rest, but no longer."""
        super().data_received(data)
        if self._is_answering():
            self._cancel()
        elif self._late is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing."""
        self._cancel()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._late = self.loop.call_later(HEAD_SECONDS_MAX, self._end)

    def _cancel(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self) -> None:
        self._late = None
        if not self._is_answering():
            self.transport.close()
