"""Each route of the API's own description is called with every role, by every authenticator."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from services.gateway.authenticators.certificate_authenticator import CertificateAuthenticator
from services.gateway.authenticators.oidc_authenticator import OidcAuthenticator
from services.runtime.http_protocol import PEER_CERTIFICATE
from tests.gateway.authenticator_sites import ROLES, CertificateSite, OidcSite
from tests.gateway.conftest import Gateway, MakeGateway, Manager
from tests.gateway.oidc_issuer import OidcIssuer, oidc_issuer
from tests.gateway.test_authentication import described, needed
from tests.gateway.test_changes import CASES, ORDERS

Client = Callable[[str], httpx.AsyncClient]
"""A caller of a role; `none`: without credentials, `wrong`: with some that are not valid."""


def certificate_client(gateway: Gateway, name: str) -> httpx.AsyncClient:
    """A caller over a connection with a client certificate, as the TLS library describes it."""
    end = datetime.now(UTC) + timedelta(days=1)
    certificate = {
        "subject": ((("commonName", name),),) if name else (),
        "notAfter": end.strftime("%b %d %H:%M:%S %Y GMT"),
    }

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {PEER_CERTIFICATE: certificate}
        await gateway.app(scope, receive, send)

    found = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")
    gateway.clients.append(found)
    return found


@pytest.fixture
async def issuer() -> AsyncIterator[OidcIssuer]:
    """Serve an OIDC provider."""
    async with oidc_issuer() as found:
        yield found


@pytest.fixture(params=["tokens", "oidc", "certificate"])
async def client(
    request: pytest.FixtureRequest, make_gateway: MakeGateway, issuer: OidcIssuer
) -> AsyncIterator[Client]:
    """Callers that are known in one way, at a gateway that knows all of them."""
    provider, certificates = OidcSite(issuer), CertificateSite()
    oidc, mtls = provider.make(), certificates.make()
    assert isinstance(oidc, OidcAuthenticator)
    assert isinstance(mtls, CertificateAuthenticator)
    gateway = make_gateway(others={"company": oidc, "mtls": mtls})
    forged = provider.refused()["signed with the public key"]

    def of_role(role: str) -> httpx.AsyncClient:
        if role == "none":
            return gateway.client("")
        if request.param == "certificate":
            return certificate_client(gateway, {"wrong": ""}.get(role, role))
        if request.param == "tokens":
            return gateway.client({"wrong": "guess"}.get(role, f"{role}-token"))
        asked = forged if role == "wrong" else provider.valid(role)
        return gateway.client(asked.bearer)

    of_role.gateway = gateway  # type: ignore[attr-defined]
    yield of_role
    await oidc.close()


async def test_every_route_with_every_role(client: Any, manager: Manager) -> None:
    """401 without valid credentials, 403 below the route's role, its answer from there on."""
    routes = [each for each in await described(client.gateway) if not each[1].endswith("/stream")]
    assert len(routes) >= 30
    callers = {role: client(role) for role in ("none", "wrong", *ROLES)}
    for method, path in routes:
        for role, caller in callers.items():
            body = _body(path) if method == "POST" else None
            answer = await caller.request(method, path, json=body)
            about = (method, path, role, answer.text[:200])
            if role in ("none", "wrong"):
                assert answer.status_code == 401, about
            elif ROLES.index(role) < ROLES.index(needed(method, path)):
                assert answer.status_code == 403, about
            else:
                # 503: no agent and no service runs here that could do it.
                assert answer.status_code not in (401, 403, 500), about
    asked = {f"{pool} {verb}" for pool, verb, _ in manager.asked}
    assert len(asked) >= 10, "the changes of those who may reach the pool"
    names = {fields["by"] for _, _, fields in manager.asked}
    assert names & {
        "bob via gateway",
        "company:operator-1 via gateway",
        "mtls:CN=operator via gateway",
    }


async def test_every_stream_with_every_role(client: Any) -> None:
    """An event stream is opened for a viewer, and for no caller that is not known."""
    for role, status in (("none", 401), ("wrong", 401), ("viewer", 200)):
        caller = client(role)
        if status == 200:
            # The library's transport waits for an answer's end, which a stream has not.
            assert (await caller.get("/api/v1/events")).status_code == 200
        else:
            assert (await caller.get("/api/v1/events/stream")).status_code == status


def _body(path: str) -> Any:
    name = path.removeprefix("/api/v1")
    _, fields, body = CASES.get(name, ("", ORDERS.get(name, {}), {}))
    return body or fields
