"""Secrets of the configuration are found nowhere after a fault, a replacement and failed calls."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, get_type_hints

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from schemas.messages import decoder
from schemas.pool_records import PoolRecord, pool_key
from schemas.settings import Settings
from schemas.topology import EVENTS, POOLS
from services.primitives.redaction import is_secret
from tests.redteam.secret_settings import OPTIONS, structs_in
from tests.support.inprocess import eventually
from tests.support.serving import serving
from tests.whole_fleet.fleet import Fleet, serving_fleet

pytestmark = pytest.mark.slow

CANARY: Final = "canary-3b1f77c0a9e54d02"
PLANTED: Final = {
    "NatsSettings.password",
    "TracingSettings.otlp_endpoint",
    "WebhookNotifier.Options.cordon_url",
    "WebhookNotifier.Options.uncordon_url",
    "WebhookNotifier.Options.drain_url",
    "WebhookNotifier.Options.drain_status_url",
    "WebhookNotifier.Options.headers",
    "HttpSource.Options.url",
    "HttpSource.Options.headers",
}
"""Every setting of the type SecretText; the configuration below has a canary in each."""

CONFIG: Final = """
nats: {{user: navarch, password: {canary}-nats}}
tracing: {{otlp_endpoint: "{url}/v1/traces?token={canary}-otlp"}}
data_dir: {directory}/data
agent: {{heartbeat_interval: 1s, heartbeat_ttl: 3s}}
server: {{autoscale_interval: 1s}}
providers:
  local: {{type: local}}
  lambda: {{type: lambda, api_key_file: {directory}/key, base_url: "{url}/lambda"}}
notifier:
  type: webhook
  webhook:
    cordon_url: "http://u:{canary}-cordon@{host}/{canary}-cordon"
    uncordon_url: "http://u:{canary}@{host}/uncordon?token={canary}-uncordon"
    drain_url: "{url}/{canary}-drain?token={canary}-drain"
    drain_status_url: "{url}/drained?token={canary}-status"
    headers: {{Authorization: "Bearer {canary}-header"}}
pools:
  a:
    provider: local
    instance_type: local-8gpu
    gpu_count: 8
    min_nodes: 2
    max_nodes: 3
    drain_timeout: 1m
    launch_timeout: 30s
    autoscaling: {{type: queue}}
    metrics:
      type: http
      url: "http://u:{canary}@127.0.0.1:9/{canary}-metrics?token={canary}-metrics"
      headers: {{X-Key: "${{CANARY_KEY}}"}}
"""

_pool = decoder(PoolRecord)


@dataclass(slots=True)
class Outside:
    """Workload system, cloud and trace collector, which repeat what they are sent."""

    seen: set[str] = field(default_factory=set)
    """Paths that were called with the canary."""
    failed: int = 0
    traces: list[bytes] = field(default_factory=list)

    async def any(self, request: Request) -> Response:
        """Fail twice with the whole request as the answer, then accept."""
        path, repeated = request.url.path, f"{request.url} {dict(request.headers)}"
        self.seen.add(path.split("/")[1])
        if path.startswith("/v1/traces"):
            self.traces.append(await request.body())
            return Response(media_type="application/x-protobuf")
        if path.startswith("/lambda"):
            error = {"code": "global/invalid-api-key", "message": repeated}
            return JSONResponse({"error": error}, status_code=401)
        if path == "/drained":
            return JSONResponse({"drained": True, "message": CANARY})
        self.failed += 1
        code = 500 if self.failed % 3 else 202
        return PlainTextResponse(f"{repeated} {CANARY}", status_code=code)


def test_every_secret_setting_is_planted() -> None:
    """Generated from the settings' types: a new secret needs a canary in the configuration."""
    found = {
        f"{kind.__qualname__}.{name}"
        for kind in structs_in(Settings, *OPTIONS.values())
        for name, hint in get_type_hints(kind, include_extras=True).items()
        if is_secret(hint)
    }
    assert PLANTED == found


async def test_planted_secrets_are_found_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In no stream, bucket, object, file, log, metric, trace, command line or agent's variable."""
    monkeypatch.setenv("CANARY_KEY", f"{CANARY}-metrics-header")
    (tmp_path / "key").write_text(f"{CANARY}-lambda\n")
    outside = Outside()
    shown: dict[str, str] = {}
    async with (
        serving(
            Starlette(routes=[Route("/{path:path}", outside.any, methods=["GET", "POST"])])
        ) as url,
        _fleet(tmp_path, url) as fleet,
    ):
        broken, _ = await fleet.active("a", 2)
        after = await fleet.bus.last_sequence(EVENTS.name)
        fleet.break_gpu(broken)
        await fleet.replaced(broken.node, after)
        await fleet.active("a", 2)
        await eventually(lambda: _source_failed(fleet))
        shown |= {f"/metrics of {k}": v.text for k, v in (await fleet.get("/metrics")).items()}
        shown |= dict(_processes(fleet))
    shown["logs"] = "\n".join(fleet.log)
    shown["traces"] = repr(outside.traces)
    for file in (tmp_path / "data").rglob("*"):
        if file.is_file():
            shown[str(file)] = file.read_bytes().decode("latin-1")

    assert {"v1", "lambda", "drained", f"{CANARY}-cordon", f"{CANARY}-drain"} <= outside.seen
    assert any("/proc/" in each for each in shown)
    assert any("SAGAS" in each for each in shown)
    assert [] == [_around(where, text) for where, text in shown.items() if CANARY in text]


@asynccontextmanager
async def _fleet(directory: Path, url: str) -> AsyncIterator[Fleet]:
    """The fleet with a canary in every secret setting."""
    host = url.removeprefix("http://")
    config = CONFIG.format(directory=directory, url=url, host=host, canary=CANARY)
    async with serving_fleet(directory, config=config) as fleet:
        yield fleet


async def _source_failed(fleet: Fleet) -> bool:
    """Whether the failure of the metrics source is stored with the pool."""
    entry = await fleet.bus.get(POOLS, pool_key("a"))
    record = _pool.decode(entry.value) if entry else None
    return record is not None and record.advice is not None


def _processes(fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Command lines of every process, and the variables of the nodes' agents."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            yield f"{place}/cmdline", (place / "cmdline").read_text(errors="replace")
            variables = (place / "environ").read_text(errors="replace")
        except OSError:
            continue
        if f"NAVARCH_STATE_DIR={fleet.directory}" in variables:
            yield f"{place}/environ", variables


def _around(where: str, text: str) -> str:
    at = text.index(CANARY)
    return f"{where}: {text[max(0, at - 120) : at + 60]!r}"
