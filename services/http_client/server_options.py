"""Selects which gateway is called, and with which token.

Pure, but for the file of the authority.
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from services.primitives.errors import NavarchError
from services.primitives.redaction import public_url, register_secret

SERVER_VARIABLE: Final = "NAVARCH_SERVER"
TOKEN_VARIABLE: Final = "NAVARCH_AUTH_TOKEN"  # noqa: S105 - the variable's name
CA_VARIABLE: Final = "NAVARCH_CA_FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Names a gateway and the token for it."""

    url: str
    """Without a slash at the end."""
    token: str = field(default="", repr=False)
    ca_file: str = ""
    """Of the authority that signed its certificate; empty: those of this machine."""

    def tls(self) -> ssl.SSLContext:
        """Return how certificates are verified; NavarchError where the file has none."""
        if self.url.startswith("http:"):
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # of no authority, and not used
        try:
            return ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:
            raise NavarchError(f"{CA_VARIABLE}: {self.ca_file} cannot be read: {error}") from error


def server_options(
    server: str = "",
    token: str = "",
    ca_file: str = "",
    environment: Mapping[str, str] = os.environ,
) -> ServerOptions:
    """The gateway of these options, or of the environment; NavarchError where none is named."""
    url = (server or environment.get(SERVER_VARIABLE, "")).strip().rstrip("/")
    secret = register_secret((token or environment.get(TOKEN_VARIABLE, "")).strip())
    if not url:
        raise NavarchError(f"no gateway is named: set {SERVER_VARIABLE}=https://host:port")
    _check_url(url)
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise NavarchError(f"{TOKEN_VARIABLE} has characters that no token has")
    return ServerOptions(url=url, token=secret, ca_file=ca_file or environment.get(CA_VARIABLE, ""))


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise NavarchError(f"{SERVER_VARIABLE} is no address: write https://host:port")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise NavarchError(
            f"{SERVER_VARIABLE}: write {public_url(url)} alone; the token goes in {TOKEN_VARIABLE}"
        )
