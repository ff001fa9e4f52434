"""Selects who connects to the bus, and with what credentials."""

import asyncio
import logging
import ssl
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from schemas.settings import NatsSettings
from schemas.stream_specs import MESSAGE_BYTES_MAX
from services.primitives.errors import ConfigurationError, LoginRefused, Unavailable

log = logging.getLogger(__name__)

SERVICE: Final = "{service}"
"""In a path: so that one configuration serves all services, each with its own file."""
CANCELLATIONS_MAX: Final = 20
CANCELLED_SECONDS: Final = 0.1
"""Until the next cancellation of an attempt to connect."""
CLOSE_SECONDS_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Names who connects, and how."""

    settings: NatsSettings
    name: str
    inbox_prefix: str = "_INBOX"
    role: str = ""
    """What `{service}` in the settings' paths is replaced with; empty: the name."""
    ping_seconds: int = 10
    """Between two signs of life; a server that owes three is left for another."""
    message_bytes_max: int = MESSAGE_BYTES_MAX
    """Where the credentials permit less than the server does."""
    may_create_consumers: bool = True
    """False: follow streams by reading, as users of another account than the streams' must."""


def requires_tls(settings: NatsSettings) -> bool:
    """Return whether every connection must be encrypted."""
    return bool(settings.tls_ca_file or settings.tls_cert_file) or "tls://" in settings.url


def credentials(options: ConnectOptions) -> dict[str, Any]:
    """The client's arguments for whatever the settings name; none for an open server."""
    settings, role = options.settings, options.role or options.name
    found: dict[str, Any] = {}
    if settings.user:
        found |= {"user": settings.user, "password": settings.password}
    if settings.creds_file:
        found["user_credentials"] = _readable("creds_file", settings.creds_file, role)
    if settings.nkey_file:
        found["nkeys_seed"] = _readable("nkey_file", settings.nkey_file, role)
    if settings.tls_ca_file or settings.tls_cert_file:
        found["tls"] = _tls(settings, role)
    return found


def current_tls(options: ConnectOptions, before: ssl.SSLContext) -> ssl.SSLContext:
    """The certificates as the files have them now, because they are replaced while we run."""
    try:
        return _tls(options.settings, options.role or options.name)
    except ConfigurationError as error:
        log.warning("the certificates of before are used: %s", error)
        return before


def _tls(settings: NatsSettings, role: str) -> ssl.SSLContext:
    authority = settings.tls_ca_file and _readable("tls_ca_file", settings.tls_ca_file, role)
    setting = "tls_ca_file"
    try:
        context = ssl.create_default_context(cafile=authority or None)
        if settings.tls_cert_file:
            setting = "tls_cert_file"
            certificate = _readable("tls_cert_file", settings.tls_cert_file, role)
            key = settings.tls_key_file
            context.load_cert_chain(
                certificate, _readable("tls_key_file", key, role) if key else None
            )
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"no usable PEM file: {error.reason or error}", key=f"nats.{setting}"
        ) from error
    return context


def _readable(setting: str, path: str, role: str) -> str:
    """The file for a role; an error that names the setting where it cannot be read."""
    file = path.replace(SERVICE, role)
    try:
        with Path(file).open("rb"):
            return file
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error.strerror}", key=f"nats.{setting}"
        ) from error


def unreachable(url: str, last_error: str) -> Unavailable:
    """Return why no connection came about, from the client's last error."""
    if "auth" in last_error.lower():
        return LoginRefused(
            f"the nats-server at {url} refuses the login ({last_error}): check the credentials in "
            "the configuration's `nats:` section, or NAVARCH_NATS_CREDS_FILE"
        )
    if "tls" in last_error.lower() or "certificate" in last_error.lower():
        return Unavailable(
            f"no encrypted connection to the nats-server at {url} ({last_error}): check the URL, "
            "`nats.tls_ca_file`, and the `tls` section of the server's configuration"
        )
    why = f" ({last_error})" if last_error else ""
    return Unavailable(
        f"no nats-server answers at {url}{why}: is it running, and is the URL right?"
    )


async def ends_within(connecting: Coroutine[Any, Any, None], seconds_max: float | None) -> bool:
    """Return whether a client has connected in time; raises what it raised. None: wait for ever.

    The client swallows a cancellation between two attempts, and then goes on with the next one.
    """
    task = asyncio.ensure_future(connecting)
    try:
        await asyncio.wait([task], timeout=seconds_max)
        in_time = task.done()
    finally:
        for _ in range(CANCELLATIONS_MAX):
            task.cancel()
            if (await asyncio.wait([task], timeout=CANCELLED_SECONDS))[0]:
                break
    if in_time:
        task.result()
    return in_time


async def end_client(closing: Coroutine[Any, Any, None]) -> None:
    """Close a client, for at most CLOSE_SECONDS_MAX.

    The client swallows a cancellation while it closes, and before Python 3.12 the end of an
    encrypted connection may be waited for without limit.
    """
    task = asyncio.ensure_future(closing)
    try:
        await asyncio.wait([task], timeout=CLOSE_SECONDS_MAX)
    finally:
        task.cancel()
