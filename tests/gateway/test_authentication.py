"""The gateway answers each caller as its role is: every route, from its own description."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.gateway_settings import GatewaySettings, TokenSpec
from schemas.settings import Settings
from services.bus.memory.memory_bus import MemoryBus
from services.fleet_client.fleet_client import FleetClient
from services.gateway.access_tokens import (
    ExpiredTokenError,
    Principal,
    digest,
    find_principal,
    new_token,
    with_variable,
)
from services.gateway.assistant_endpoint import AssistantEndpoint
from services.gateway.caller_rate import CallerRate
from services.gateway.gateway_start import gateway_settings, require_tokens
from services.primitives.clock import SystemClock
from services.primitives.errors import ConfigurationError
from services.runtime.http_protocol import KNOW_CALLER
from tests.gateway.conftest import Gateway, MakeGateway

NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)
PUBLIC = ("/healthz", "/livez", "/readyz", "/metrics")
ADMINS = ("/up", "/down")
TOKENS = {"viewer": "viewer-token", "operator": "operator-token", "admin": "admin-token"}
PROBLEM = "application/problem+json"


async def described(gateway: Gateway) -> list[tuple[str, str]]:
    """Return method and path of every route, with names in place."""
    paths = (await gateway.client().get("/api/v1/openapi.json")).json()["paths"]
    names = {"{name}": "training-1", "{saga}": "drain-training-1-1", "{service}": "notifier"}
    found = []
    for path, methods in paths.items():
        filled = path
        for key, name in names.items():
            known = "training" if "/pools/" in path else name
            filled = filled.replace(key, known)
        found += [(method.upper(), filled) for method in methods]
    return found


def needed(method: str, path: str) -> str:
    """The role that a route is to need."""
    if method == "GET":
        return "operator" if path.endswith(("/logs", "/sweep")) else "viewer"
    return "admin" if path.endswith(ADMINS) else "operator"


async def test_every_route_needs_a_token_and_its_role(gateway: Gateway) -> None:
    """401 without one or with one that is unknown or expired; 403 below the role."""
    routes = [each for each in await described(gateway) if not each[1].endswith("/stream")]
    assert len(routes) >= 30
    ranks = list(TOKENS)
    for method, path in routes:
        for token in ("", "no-such-token", "expired-token"):
            answer = await gateway.client(token).request(method, path, json={})
            assert (401, PROBLEM) == (answer.status_code, answer.headers["Content-Type"]), path
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        for role, token in TOKENS.items():
            below = ranks.index(role) < ranks.index(needed(method, path))
            if below or method == "GET":  # changes that are allowed: test_changes.py
                answer = await gateway.client(token).request(method, path, json={})
                assert below == (answer.status_code == 403), (method, path, role)
                assert answer.status_code < 500, (path, answer.text)


async def test_no_method_of_a_path_is_answered_without_a_token(gateway: Gateway) -> None:
    """OPTIONS, which the library answers itself, ended in an error of ours."""
    for path in {path for _, path in await described(gateway)}:
        for method in ("OPTIONS", "HEAD", "GET", "POST", "PUT", "PATCH", "DELETE", "TRACE"):
            without = await gateway.client("").request(method, path)
            assert without.status_code in (401, 405), (method, path, without.status_code)
        known = await gateway.client().request("OPTIONS", path)
        assert (204, "nosniff") == (
            known.status_code,
            known.headers["X-Content-Type-Options"],
        ), known.text


async def test_health_and_metrics_need_no_token(gateway: Gateway) -> None:
    """Load balancers and Prometheus have none; what was asked is counted by route."""
    client = gateway.client("")
    assert [200] * 4 == [(await client.get(each)).status_code for each in PUBLIC]
    await gateway.client().get("/api/v1/pools/training")
    text = (await client.get("/metrics")).text
    assert 'method="GET",route="/api/v1/pools/{name}",status="200"} 1.0' in text


async def test_an_expired_token_is_named(gateway: Gateway) -> None:
    """The owner learns what to do; a stranger learns nothing."""
    said = [
        (await gateway.client(token).get("/api/v1/pools")).json()["detail"]
        for token in ("expired-token", "guess")
    ]
    assert "the token old expired at" in said[0]
    assert said[1] == "the token is not valid"


async def test_a_token_of_some_pools_sees_those_alone(gateway: Gateway) -> None:
    """A pool's caller sees nothing that belongs to another pool."""
    client = gateway.client("scoped-token")

    async def get(path: str) -> httpx.Response:
        return await client.get(f"/api/v1{path}")

    assert {"training"} == {each["pool"] for each in (await get("/nodes")).json()["items"]}
    assert {"training"} == {each["pool"] for each in (await get("/instances")).json()["items"]}
    assert ["training"] == [each["name"] for each in (await get("/pools")).json()]
    for hidden in ("/nodes/serving-1", "/nodes/serving-1/why", "/pools/serving", "/pools/nope"):
        assert (await get(hidden)).status_code == 404, hidden
    assert (await get("/nodes/serving-1")).json() == {
        **(await get("/nodes/nothing-1")).json(),
        "detail": "there is no node 'serving-1'",
    }
    assert (await get("/events?pool=serving")).status_code == 403
    assert (await get("/offerings")).status_code == 403
    assert (await get("/offerings?pool=training")).status_code == 200


async def test_a_caller_that_asks_too_often_learns_when_to_return(
    make_gateway: MakeGateway,
) -> None:
    """Others are answered meanwhile."""
    gateway = make_gateway(per_minute=6)
    first, second = [await gateway.client().get("/api/v1/sagas") for _ in range(2)]
    other = await gateway.client("admin-token").get("/api/v1/sagas")

    assert (200, 429, 200) == (first.status_code, second.status_code, other.status_code)
    assert int(second.headers["Retry-After"]) <= 10


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://127.0.0.1"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "["}, 403),
    ],
)
async def test_without_tokens_pages_of_other_sites_are_refused(
    make_gateway: MakeGateway, headers: dict[str, str], status: int
) -> None:
    """Neither a request from such a page nor a name that was made to point here."""
    client = make_gateway({}).client("")
    assert status == (await client.get("/api/v1/pools", headers=headers)).status_code


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({}, ""),
        ({"NAVARCH_AUTH_TOKEN": "your-secret-token"}, ""),
        ({"NAVARCH_AUTH_TOKEN": "short"}, "has 5 characters: use 16 to 512"),
    ],
)
def test_the_token_of_the_environment_is_an_administrators(
    environment: dict[str, str], problem: str
) -> None:
    """The variable is one token more; one that can be guessed is refused."""
    if problem:
        with pytest.raises(ConfigurationError, match=f"NAVARCH_AUTH_TOKEN: {problem}"):
            gateway_settings(Settings(), environment)
        return
    tokens = gateway_settings(Settings(), environment).tokens
    token = environment.get("NAVARCH_AUTH_TOKEN", "")
    found = find_principal(tokens, token, NOW)
    assert found == (Principal(name="auth-token", role="admin") if token else None)


@pytest.mark.parametrize(
    ("host", "is_open", "refused"),
    [("127.0.0.1", True, False), ("0.0.0.0", True, True), ("127.0.0.1", False, True)],
)
def test_no_token_is_needed_on_an_open_bus_of_this_machine_alone(
    host: str, is_open: bool, refused: bool
) -> None:
    """Elsewhere the gateway does not start without one."""
    settings = GatewaySettings(host=host)
    if refused:
        with pytest.raises(ConfigurationError, match=r"gateway\.tokens: there is none"):
            require_tokens(settings, has_others=False, is_open=is_open, file=None)
    else:
        require_tokens(settings, has_others=False, is_open=is_open, file=None)
    require_tokens(settings, has_others=True, is_open=is_open, file=None)


@given(st.binary(min_size=32, max_size=32), st.text(max_size=40), st.booleans())
def test_a_token_is_its_owners_alone(random: bytes, other: str, expired: bool) -> None:
    """A token is of no caller once it has expired; whatever is presented, nothing else raises."""
    token = new_token(lambda _: random)
    end = NOW + timedelta(seconds=-1 if expired else 1)
    tokens = with_variable({"ada": TokenSpec(sha256=digest(token), expires=end)}, "x" * 20)
    if other not in (token, "x" * 20):
        assert find_principal(tokens, other, NOW) is None
    if expired:
        with pytest.raises(ExpiredTokenError):
            find_principal(tokens, token, NOW)
    else:
        ada = Principal(name="ada", role="viewer", expires=end)
        assert find_principal(tokens, token, NOW) == ada


@given(st.lists(st.floats(min_value=0, max_value=5), max_size=60), st.integers(1, 600))
def test_a_caller_gets_its_rate_and_its_burst_and_no_more(
    gaps: list[float], per_minute: int
) -> None:
    """A caller has at most as many requests in any time as the rate allows in it, and a burst."""
    rate, now, taken = CallerRate(per_minute), 0.0, 0
    for gap in gaps:
        now += gap
        wait = rate.seconds_to_wait("ada", now)
        taken += not wait
        assert wait >= 0
    assert taken <= now * per_minute / 60 + max(1, per_minute / 6) + 1e-6


async def test_methods_that_a_caller_invents_are_one_series(
    bus: MemoryBus, make_gateway: MakeGateway
) -> None:
    """Anyone can send any word without a token, and each would be a series of its own."""
    endpoint = AssistantEndpoint(FleetClient(bus, "gateway"), SystemClock().now, str, b"key")
    client = make_gateway(more=[endpoint.route()]).client("")
    for number in range(50):
        for path in ("/api/v1/pools", "/mcp"):
            await client.request(f"INVENTED{number}", path)
    text = (await client.get("/metrics")).text
    assert "INVENTED" not in text
    assert 'method="other",route="/mcp",status="401"} 50.0' in text


@pytest.mark.parametrize(
    ("token", "room", "status", "asked"),
    [
        ("viewer-token", True, 200, 1),
        ("viewer-token", False, 503, 1),
        ("guess", True, 401, 0),
        ("", False, 401, 0),
    ],
)
async def test_only_a_caller_who_is_known_takes_a_reserved_slot(
    gateway: Gateway, token: str, room: bool, status: int, asked: int
) -> None:
    """A caller beyond them is refused with a remedy; a guess takes none."""
    taken: list[str] = []

    def know(caller: str) -> bool:
        taken.append(caller)
        return room

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {KNOW_CALLER: know}
        await gateway.app(scope, receive, send)

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x", headers=headers) as each:
        answer = await each.get("/api/v1/pools")
    assert (answer.status_code, len(taken)) == (status, asked)
    assert status != 503 or "event streams" in answer.json()["remedy"]


async def test_requests_without_a_token_are_counted(make_gateway: MakeGateway) -> None:
    """A refusal leaves no event, so this is where guesses of tokens are seen."""
    gateway = make_gateway(per_minute=6)
    for token in ("", "guess", "viewer-token", "viewer-token"):
        await gateway.client(token).get("/api/v1/pools")
    text = (await gateway.client("").get("/metrics")).text
    assert 'route="/api/v1/pools",status="401"} 2.0' in text
    assert 'route="/api/v1/pools",status="429"} 1.0' in text
