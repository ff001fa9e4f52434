"""Callers of the gateway are whom their credentials name: tokens, pages, assistants."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from services.bus.memory.memory_bus import MemoryBus
from services.gateway.access_tokens import Principal
from services.gateway.authenticators.authenticator import (
    Presented,
    RefusedCredentialsError,
    UnreachableError,
)
from services.gateway.authenticators.oidc_authenticator import NOT_VALID, OidcAuthenticator
from tests.gateway.conftest import Gateway, MakeGateway, Manager
from tests.gateway.oidc_issuer import OidcIssuer, oidc_issuer
from tests.gateway.test_assistants import CORDON, call, served
from tests.gateway.test_oidc import Ahead, options, presented
from tests.support.serving import serving

OTHER_TYPES: Final = (
    "logout+jwt",
    "application/logout+jwt",
    "secevent+jwt",
    "token-introspection+jwt",
    "dpop+jwt",
    "JOSE",
    ["JWT"],
)


@pytest.fixture
async def issuer() -> AsyncIterator[OidcIssuer]:
    """A provider whose tokens the gateway accepts."""
    async with oidc_issuer() as found:
        yield found


@pytest.mark.parametrize("kind", OTHER_TYPES, ids=str)
async def test_a_token_that_its_provider_made_for_something_else_is_refused(
    issuer: OidcIssuer, kind: Any
) -> None:
    """A logout token has the caller's name, audience and signature, and others than the caller."""
    oidc = OidcAuthenticator(options=options(issuer), clock=Ahead())
    with pytest.raises(RefusedCredentialsError, match=NOT_VALID):
        await oidc.authenticate(presented(issuer.token(headers={"typ": kind})))
    await oidc.close()


@pytest.mark.parametrize("kind", ["JWT", "jwt", "at+jwt", "application/at+jwt"])
async def test_a_token_of_a_caller_is_accepted(issuer: OidcIssuer, kind: str) -> None:
    """The types of ID tokens and access tokens, of every provider that is documented."""
    oidc = OidcAuthenticator(options=options(issuer), clock=Ahead())
    found = await oidc.authenticate(presented(issuer.token(headers={"typ": kind})))
    assert found is not None
    assert found.name == "ada"
    await oidc.close()


@pytest.mark.parametrize("where", ["discovery", "keys"])
async def test_a_redirect_of_the_provider_asks_no_address_of_this_network(
    where: str,
) -> None:
    """An address that the gateway's host reaches, as a cloud's metadata, is asked for nothing."""
    asked: list[str] = []

    async def metadata(request: Request) -> Response:
        asked.append(request.url.path)
        return JSONResponse({"keys": []})

    async with serving(Starlette(routes=[Route("/latest/{rest:path}", metadata)])) as inner:
        target = f"{inner}/latest/meta-data"

        async def discovery(request: Request) -> Response:
            if where == "discovery":
                return RedirectResponse(target)
            own = f"http://{request.url.netloc}"
            return JSONResponse({"issuer": own, "jwks_uri": f"{own}/keys"})

        async def keys(_: Request) -> Response:
            return RedirectResponse(target)

        routes = [
            Route("/.well-known/openid-configuration", discovery),
            Route("/keys", keys),
        ]
        async with serving(Starlette(routes=routes)) as url:
            issuer = OidcIssuer(url=url)
            oidc = OidcAuthenticator(options=options(issuer), clock=Ahead())
            with pytest.raises(UnreachableError):
                await oidc.authenticate(presented(issuer.token()))
            await oidc.close()

    assert asked == []


PAGES: Final = {
    "another program's page of this machine": {"Origin": "http://127.0.0.1:8888"},
    "the same by its name": {"Origin": "http://localhost"},
    "a page over another scheme": {"Origin": "https://127.0.0.1:8888"},
    "a page without an origin": {"Origin": "null"},
    "an empty origin": {"Origin": ""},
    "an image of another site": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    "an image of another program's page": {"Sec-Fetch-Site": "same-site"},
    "a name that now points here": {"Host": "evil.example"},
    "such a name with its own origin": {
        "Host": "evil.example",
        "Origin": "http://evil.example",
        "Sec-Fetch-Site": "same-origin",
    },
    "a name that begins as an address": {"Host": "127.0.0.1.evil.example"},
    "an address after a user's name": {"Host": "127.0.0.1@evil.example"},
    "an address before a fragment": {"Host": "evil.example#@127.0.0.1"},
    "no name": {"Host": ""},
}


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("change", [False, True], ids=["reads", "changes"])
async def test_no_page_of_another_asks_an_open_gateway(
    make_gateway: MakeGateway, manager: Manager, name: str, *, change: bool
) -> None:
    """A browser sends a POST of plain text for any page, and says of which."""
    client = make_gateway({}).client("")
    headers = {"Content-Type": "text/plain", **PAGES[name]}
    if change:
        path = "/api/v1/nodes/training-1/cordon"
        answer = await client.post(path, content=b'{"reason":"x"}', headers=headers)
    else:
        answer = await client.get("/api/v1/events/stream", headers=headers)

    assert answer.status_code in (400, 403), answer.text
    assert manager.asked == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "http://LOCALHOST:9000", "Host": "localhost:9000"},
        {"Origin": "http://[::1]:9000", "Host": "[::1]:9000"},
        {"Sec-Fetch-Site": "none"},
    ],
)
async def test_the_gateways_own_page_and_programs_ask_it(
    make_gateway: MakeGateway, headers: dict[str, str]
) -> None:
    """A tunnel has another port, and both headers name it."""
    client = make_gateway({}).client("")
    assert (await client.get("/api/v1/pools", headers=headers)).status_code == 200


class Narrowed:
    """A provider whose user has a token of every pool, and one of few for an assistant."""

    async def authenticate(self, presented: Presented) -> Principal | None:
        """Know one user by two tokens."""
        pools = {"wide": (), "narrow": ("serving",)}.get(presented.bearer)
        return None if pools is None else Principal(name="eve", role="operator", pools=pools)

    async def close(self) -> None:
        """Nothing is open."""


async def test_a_token_of_few_pools_confirms_no_plan_of_another(
    bus: MemoryBus, make_gateway: MakeGateway, manager: Manager
) -> None:
    """Both are one user's, and a plan is its user's; the pools are the token's."""

    def made(**more: Any) -> Any:
        return make_gateway(others={"sso": Narrowed()}, **more)

    async with (
        served(bus, made) as gateway,
        gateway.assistant("wide") as wide,
        gateway.assistant("narrow") as narrow,
    ):
        plan, _ = await call(wide, "plan_change", **CORDON)
        _, refused = await call(narrow, "confirm_change", token=plan["token"])
        again, _ = await call(wide, "plan_change", **CORDON)
        done, _ = await call(wide, "confirm_change", token=again["token"])

    assert "may not see pool training" in refused
    assert done["about"] == "training-1"
    assert len(manager.asked) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda token: token.replace("cordon", "drain", 1),
        lambda token: token.replace("training-1", "training-3", 1),
        lambda token: token[:-1] + ("0" if token[-1] != "0" else "1"),
        lambda token: token.upper(),
        lambda token: f" {token}",
        lambda _: "",
        lambda _: "cordon-training-1-" + "0" * 20,
    ],
)
async def test_a_changed_token_confirms_nothing(
    bus: MemoryBus, make_gateway: MakeGateway, manager: Manager, change: Any
) -> None:
    """A token's words are for people: another verb, node or digest names no plan."""
    async with served(bus, make_gateway) as gateway, gateway.assistant("operator-token") as bob:
        plan, _ = await call(bob, "plan_change", **CORDON)
        _, refused = await call(bob, "confirm_change", token=change(plan["token"]))

    assert refused
    assert manager.asked == []


BOMB: Final = gzip.compress(b'{"reason": "' + b"x" * (64 * 1_048_576) + b'"}')
BODIES: Final = {
    "packed": (gzip.compress(b'{"reason": "fans"}'), {"Content-Encoding": "gzip"}),
    "a bomb": (BOMB, {"Content-Encoding": "gzip"}),
    "a bomb of another kind": (BOMB, {"Content-Encoding": "deflate, br"}),
    "lists in lists": (b'{"reason": ' + b"[" * 65_000, {}),
    "objects in objects": (b'{"a":' * 13_000, {}),
    "a long number": (b'{"reason": ' + b"9" * 65_000 + b"}", {}),
    "as long as may be": (b'{"reason": "' + b"x" * 65_500 + b'"}', {}),
    "longer": (b'{"reason": "' + b"x" * 70_000 + b'"}', {}),
    "thousands of keys": (b"{" + b",".join(b'"%d":0' % n for n in range(6_000)) + b"}", {}),
    "no text": (b'{"reason": "\xff\xfe"}', {}),
}
PATHS: Final = ("/api/v1/nodes/training-1/cordon", "/api/v1/pools/training/scale", "/api/v1/stop")


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("path", PATHS)
async def test_a_body_of_any_form_is_refused_in_a_moment(
    gateway: Gateway, manager: Manager, path: str, name: str
) -> None:
    """A packed body is not unpacked, and none is an error of the gateway's own."""
    body, more = BODIES[name]
    headers = {"Content-Type": "application/json", **more}
    async with asyncio.timeout(10):
        answer = await gateway.client("admin-token").post(path, content=body, headers=headers)

    assert 400 <= answer.status_code < 500, answer.text
    assert len(answer.content) < 2_000
    assert manager.asked == []
