"""The gateway runs as a process with HTTPS, certificates, a provider and a token at once."""

import asyncio
import json
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.bus.nats.embedded_server import EmbeddedServer
from tests.gateway.client_certificates import authority, server_settings
from tests.gateway.oidc_issuer import OidcIssuer, oidc_issuer

pytestmark = pytest.mark.slow
CONFIG = """
gateway:
  tls_cert_file: {certificate}
  tls_client_ca_file: {clients}
authenticators:
  mtls:
    type: certificate
    grants: [{{match: CN=ci, role: operator}}]
  company:
    type: oidc
    issuer: {issuer}
    audience: navarch
    grants: [{{match: gpu-admins, role: admin}}]
"""


@asynccontextmanager
async def gateway_process(url: str, file: Path, **environment: str) -> AsyncIterator[Any]:
    """Run the gateway; yields the line of its log that says it is ready, or that it ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.gateway", "--config", str(file)),
        env=os.environ | {"NAVARCH_NATS_URL": url} | environment,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            entry: dict[str, Any] = {}
            while entry.get("msg") != "ready" and (line := await process.stderr.readline()):
                entry = json.loads(line) if line.startswith(b"{") else {"msg": line.decode()}
        yield entry
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(20):
            await process.communicate()


@pytest.mark.usefixtures("bus")
async def test_every_way_in_works_beside_the_others(server: EmbeddedServer, tmp_path: Path) -> None:
    """Callers come by certificate, by provider and by token; HTTP is not spoken."""
    own, clients = authority(tmp_path, "own"), authority(tmp_path, "clients")
    settings = server_settings(own, clients)
    file = tmp_path / "navarch.yaml"

    async def caller(url: str, certificate: str = "", token: str = "") -> tuple[int, str, str]:
        context = ssl.create_default_context(cafile=own.file)
        if certificate:
            context.load_cert_chain(certificate)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with httpx.AsyncClient(verify=context, headers=headers) as client:
            answer = await client.get(f"{url}/api/v1/caller")
        found = answer.json()
        return answer.status_code, found.get("name", ""), found.get("role", "")

    async with oidc_issuer() as issuer:
        file.write_text(_configuration(settings, clients.file, issuer))
        secret = "a-token-of-sixteen-or-more"
        async with gateway_process(server.url, file, NAVARCH_AUTH_TOKEN=secret) as ready:
            url = ready["http"]
            assert url.startswith("https://127.0.0.1:")
            certificate = clients.issue("ci")
            assert await caller(url, certificate) == (200, "mtls:CN=ci", "operator")
            assert await caller(url, token=issuer.token()) == (200, "company:ada", "admin")
            assert await caller(url, certificate, issuer.token()) == (200, "company:ada", "admin")
            assert await caller(url, token=secret) == (200, "auth-token", "admin")
            assert (await caller(url))[0] == 401
            assert (await caller(url, certificate, "guess"))[0] == 401
            assert (await caller(url, token=issuer.signed_with_public_key("pem")))[0] == 401
            with pytest.raises(httpx.TransportError):
                await caller(url, authority(tmp_path, "strangers").issue("c"))
            async with httpx.AsyncClient() as client:
                with pytest.raises(httpx.TransportError):
                    await client.get(f"{url.replace('https', 'http')}/healthz")


@pytest.mark.usefixtures("bus")
async def test_probes_have_a_port_of_their_own_beside_https(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """A kubelet asks over HTTP; the variable is for a configuration of an earlier release."""
    own, clients = authority(tmp_path, "own"), authority(tmp_path, "clients")
    file = tmp_path / "navarch.yaml"
    issuer = OidcIssuer(url="https://login.example.com")
    file.write_text(_configuration(server_settings(own, clients), clients.file, issuer))
    async with gateway_process(server.url, file, NAVARCH_GATEWAY_PROBES_PORT="0") as ready:
        assert ready["http"].startswith("https://")
        async with httpx.AsyncClient(base_url=ready["probes"]) as client:
            for path in ("/livez", "/readyz", "/metrics"):
                assert (await client.get(path)).status_code == 200
            assert (await client.get("/api/v1/caller")).status_code == 404
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            async with gateway_process(server.url, file, NAVARCH_GATEWAY_PROBES_PORT=port) as ended:
                assert "gateway.probes_port" in ended["msg"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("issuer: https://login.example.com", "issuer"),
        ("type: certificate", "type: certificates"),
    ],
)
async def test_a_wrong_configuration_ends_the_gateway_with_its_line(
    server: EmbeddedServer, tmp_path: Path, changed: str, said: str
) -> None:
    """A gateway that let in fewer or more callers than was meant would be worse than none."""
    own, clients = authority(tmp_path, "own"), authority(tmp_path, "clients")
    file = tmp_path / "navarch.yaml"
    text = _configuration(
        server_settings(own, clients), clients.file, OidcIssuer(url="http://far.example")
    )
    file.write_text(text.replace(changed, said))
    async with gateway_process(server.url, file) as ended:
        assert "navarch.yaml:" in ended["msg"]
        assert "authenticators." in ended["msg"]


def _configuration(settings: Any, clients: str, issuer: OidcIssuer) -> str:
    return CONFIG.format(certificate=settings.tls_cert_file, clients=clients, issuer=issuer.url)
