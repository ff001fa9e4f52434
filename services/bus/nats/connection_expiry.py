"""Reads when the certificates and credentials of a connection expire."""

import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from schemas.fleet_queries import CurrentFailure, Expiry
from services.bus.nats.connection_options import SERVICE, ConnectOptions
from services.bus.nats.credentials_file import claims_of

RENEW_CERTIFICATE: Final = (
    "run `navarch nats-config write` with the options of the first time, copy tls/ to the server, "
    "then `nats-server --signal reload`"
)
RENEW_AUTHORITY: Final = (
    "`navarch nats-config rotate authority` (docs/credentials.md), before all clients refuse"
)
RENEW_CLIENT_CERTIFICATE: Final = "`navarch nats-config certificate NAME`, and copy the file"
RENEW_CREDENTIALS: Final = (
    "the owner of the bus's keys runs `navarch nats-config user renew NAME` and hands the file over"
)


def expiries(options: ConnectOptions, certificate: dict[str, Any] | None) -> list[Expiry]:
    """Return what expires of a connection: its server's certificate, and its own files."""
    found: list[Expiry] = []
    if certificate and (until := _until(certificate)):
        what = "the certificate of nats-server"
        found.append(Expiry(what=what, at=until, remedy=RENEW_CERTIFICATE))
    settings, role = options.settings, options.role or options.name
    if settings.tls_ca_file:
        file = settings.tls_ca_file.replace(SERVICE, role)
        authorities = ssl.create_default_context(cafile=file).get_ca_certs()
        # Of several, the newest replaces the others.
        if ends := [each for each in map(_until, authorities) if each]:
            what = f"the certificate authority in {file}"
            found.append(Expiry(what=what, at=max(ends), remedy=RENEW_AUTHORITY))
    if settings.tls_cert_file:
        file = settings.tls_cert_file.replace(SERVICE, role)
        at = _client_until(file)
        found.append(
            Expiry(what=f"the client certificate {file}", at=at, remedy=RENEW_CLIENT_CERTIFICATE)
        )
    if settings.creds_file:
        file = settings.creds_file.replace(SERVICE, role)
        claims = claims_of(Path(file).read_text(encoding="utf-8"))
        if seconds := claims.get("exp"):
            at = datetime.fromtimestamp(seconds, UTC)
            found.append(Expiry(what=f"the credentials {file}", at=at, remedy=RENEW_CREDENTIALS))
    return found


def expiring(found: Iterable[Expiry], now: datetime, within_seconds: float) -> list[CurrentFailure]:
    """Return what must be renewed soon, or should have been. Pure."""
    soon = now + timedelta(seconds=within_seconds)
    return [
        CurrentFailure(
            failure="expires-soon",
            about=each.what,
            reason=expiry_text(each, now),
            remedy=each.remedy,
        )
        for each in found
        if each.at <= soon
    ]


def expiry_text(expiry: Expiry, now: datetime) -> str:
    """When something expires, in words. Pure."""
    days = (expiry.at - now) // timedelta(days=1)
    when = f"{expiry.at:%Y-%m-%d %H:%M} UTC"
    if expiry.at <= now:
        return f"expired at {when}"
    return f"expires at {when}, in {days} days" if days else f"expires at {when}, within a day"


def _client_until(file: str) -> datetime:
    # Imported here because agents import this module, and have no use for the other.
    from cryptography import x509  # noqa: PLC0415

    return x509.load_pem_x509_certificate(Path(file).read_bytes()).not_valid_after_utc


def _until(certificate: dict[str, Any]) -> datetime | None:
    text = certificate.get("notAfter")
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC) if text else None
