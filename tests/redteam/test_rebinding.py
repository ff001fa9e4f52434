"""A name of the public DNS that leads to this machine or to a cloud's metadata is not asked."""

import ast
import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.gateway.authenticators.authenticator import UnreachableError
from services.gateway.authenticators.oidc_authenticator import SigningKeys
from services.http_client import AsyncNavarch
from services.pool_manager.autoscaling.metrics_sources import SourceError
from services.pool_manager.autoscaling.sources.source_http import SourceHttp
from services.primitives.clock import SystemClock
from services.runtime.http_caller import HttpCaller, TransientHttpError
from services.runtime.peer_addresses import refuses
from tests.house.modules import ROOT
from tests.support.serving import serving

NAME: Final = "events.example.com"
PUBLIC: Final = "203.0.113.7"
"""What the name leads to when it is looked at."""
Ask = Callable[[str], Awaitable[None]]


def rebind(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Have the name lead to each of these in turn, and to the last from then on."""
    left, loop, answered = list(addresses), asyncio.get_running_loop(), list[str]()
    ask = loop.getaddrinfo

    async def answer(host: Any, port: Any, **more: Any) -> Any:
        if (host if isinstance(host, str) else host.decode()) != NAME:
            return await ask(host, port, **more)
        answered.append(left.pop(0) if len(left) > 1 else left[0])
        return await ask(answered[-1], port, **more)

    monkeypatch.setattr(loop, "getaddrinfo", answer)
    return answered


async def of_a_sink(url: str) -> None:
    """Ask as event sinks, webhooks, alert channels and workload systems do."""
    caller = HttpCaller(SystemClock(), timeout_seconds=5)
    try:
        with pytest.raises(TransientHttpError, match=f"{NAME} leads to 127"):
            await caller.send(caller.request("POST", url, json={"events": []}), "event_sinks.a.url")
    finally:
        await caller.close()


async def of_an_issuer(url: str) -> None:
    """Ask for the keys of an issuer of tokens."""
    keys = SigningKeys(SystemClock(), url, url)
    with pytest.raises(UnreachableError, match=f"{NAME} leads to 127"):
        await keys.find("a", "RS256")
    await keys.close()


async def of_a_metrics_source(url: str) -> None:
    """Ask for the number of waiting jobs."""
    source = SourceHttp(url, {}, 5)
    with pytest.raises(SourceError, match=f"{NAME} leads to 127"):
        await source.ask("GET", source.url())
    await source.close()


@pytest.mark.parametrize("ask", [of_a_sink, of_an_issuer, of_a_metrics_source])
async def test_a_name_that_changes_leads_to_nothing_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    """An earlier look counts for nothing: the connection's own address is compared."""
    asked: list[str] = []

    async def note(request: Request) -> Response:
        asked.append(request.method)
        return JSONResponse({"keys": []})

    answered = rebind(monkeypatch, PUBLIC, "127.0.0.1")
    async with serving(
        Starlette(routes=[Route("/{rest:path}", note, methods=["GET", "POST"])])
    ) as url:
        found = await asyncio.get_running_loop().getaddrinfo(NAME, 80, type=socket.SOCK_STREAM)
        assert found[0][4][0] == PUBLIC
        await ask(url.replace("127.0.0.1", NAME))
    assert asked == []
    assert answered[0] == PUBLIC
    assert set(answered[1:]) == {"127.0.0.1"}


async def test_commands_follow_a_name_to_a_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator's own /etc/hosts may have a gateway's name lead to a tunnel's end."""

    async def caller(_: Request) -> Response:
        return JSONResponse({"name": "ada", "role": "viewer", "pools": []})

    rebind(monkeypatch, "127.0.0.1")
    async with (
        serving(Starlette(routes=[Route("/api/v1/caller", caller)])) as url,
        AsyncNavarch(url.replace("127.0.0.1", NAME), tries_max=1) as fleet,
    ):
        assert (await fleet.get_caller()).name == "ada"


@pytest.mark.parametrize(
    ("name", "address", "refused"),
    [
        (NAME, "127.0.0.1", True),
        (NAME, "127.9.9.9", True),
        (NAME, "0.0.0.0", True),
        (NAME, "::1", True),
        (NAME, "::ffff:127.0.0.1", True),
        (NAME, "64:ff9b::a9fe:a9fe", True),
        (NAME, "169.254.169.254", True),
        (NAME, "fd00:ec2::254", True),
        (NAME, "fe80::1%eth0", True),
        (NAME, "100.100.100.200", True),
        (NAME, "224.0.0.1", True),
        (f"{NAME}.", "127.0.0.1", True),
        ("LOCALHOST.example.com", "127.0.0.1", True),
        ("localhost.evil", "127.0.0.1", True),
        (NAME, PUBLIC, False),
        (NAME, "10.0.0.7", False),
        (NAME, "64:ff9b::a00:7", False),
        (NAME, "2001:db8::7", False),
        ("127.0.0.1", "127.0.0.1", False),
        ("::1", "::1", False),
        ("169.254.169.254", "169.254.169.254", False),
        ("localhost", "127.0.0.1", False),
        ("slurm", "127.0.1.1", False),
        ("head-1.example.com", "127.0.1.1", False),
        ("metadata.google.internal", "169.254.169.254", False),
        ("node.home.arpa", "127.0.0.1", False),
    ],
)
def test_a_strangers_name_leads_to_no_address_of_this_machine(
    name: str, address: str, *, refused: bool
) -> None:
    """An address that is written, a name without a dot and this machine's own are the owner's."""
    assert refuses(name, address, "head-1") == refused


def made_apart(source: str) -> list[int]:
    """Return the lines of a module that make a client or send without one. Pure."""
    found = []
    for each in ast.walk(ast.parse(source)):
        called = each.func if isinstance(each, ast.Call) else None
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            names = {"AsyncClient", "Client", "get", "post", "request", "stream"}
            if called.value.id == "httpx" and called.attr in names:
                found.append(each.lineno)
    return found


def test_clients_are_made_in_one_place() -> None:
    """One that is made elsewhere would ask where any name leads."""
    assert made_apart("httpx.AsyncClient()\nhttpx.get('http://x')\nhttpx.URL('x')") == [1, 2]
    modules = [each for place in ("services", "agent") for each in (ROOT / place).rglob("*.py")]
    found = {
        str(each.relative_to(ROOT)): lines
        for each in modules
        if (lines := made_apart(each.read_text("utf-8")))
    }
    assert found.keys() == {"services/runtime/bounded_http.py"}
