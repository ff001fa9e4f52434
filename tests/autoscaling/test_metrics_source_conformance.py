"""The conformance suite of metrics sources: the built-in ones pass it; a careless one fails."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from schemas.settings import Setting
from services.pool_manager.autoscaling.autoscaler_plugins import source_of
from services.pool_manager.autoscaling.metrics_source_conformance import SourceConformance
from services.pool_manager.autoscaling.metrics_sources import Load, MetricsSource
from tests.notifier.kubernetes_site import kubeconfig
from tests.support.serving import serving

ANSWERS: dict[str, Any] = {
    "/load": {"pending_jobs": 2},
    "/api/v1/query": {
        "status": "success",
        "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1.0, "2"]}]},
    },
    "/api/cluster_status": {"data": {"clusterStatus": {"loadMetricsReport": {}}}},
    "/api/v1/pods": {"metadata": {}, "items": []},
    "/openapi/v3": {"paths": {"/slurm/v0.0.41/nodes/": {"get": {}}}},
    "/slurm/v0.0.41/jobs": {"jobs": []},
    "/slurm/v0.0.41/nodes": {"nodes": []},
    "/slurm/v0.0.41/partitions": {"partitions": [{"name": "training"}]},
}
KINDS = ("http", "prometheus", "ray", "slurm", "slurm-rest", "kubernetes", "combined")
AWAY = "http://127.0.0.1:1"


async def answer(request: Request) -> Response:
    """Return what the systems answer."""
    return Response(json.dumps(ANSWERS[request.url.path]))


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Yield the address of all systems behind HTTP, on a free port."""
    route = Route("/{path:path}", answer, methods=["GET", "POST"])
    async with serving(Starlette(routes=[route])) as address:
        yield address


def settings(kind: str, url: str, folder: Path) -> dict[str, Any]:
    """Return what a pool's `metrics` says."""
    if kind == "http":
        return {"type": kind, "url": f"{url}/load"}
    if kind == "prometheus":
        return {"type": kind, "url": url, "pending_jobs": "x", "utilization": "y"}
    if kind == "ray":
        return {"type": kind, "dashboard": url}
    if kind == "kubernetes":
        pytest.importorskip("kubernetes_asyncio")
        file = folder / f"kubeconfig-{len(url)}"
        file.write_text(kubeconfig(url))
        return {"type": kind, "kubeconfig": str(file)}
    if kind == "slurm-rest":
        return {"type": "slurm", "rest": {"url": url, "user": "navarch", "token": "jwt"}}
    if kind == "slurm":
        away = url == AWAY
        for name in ("squeue", "sinfo", "scontrol"):
            text = "#!/bin/sh\n" + ("echo Unable to contact slurm >&2; exit 1" if away else "true")
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        return {"type": kind, "commands": str(folder)}
    parts = [settings(each, url, folder) for each in ("http", "ray")]
    return {"type": "combined", "sources": parts}


class TestBuiltin(SourceConformance):
    """The built-in sources; Slurm's commands are scripts here."""

    @pytest.fixture(params=KINDS)
    def kind(self, request: pytest.FixtureRequest) -> str:
        """Return each kind of source in turn."""
        return str(request.param)

    @pytest.fixture
    def answered(self, kind: str, url: str, tmp_path: Path) -> MetricsSource:
        """Return a source whose system answers."""
        return source_of(settings(kind, url, tmp_path), "metrics", None)

    @pytest.fixture
    def unanswered(self, kind: str, tmp_path: Path) -> MetricsSource:
        """Return a source whose system is away."""
        return source_of(settings(kind, AWAY, tmp_path), "metrics", None)


class CarelessSource:
    """A careless source says nothing, and takes a system that is away for an empty queue."""

    class Options(Setting, frozen=True, kw_only=True):
        """Offers no options."""

    async def load(self, pool: str) -> Load:  # noqa: ARG002
        """Return a load that knows nothing."""
        return Load()

    async def close(self) -> None:
        """Close nothing, because nothing is held."""


async def test_careless_source_fails() -> None:
    """A careless source fails both tests: the suite is no decoration."""
    suite = SourceConformance()
    with pytest.raises(AssertionError, match="it knows nothing"):
        await suite.test_it_answers_a_load(CarelessSource())
    with pytest.raises(pytest.fail.Exception):
        await suite.test_a_system_that_is_away_is_no_load(CarelessSource())
