"""nats-py's client, changed where it is slow, or where its answer to a fault is not ours."""

import ssl
from typing import Final

import nats.errors
from nats.aio.client import Client

from services.bus.nats.connection_options import ConnectOptions, current_tls
from services.bus.protocol.server_protocol import parse_header_lines

PERMISSIONS: Final = "permissions violation"


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

    async def _process_err(self, err_msg: str) -> None:
        """Reconnect where credentials expire: the client would close for good."""
        if self.is_connected and PERMISSIONS not in err_msg.lower():
            await self._process_op_err(nats.errors.Error(f"nats: {err_msg}"))
        else:
            await super()._process_err(err_msg)
