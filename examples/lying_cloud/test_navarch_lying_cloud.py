"""Runs Navarch's suite for providers against a cloud that lies."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
import uvicorn
from navarch.services.provisioner.conformance import (
    ProviderConformance,
    Refusal,
    environment,
    request_maker,
)
from navarch_lying_cloud import LyingCloud
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

PAGE = 3
LAG_SECONDS = 0.05


class Cloud:
    """An account of the cloud; it lies at every second launch and every third list and removal."""

    def __init__(self) -> None:
        self.machines: dict[str, dict[str, object]] = {}
        self.last_deleted: list[dict[str, object]] = []
        self.launches, self.lists, self.removals = (itertools.count(1) for _ in range(3))
        self.ids = itertools.count(1)

    @property
    def app(self) -> Starlette:
        """Return its HTTP API."""
        return Starlette(
            routes=[
                Route("/machines", self.launch, methods=["POST"]),
                Route("/machines", self.page, methods=["GET"]),
                Route("/machines/{id}", self.get, methods=["GET"]),
                Route("/machines/{id}", self.remove, methods=["DELETE"]),
            ]
        )

    async def launch(self, request: Request) -> Response:
        """Make a machine; answer 200 with an error, or 500 although it is made."""
        asked = await request.json()
        if asked["type"] == "abacus":
            error = {"code": "no-such-type", "message": "there is no abacus"}
            return JSONResponse({"error": error})
        made = {"id": f"m-{next(self.ids)}", "status": "building", **asked}
        self.machines[made["id"]] = made
        if next(self.launches) % 2 == 0:
            return Response("<h1>Internal Server Error</h1>", 500)
        return JSONResponse({"machine": made})

    async def page(self, request: Request) -> Response:
        """Return a page that repeats a machine, has a deleted one, and may be called the last."""
        cursor = int(request.query_params["cursor"])
        every = [*self.last_deleted, *self.machines.values()]
        end = cursor + PAGE
        cut = cursor == 0 and next(self.lists) % 3 == 0
        return JSONResponse(
            {
                "machines": every[max(0, cursor - 1) : end],
                "next": None if cut or end >= len(every) else end,
                "total": len(self.machines),
            }
        )

    async def get(self, request: Request) -> Response:
        """Return a machine, whatever the case of its ID."""
        found = self.machines.get(request.path_params["id"].lower())
        return JSONResponse({"machine": found}) if found else self._missing()

    async def remove(self, request: Request) -> Response:
        """Remove a machine, whatever the case of its ID, or say so and forget it."""
        found = self.machines.get(request.path_params["id"].lower())
        if found is None:
            return self._missing()
        if next(self.removals) % 3 != 0:
            del self.machines[str(found["id"])]
            self.last_deleted = [{**found, "status": "deleted"}]
        return JSONResponse({})

    @staticmethod
    def _missing() -> Response:
        return JSONResponse({"error": {"code": "", "message": "there is none"}}, 404)


@pytest_asyncio.fixture
async def url() -> AsyncIterator[str]:
    """Serve an empty account."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(Cloud().app, log_level="warning", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = server.force_exit = True
    await running


def provider(url: str, folder: Path) -> LyingCloud:
    """Return the provider of an account."""
    options = LyingCloud.Options(url=url, list_lag_seconds=LAG_SECONDS)
    return LyingCloud(options=options, environment=environment(folder))


class TestLyingCloud(ProviderConformance):
    """Each test begins with an empty account."""

    many = 3 * PAGE

    @pytest.fixture
    def make(self, url: str, tmp_path: Path) -> Callable[[], LyingCloud]:
        """Return what makes the provider, as a service does at each of its starts."""
        return lambda: provider(url, tmp_path)

    @pytest.fixture
    def make_unreachable(self, tmp_path: Path) -> Callable[[], LyingCloud]:
        """Return what makes the provider of a cloud that does not answer."""
        return lambda: provider("http://127.0.0.1:1", tmp_path)

    @pytest.fixture
    def refused(self) -> tuple[Refusal, ...]:
        """Return what the cloud refuses, and as which kind of error."""
        return (({"instance_type": "abacus"}, "INVALID"),)


async def test_every_lie_is_met(url: str, tmp_path: Path) -> None:
    """Six launches and removals meet each lie, and the account is empty in the end."""
    found, wanted = provider(url, tmp_path), request_maker({})
    made = [await found.provision(wanted(f"web-{number}")) for number in range(6)]
    assert len({each.provider_id for each in made}) == len(await found.list()) == 6
    for each in made:
        await found.terminate(each.provider_id)
    assert await found.list() == []
    await found.close()
