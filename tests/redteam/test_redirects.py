"""No answer sends a service to another address, as that of a cloud's metadata of its host."""

import ast
from pathlib import Path
from typing import Final

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from schemas.duration import Duration
from services.provisioner.provider_client.provider import Environment
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.lambda_cloud import LambdaProvider
from tests.house.modules import ROOT
from tests.support.serving import serving

FOLLOWS_BY_ITSELF: Final = frozenset({"urllib.request", "requests", "aiohttp"})
"""Clients that follow redirects unless they are stopped."""


def followers(source: str) -> list[str]:
    """Return where a module follows redirects, or has a client that does. Pure."""
    found = []
    for each in ast.walk(ast.parse(source)):
        if isinstance(each, ast.keyword) and each.arg == "follow_redirects":
            if not (isinstance(each.value, ast.Constant) and each.value.value is False):
                found.append(f"line {each.value.lineno}: follow_redirects")
        elif isinstance(each, ast.Import):
            found += [a.name for a in each.names if a.name in FOLLOWS_BY_ITSELF]
        elif isinstance(each, ast.ImportFrom) and each.module in FOLLOWS_BY_ITSELF:
            found += [str(each.module)]
    return found


def test_no_service_follows_redirects() -> None:
    """Providers, webhooks, sinks and issuers of tokens are asked where the settings say."""
    modules = [file for place in ("services", "agent") for file in (ROOT / place).rglob("*.py")]
    assert len(modules) > 500
    found = {
        str(file.relative_to(ROOT)): lines
        for file in modules
        if (lines := followers(file.read_text("utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("httpx.AsyncClient(follow_redirects=True)", 1),
        ("client.get(url, follow_redirects=method == 'GET')", 1),
        ("client.get(url, follow_redirects=False)", 0),
        ("import urllib.request", 1),
        ("from urllib.request import urlopen", 1),
        ("from urllib.parse import quote", 0),
    ],
)
def test_a_follower_is_found(source: str, count: int) -> None:
    """The check itself sees what it looks for."""
    assert len(followers(source)) == count


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_cloud_that_redirects_is_not_followed(tmp_path: Path, status: int) -> None:
    """The key went along on the same host, and any address of this network could be asked."""
    asked: list[str] = []

    async def inner(request: Request) -> Response:
        asked.append(request.url.path)
        return JSONResponse({"data": []})

    (tmp_path / "key").write_text("secret\n")
    environment = Environment(name="lambda", fleet="f", nats_url="", data_dir=tmp_path)
    async with serving(Starlette(routes=[Route("/{rest:path}", inner)])) as metadata:

        async def outer(_: Request) -> Response:
            return RedirectResponse(f"{metadata}/latest/meta-data", status)

        async with serving(Starlette(routes=[Route("/{rest:path}", outer)])) as api:
            options = LambdaProvider.Options(
                api_key_file=str(tmp_path / "key"), base_url=api, request_interval=Duration(0)
            )
            provider = LambdaProvider(options=options, environment=environment)
            with pytest.raises(ProviderError):
                await provider.list()
            await provider.close()
    assert asked == []
