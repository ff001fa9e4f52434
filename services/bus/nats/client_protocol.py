"""Declares what Navarch uses of the NATS client."""

from collections.abc import Awaitable
from typing import Any, Protocol


class ClientMessage(Protocol):
    """A message as the client gives it."""

    subject: str
    reply: str
    data: bytes
    headers: dict[str, str] | None


class NatsClient(Protocol):
    """The few calls of the client that pulling and requesting need."""

    @property
    def is_connected(self) -> bool:
        """Return whether a server is connected now."""

    @property
    def stats(self) -> dict[str, int]:
        """`reconnects`: how often it was connected again."""

    def new_inbox(self) -> str:
        """Return a fresh reply subject."""

    def subscribe(
        self,
        subject: str,
        *,
        cb: Any,
        pending_msgs_limit: int,
        pending_bytes_limit: int,
    ) -> Awaitable[Any]:
        """Subscribe with a callback."""

    async def end(self, subscription: Any) -> None:
        """End a subscription once what the server had sent for it has been handed over."""

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Publish a message without waiting for an acknowledgement."""
