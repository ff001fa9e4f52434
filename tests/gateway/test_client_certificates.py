"""Callers with client certificates: real handshakes, real names, and those that are refused."""

import ssl
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from schemas.gateway_settings import GatewaySettings
from schemas.settings import PluginSettings, Settings
from services.gateway.authenticators.certificate_authenticator import (
    CertificateAuthenticator,
    peer_certificate,
)
from services.gateway.gateway_start import check
from services.primitives.clock import SystemClock
from services.primitives.errors import ConfigurationError
from tests.gateway.client_certificates import (
    SERVER,
    Authority,
    authority,
    https,
    server_settings,
)
from tests.gateway.conftest import Gateway, MakeGateway

GRANTS = (
    {"match": "O=Admins", "role": "admin"},
    {"match": "CN=ci", "role": "operator", "pools": ["train*"]},
    {"match": "URI:spiffe://example.com/ns/ml/*", "role": "viewer"},
)
SPIFFE = x509.UniformResourceIdentifier("spiffe://example.com/ns/ml/reader")
OTHER = x509.UniformResourceIdentifier("spiffe://example.com/ns/web/reader")
EMAIL = x509.RFC822Name("ada@example.com")


@pytest.fixture
def clients(tmp_path: Path) -> Authority:
    """Provide the authority of callers."""
    return authority(tmp_path, "clients")


@pytest.fixture
def settings(tmp_path: Path, clients: Authority) -> GatewaySettings:
    """Provide the settings of the gateway."""
    return server_settings(authority(tmp_path, "own"), clients)


@pytest.fixture
async def gateway(make_gateway: MakeGateway) -> Gateway:
    """One that knows tokens and certificates."""
    options = msgspec.convert({"grants": GRANTS}, CertificateAuthenticator.Options)
    mtls = CertificateAuthenticator(options=options, clock=SystemClock())
    return make_gateway(others={"mtls": mtls})


async def caller(
    gateway: Gateway, settings: GatewaySettings, certificate: str = "", **headers: str
) -> httpx.Response:
    """Ask who one is, over TLS."""
    context = ssl.create_default_context(
        cafile=str(Path(settings.tls_cert_file).parent / "own.pem")
    )
    if certificate:
        context.load_cert_chain(certificate)
    async with (
        https(gateway.app, settings) as url,
        httpx.AsyncClient(base_url=url, verify=context, headers=headers) as client,
    ):
        return await client.get("/api/v1/caller")


@pytest.mark.parametrize(
    ("subject", "names", "name", "role"),
    [
        ((("CN", "ci"),), (), "mtls:CN=ci", "operator"),
        ((("O", "Admins"), ("CN", "ci")), (), "mtls:CN=ci", "admin"),
        ((("CN", "root"), ("O", "Admins")), (EMAIL,), "mtls:CN=root", "admin"),
        ((), (SPIFFE,), "mtls:URI:spiffe://example.com/ns/ml/reader", "viewer"),
    ],
)
async def test_a_certificate_names_its_caller(
    gateway: Gateway,
    settings: Any,
    clients: Authority,
    subject: Any,
    names: Any,
    name: str,
    role: str,
) -> None:
    """The role is that of the first grant that matches one of its names."""
    answer = await caller(gateway, settings, clients.issue("c", subject, names))
    assert answer.status_code == 200, answer.text
    assert (answer.json()["name"], answer.json()["role"]) == (name, role)
    assert answer.json()["pools"] == (["train*"] if role == "operator" else [])


@pytest.mark.parametrize(
    ("subject", "names", "status"),
    [
        ((("CN", "eve"),), (), 403),
        ((("CN", "x,O=Admins"),), (), 403),
        ((("CN", "x/O=Admins"),), (), 403),
        ((("OU", "Admins"), ("CN", "O=Admins")), (), 403),
        ((("CN", "CI"),), (), 403),
        ((("CN", "x"),), (OTHER,), 403),
        ((("C", "DE"),), (), 401),
    ],
)
async def test_a_certificate_without_a_grant_has_no_role(
    gateway: Gateway, settings: Any, clients: Authority, subject: Any, names: Any, status: int
) -> None:
    """Text within a name makes no other name of it."""
    answer = await caller(gateway, settings, clients.issue("c", subject, names))
    assert status == answer.status_code, answer.text


@pytest.mark.parametrize(
    "how", ["stranger", "namesake", "expired", "server", "by-a-client", "by-an-intermediate"]
)
async def test_a_certificate_that_is_not_valid_ends_the_connection(
    gateway: Gateway, settings: Any, clients: Authority, tmp_path: Path, how: str
) -> None:
    """One of another authority, of none, not valid any more, or not for clients: none is read."""
    made = {
        "stranger": lambda: authority(tmp_path, "strangers").issue("c"),
        "namesake": lambda: _namesake(tmp_path),
        "expired": lambda: clients.issue("c", ends=-timedelta(hours=1)),
        "server": lambda: clients.issue("c", usage=SERVER),
        "by-a-client": lambda: _signed_below(clients, signs=False),
        "by-an-intermediate": lambda: _signed_below(clients, signs=True),
    }
    with pytest.raises(httpx.TransportError):
        await caller(gateway, settings, made[how]())


def _signed_below(clients: Authority, *, signs: bool) -> str:
    """Have the holder of a valid certificate sign one for a role that is not its own."""
    holder = Path(clients.issue("holder", (("CN", "ci"),), signs=signs)).read_bytes()
    key = load_pem_private_key(holder, None)
    below = Authority(clients.directory, "holder", key, x509.load_pem_x509_certificate(holder))
    made = Path(below.issue("c", (("O", "Admins"), ("CN", "root"))))
    made.write_bytes(made.read_bytes() + holder.partition(b"-----BEGIN PRIVATE")[0])
    return str(made)


async def test_a_callers_certificate_makes_no_gateway(
    gateway: Gateway, settings: GatewaySettings, clients: Authority, tmp_path: Path
) -> None:
    """One authority for both would let each caller be taken for the gateway; its use forbids it."""
    host = x509.IPAddress(ip_address("127.0.0.1"))
    own = authority(tmp_path, "both")
    false = own.issue("false", (("CN", "gateway"),), (host,))
    changed = msgspec.structs.replace(
        settings, tls_cert_file=false, tls_client_ca_file=clients.file
    )
    context = ssl.create_default_context(cafile=own.file)
    async with (
        https(gateway.app, changed) as url,
        httpx.AsyncClient(base_url=url, verify=context) as client,
    ):
        with pytest.raises(httpx.ConnectError, match="certificate"):
            await client.get("/api/v1/caller", headers={"Authorization": "Bearer viewer-token"})


def _namesake(directory: Path) -> str:
    """Of an authority that shares its name with the right one, and nothing else."""
    (directory / "more").mkdir()
    return authority(directory / "more", "clients").issue("c", (("O", "Admins"), ("CN", "ci")))


async def test_who_says_itself_who_it_is_is_not_asked_for_a_certificate(
    gateway: Gateway, settings: Any, clients: Authority
) -> None:
    """A token counts before the certificate of the connection, also one that is not valid."""
    certificate = clients.issue("c", (("O", "Admins"), ("CN", "root")))

    async def with_token(token: str, own: str) -> tuple[int, str]:
        answer = await caller(gateway, settings, own, Authorization=f"Bearer {token}")
        return answer.status_code, answer.json().get("name", "")

    assert await with_token("viewer-token", "") == (200, "ada")
    assert await with_token("viewer-token", certificate) == (200, "ada")
    assert await with_token("guess", certificate) == (401, "")
    assert (await caller(gateway, settings)).status_code == 401


async def test_no_header_makes_a_certificate(gateway: Gateway) -> None:
    """A certificate is the TLS library's word alone, and there is none over HTTP."""
    names = (
        "navarch-peer-certificate",
        "x-client-cert",
        "x-forwarded-client-cert",
        "x-ssl-client-dn",
    )
    client = gateway.client("", **dict.fromkeys(names, "CN=ci,O=Admins"))
    assert (await client.get("/api/v1/caller")).status_code == 401


def test_what_the_tls_library_says_is_read() -> None:
    """Every name by itself, until when; nothing where there is no certificate."""
    found = peer_certificate(
        {
            "subject": (
                (("countryName", "DE"),),
                (("organizationName", "A"), ("commonName", "b")),
                (("commonName", "c"),),
            ),
            "subjectAltName": (("DNS", "d"), ("URI", "e"), ("email", "f"), ("IP Address", "g")),
            "notAfter": "Jan  5 09:34:43 2028 GMT",
        }
    )
    assert found is not None
    assert found.names == ("O=A", "CN=b", "CN=c", "DNS:d", "URI:e", "email:f")
    assert found.expires.isoformat() == "2028-01-05T09:34:43+00:00"
    assert peer_certificate({}) is None


@pytest.mark.parametrize(
    ("changes", "authenticators", "problem"),
    [
        ({"tls_key_file": "k"}, {}, "gateway.tls_key_file: needs gateway.tls_cert_file"),
        (
            {"tls_client_ca_file": "c"},
            {},
            "gateway.tls_client_ca_file: needs gateway.tls_cert_file",
        ),
        ({"tls_cert_file": "/nowhere.pem"}, {}, "gateway.tls_cert_file: no usable PEM file"),
        ({"tls_cert_file": "own.pem"}, {}, "gateway.tls_cert_file: no usable PEM file"),
        ({}, {"mtls": {"grants": GRANTS}}, "authenticators.mtls: needs gateway.tls_client_ca_file"),
        ({}, {"mtls": {"grants": []}}, "must have 1 or more items"),
        ({}, {"mtls": {"grants": [{"match": "", "role": "admin"}]}}, "must have 1 or more char"),
        ({}, {"mtls": {"grants": [{"match": "*", "role": "root"}]}}, "Invalid enum value"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(
    tmp_path: Path, changes: dict[str, str], authenticators: Any, problem: str
) -> None:
    """The gateway does not start, and names the key."""
    authority(tmp_path, "own")
    paths = {key: value.replace("own.pem", f"{tmp_path}/own.pem") for key, value in changes.items()}
    plugins = {
        name: PluginSettings(type="certificate", options=each, path=f"authenticators.{name}")
        for name, each in authenticators.items()
    }
    own = Settings(gateway=GatewaySettings(**paths), authenticators=plugins)
    with pytest.raises(ConfigurationError, match=problem):
        check(own, None)
