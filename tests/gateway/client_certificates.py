"""Certificates of callers, made for a test, and a gateway that asks for them."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID as Usage
from cryptography.x509.oid import NameOID

from schemas.gateway_settings import GatewaySettings
from services.gateway.gateway_start import tls_options
from services.runtime.process_http import WebServer

OIDS = {
    "CN": NameOID.COMMON_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "C": NameOID.COUNTRY_NAME,
}
KEY_USES: Final = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
SIGNS: Final = x509.KeyUsage(
    **dict.fromkeys(KEY_USES, False) | {"key_cert_sign": True, "crl_sign": True}
)
CLIENT, SERVER = (Usage.CLIENT_AUTH,), (Usage.SERVER_AUTH,)


@dataclass(slots=True)
class Authority:
    """An authority that signs any certificate."""

    directory: Path
    name: str
    key: Any
    certificate: x509.Certificate

    @property
    def file(self) -> str:
        """Return the path of the authority's certificate."""
        return str(self.directory / f"{self.name}.pem")

    def issue(
        self,
        file: str,
        subject: Sequence[tuple[str, str]] = (("CN", "ci"),),
        names: Sequence[x509.GeneralName] = (),
        usage: Sequence[Any] = CLIENT,
        ends: timedelta = timedelta(days=1),
        *,
        signs: bool = False,
    ) -> str:
        """Sign a certificate, of an authority itself if it `signs`; the file has its key, too."""
        key = ec.generate_private_key(ec.SECP256R1())
        built = _builder(subject, self.certificate.subject, key, ends)
        built = built.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        built = built.add_extension(signer, critical=False)  # which Python 3.13 requires
        if signs:
            built = built.add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        if names:
            built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return write(self.directory / f"{file}.pem", built.sign(self.key, SHA256()), key)


def authority(directory: Path, name: str) -> Authority:
    """Make an authority and write its certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = (("CN", name),)
    built = _builder(subject, _name(subject), key, timedelta(days=1)).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    built = built.add_extension(SIGNS, critical=True)
    certificate = built.sign(key, SHA256())
    write(directory / f"{name}.pem", certificate)
    return Authority(directory, name, key, certificate)


def write(file: Path, certificate: x509.Certificate, key: Any = None) -> str:
    """Write a certificate, and its key below it."""
    data = certificate.public_bytes(Encoding.PEM)
    if key is not None:
        data += key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(data)
    return str(file)


def _name(parts: Sequence[tuple[str, str]]) -> x509.Name:
    return x509.Name([x509.NameAttribute(OIDS[key], value) for key, value in parts])


def _builder(
    subject: Sequence[tuple[str, str]], issuer: x509.Name, key: Any, ends: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def server_settings(own: Authority, clients: Authority) -> GatewaySettings:
    """Return the settings of a gateway with a certificate of `own` for clients of `clients`."""
    host = x509.IPAddress(ip_address("127.0.0.1"))
    certificate = own.issue("server", (("CN", "gateway"),), (host,), SERVER)
    return GatewaySettings(tls_cert_file=certificate, tls_client_ca_file=clients.file)


@asynccontextmanager
async def https(app: Any, settings: GatewaySettings) -> AsyncIterator[str]:
    """Serve an application as the gateway does; its URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = WebServer(app, **tls_options(settings))
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await running
