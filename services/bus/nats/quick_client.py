"""nats-py's client, changed where it is slow, or where its answer to a fault is not ours."""

import asyncio
import ssl
from contextlib import suppress
from typing import Final

import nats.errors
from nats.aio.client import Client, Srv
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from services.bus.nats.connection_options import ConnectOptions, current_tls
from services.bus.protocol.server_protocol import parse_header_lines

PERMISSIONS: Final = "permissions violation"
END_SECONDS_MAX: Final = 1.0


class QuickClient(Client):
    """The client, with the one part of reading a message that is slow made quick.

    And it sends no credentials over a connection that was to be encrypted and is not: the client
    itself encrypts only where the server, or an impostor, asks for it.
    """

    must_encrypt = False
    tls_of: ConnectOptions

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """Made for each connection."""
        found = super().ssl_context
        return current_tls(self.tls_of, found) if "tls" in self.options else found

    def _connect_command(self) -> bytes:
        """The first message to a server, at each connection."""
        if self.must_encrypt and not self._server_info.get("tls_required"):
            raise nats.errors.Error("the server offers no TLS, which the configuration requires")
        return super()._connect_command()

    _parse_header_lines = staticmethod(parse_header_lines)

    async def end(self, subscription: Subscription) -> None:
        """End a subscription once what the server had sent for it has been handed over."""
        if self.is_connected:
            with suppress(TimeoutError, nats.errors.Error):
                async with asyncio.timeout(END_SECONDS_MAX):
                    await self._send_unsubscribe(subscription._id)  # noqa: SLF001
                    await self.barrier()
                    while subscription.pending_msgs:  # noqa: ASYNC110
                        await asyncio.sleep(0)  # its callback takes them
        await subscription.unsubscribe()

    async def barrier(self) -> None:
        """Return when the server has taken in what was sent, and what it had sent is here.

        A message to ourselves: the client's own flush writes its ping ahead of what is buffered.
        """
        back = asyncio.Event()

        async def arrived(_: Msg) -> None:
            back.set()

        inbox = self.new_inbox()
        subscription = await self.subscribe(inbox, cb=arrived)
        try:
            await self.publish(inbox, b"")
            await back.wait()
        finally:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _connect_to_server(self, s: Srv) -> None:
        """End where a cancellation was swallowed before: a connection error may take its place."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        await super()._connect_to_server(s)

    async def _process_err(self, err_msg: str) -> None:
        """Reconnect where credentials expire: the client would close for good."""
        if self.is_connected and PERMISSIONS not in err_msg.lower():
            await self._process_op_err(nats.errors.Error(f"nats: {err_msg}"))
        else:
            await super()._process_err(err_msg)
