"""No credentials are sent in plain text where the configuration asks for TLS."""

import asyncio
import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from schemas.settings import NatsSettings
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.primitives.errors import Unavailable

SECRET = "canary-password"


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    files = directory / f"{name}.pem", directory / f"{name}.key"
    files[0].write_bytes(made.public_bytes(Encoding.PEM))
    files[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


@pytest.mark.parametrize("setting", ["scheme", "tls_ca_file"])
async def test_credentials_are_not_sent_to_a_server_without_tls(
    tmp_path: Path, setting: str
) -> None:
    """An impostor in its place receives not one byte."""
    heard = bytearray()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version":"2.12.0","max_payload":1048576,"proto":1}\r\n')
        while data := await reader.read(4096):
            heard.extend(data)
        writer.close()

    server = await asyncio.start_server(impostor, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    scheme = "tls" if setting == "scheme" else "nats"
    authority = str(certificate(tmp_path, "ca")[0]) if setting == "tls_ca_file" else ""
    settings = NatsSettings(
        url=f"{scheme}://127.0.0.1:{port}", user="u", password=SECRET, tls_ca_file=authority
    )
    with pytest.raises(Unavailable, match=r"no encrypted connection .*offers no TLS"):
        await NatsBus.connect(ConnectOptions(settings=settings, name="x"), seconds_max=1)
    server.close()

    assert b"" == bytes(heard)


async def test_only_the_authority_that_is_named_is_believed(tmp_path: Path) -> None:
    """A server whose certificate another authority has signed is refused."""
    cert, key = certificate(tmp_path, "server")
    other, _ = certificate(tmp_path, "other")
    conf = tmp_path / "tls.conf"
    conf.write_text(f'tls {{ cert_file: "{cert}", key_file: "{key}" }}\n')
    server = EmbeddedServer(tmp_path / "nats", config=conf)
    url = (await server.start()).replace("nats://", "tls://")

    async def connect(authority: Path) -> bool:
        settings = NatsSettings(url=url, tls_ca_file=str(authority))
        options = ConnectOptions(settings=settings, name="x")
        bus = await NatsBus.connect(options, seconds_max=5 if authority == cert else 1)
        connected = bus.connected
        await bus.close()
        return connected

    try:
        assert await connect(cert)
        with pytest.raises(Unavailable, match=r"(?s)no encrypted connection .*(?i:certificate)"):
            await connect(other)
    finally:
        await server.kill()
