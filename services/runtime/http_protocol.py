"""The HTTP/1.1 protocol of every server ends slow requests, and refuses those with two ends."""

import asyncio
from typing import Any, Final, TypeAlias

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from services.runtime.connection_slots import ConnectionSlots
from services.runtime.stranger_turns import STRANGER

PEER_CERTIFICATE: Final = "navarch-peer-certificate"
"""Key in a request's state: what `ssl.SSLSocket.getpeercert()` says; empty without one."""
KNOW_CALLER: Final = "navarch-know-caller"
"""Key in a request's state: what to call with its authenticated caller's name; False: no room."""
HEAD_SECONDS_MAX: Final = 10.0
"""From the connection, or from a request's first byte, to the end of its head."""
LENGTH: Final = b"content-length"
TRANSFER: Final = b"transfer-encoding"
HTTP_1_1: Final = b"1.1"
"""In HTTP/1.0 there are no chunks: a proxy of that version passes the field on unread."""


class OneEndConnection(h11.Connection):
    """A parser that refuses a request of which another could believe that it ends elsewhere.

    The library goes by the chunks then, and a proxy in front may go by the length: what it took
    for a body would be a request of its own.
    """

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return what was received; RemoteProtocolError ends the connection with status 400."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if TRANSFER in names and (LENGTH in names or event.http_version < HTTP_1_1):
                raise h11.RemoteProtocolError("a body has one length")
        return event


class PromptH11Protocol(H11Protocol):
    """The protocol has that limit; an answer that is under way, as an event stream, has none."""

    _late: asyncio.TimerHandle | None = None
    _has_ended = False

    def __init__(self, *more: Any, slots: "Slots") -> None:
        """Serve one connection, which `slots` may end for another."""
        super().__init__(*more)
        self._slots = slots

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self.conn = OneEndConnection(h11.SERVER)
        peer = transport.get_extra_info("peercert") or {}
        self.app_state = {
            **self.app_state,
            PEER_CERTIFICATE: peer,
            KNOW_CALLER: lambda caller: self._slots.know(self, caller),
            STRANGER: lambda: not self._has_ended and self._slots.is_stranger(self),
        }
        self._wait()
        if (other := self._slots.add(self, self.client[0] if self.client else "")) is not None:
            # One that does not read would never be done with what it is sent.
            other.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Wait on for the rest, but no longer."""
        super().data_received(data)
        if self._is_answering():
            self._cancel()
        elif self._late is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing."""
        self._has_ended = True
        self._cancel()
        self._slots.remove(self)
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


Slots: TypeAlias = ConnectionSlots[PromptH11Protocol]
