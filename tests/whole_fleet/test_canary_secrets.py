"""Secrets of the configuration are found nowhere after a fault, a replacement and failed calls."""

import asyncio
import base64
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, get_type_hints

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from schemas import subjects
from schemas.messages import decoder
from schemas.permissions import SERVICES
from schemas.pool_records import PoolRecord, pool_key
from schemas.settings import Settings
from schemas.topology import EVENTS, EVIDENCE, HEARTBEATS, POOLS
from services.bus.protocol.object_store import CHUNK_BYTES
from services.primitives.redaction import is_secret
from services.runtime.served_process import COPY_FILE
from tests.redteam.secret_settings import OPTIONS, structs_in
from tests.support.inprocess import eventually
from tests.support.leaks import file_texts, find_leaks, process_texts, stored_texts
from tests.support.serving import serving
from tests.whole_fleet.fleet import Fleet, serving_fleet

pytestmark = pytest.mark.slow

CANARY: Final = "canary-3b1f77c0a9e54d02"
CONTROL: Final = "control-91d0e7c62b8f4a35"
"""A secret that is leaked on purpose, so that a search which finds nothing is known to search."""
LEAKS: Final = (
    *("EVENTS", "KV_HEARTBEATS", "EVIDENCE leaks.n1", "leak.gz, unpacked"),
    *("logs", "traces", "/environ", "/cmdline"),
)
"""Where it is found then."""
PLANTED: Final = {
    "NatsSettings.password",
    "TracingSettings.otlp_endpoint",
    "MetricsSettings.otlp_endpoint",
    "WebhookNotifier.Options.cordon_gpus_url",
    "WebhookNotifier.Options.cordon_url",
    "WebhookNotifier.Options.uncordon_url",
    "WebhookNotifier.Options.checkpoint_url",
    "WebhookNotifier.Options.drain_url",
    "WebhookNotifier.Options.drain_status_url",
    "WebhookNotifier.Options.notify_owners_url",
    "WebhookNotifier.Options.headers",
    "WebhookNotifier.Options.secret",
    "RayNotifier.Options.dashboard",
    "RayNotifier.Options.headers",
    "AlertWebhookChannel.Options.headers",
    "AlertWebhookChannel.Options.secret",
    "AlertWebhookChannel.Options.url",
    "AlertmanagerChannel.Options.headers",
    "AlertmanagerChannel.Options.urls",
    "EmailChannel.Options.password",
    "OpsgenieChannel.Options.api_key",
    "OpsgenieChannel.Options.api_url",
    "PagerDutyChannel.Options.events_url",
    "PagerDutyChannel.Options.routing_key",
    "SlackChannel.Options.api_url",
    "SlackChannel.Options.token",
    "SlackChannel.Options.webhook_url",
    "TeamsChannel.Options.webhook_url",
    "InboundSettings.pagerduty_secret",
    "InboundSettings.slack_secret",
    "EventSinkSpec.headers",
    "EventSinkSpec.secret",
    "EventSinkSpec.url",
    "SlurmRestOptions.token",
    "SlurmRestOptions.url",
    "HttpSource.Options.url",
    "HttpSource.Options.headers",
    "PrometheusSource.Options.url",
    "PrometheusSource.Options.headers",
    "RaySource.Options.dashboard",
    "RaySource.Options.headers",
}
"""Every setting of the type SecretText; the configuration below has a canary in each."""

CONFIG: Final = """
nats: {{user: navarch, password: {canary}-nats}}
tracing: {{otlp_endpoint: "{url}/v1/traces?token={canary}-otlp"}}
metrics: {{otlp_endpoint: "{url}/v1/metrics?token={canary}-otlp-metrics"}}
data_dir: {directory}/data
gateway:
  inbound:
    pagerduty_secret: "{canary}-pagerduty-webhook"
    slack_secret: "{canary}-slack-signing"
    slack_team: T1
agent: {{heartbeat_interval: 1s, heartbeat_ttl: 3s}}
server: {{autoscale_interval: 1s}}
providers:
  local: {{type: local}}
  lambda: {{type: lambda, api_key_file: {directory}/key, base_url: "{url}/lambda"}}
notifier:
  type: webhook
  webhook:
    cordon_url: "http://u:{canary}-cordon@{host}/{canary}-cordon"
    cordon_gpus_url: "http://u:{canary}@{host}/gpus?token={canary}-gpus"
    uncordon_url: "http://u:{canary}@{host}/uncordon?token={canary}-uncordon"
    checkpoint_url: "{url}/{canary}-checkpoint?token={canary}-checkpoint"
    drain_url: "{url}/{canary}-drain?token={canary}-drain"
    notify_owners_url: "{url}/{canary}-owners?token={canary}-owners"
    drain_status_url: "{url}/drained?token={canary}-status"
    headers: {{Authorization: "Bearer {canary}-header"}}
    secret: "{canary}-orders-signature-of-32-characters"
notifiers:
  cluster:
    type: ray
    dashboard: "http://u:{canary}-ray@{host}/ray/{canary}-dashboard"
    headers: {{Authorization: "Bearer {canary}-ray-token"}}
  batch:
    type: slurm
    rest:
      url: "http://u:{canary}-slurm@{host}/slurm-rest/{canary}-slurm"
      user: navarch
      token: "{canary}.slurm.token"
alerts:
  - {{type: log}}
  - type: slack
    name: bot
    token: "{canary}-bot"
    channel: C1
    api_url: "{url}/slack?token={canary}-slack"
  - {{type: slack, webhook_url: "{url}/slack-hook/{canary}-slack-hook"}}
  - {{type: pagerduty, routing_key: "{canary}-routing", events_url: "{url}/pagerduty/{canary}"}}
  - {{type: opsgenie, api_key: "{canary}-genie", api_url: "{url}/opsgenie/{canary}"}}
  - {{type: teams, webhook_url: "{url}/teams/{canary}-teams?sig={canary}"}}
  - type: alertmanager
    urls: ["http://u:{canary}-am@{host}/alertmanager"]
    headers: {{X-Key: "{canary}-am-header"}}
  - type: webhook
    url: "{url}/alerts/{canary}-alerts"
    secret: "{canary}-signature-key-of-32-characters"
    headers: {{X-Key: "{canary}-alert-header"}}
  - type: email
    host: 127.0.0.1
    port: 9
    user: navarch
    password: "{canary}-email"
    sender: navarch@example.com
    to: [oncall@example.com]
event_sinks:
  audit:
    type: http
    url: "http://u:{canary}-sink@{host}/sink/{canary}-sink?token={canary}-sink"
    secret: "{canary}-sink-signature"
    headers: {{X-Key: "{canary}-sink-header"}}
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
      type: combined
      sources:
      - type: http
        url: "http://u:{canary}@127.0.0.1:9/{canary}-metrics?token={canary}-metrics"
        headers: {{X-Key: "${{CANARY_KEY}}"}}
      - type: prometheus
        url: "http://u:{canary}@127.0.0.1:9/{canary}-prometheus?token={canary}-prometheus"
        headers: {{X-Key: "${{CANARY_KEY}}"}}
        pending_jobs: sum(waiting)
      - type: ray
        dashboard: "http://u:{canary}@127.0.0.1:9/{canary}-ray?token={canary}-ray"
        headers: {{X-Key: "${{CANARY_KEY}}"}}
  b:
    provider: local
    instance_type: local-8gpu
    min_nodes: 0
    max_nodes: 1
    notifiers: [cluster]
  c:
    provider: local
    instance_type: local-8gpu
    min_nodes: 0
    max_nodes: 1
    notifiers: [batch]
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
    """No stream, bucket, object, file, log, metric, trace, report, command or variable has one.

    Where a secret is put into each of these, it is found.
    """
    monkeypatch.setenv("CANARY_KEY", f"{CANARY}-metrics-header")
    (tmp_path / "key").write_text(f"{CANARY}-lambda\n")
    outside = Outside()
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
        node, _ = await fleet.active("a", 2)
        await eventually(lambda: _source_failed(fleet))
        await eventually(lambda: _has_called(outside, "sink"))
        shown = await _shown(fleet, outside)
        for name in ("pools", "nodes", "sagas", "budget", "instances", "offerings", "hardware"):
            answer = await fleet.bus.request(subjects.query(name), b"{}", timeout_seconds=30)
            shown[f"query {name}"] = answer.data
        for pool in ("b", "c"):
            query, check = subjects.query("workload-check"), b'{"pool": "%s"}' % pool.encode()
            answer = await fleet.bus.request(query, check, timeout_seconds=60)
            shown[f"query workload-check {pool}"] = answer.data
        for name in SERVICES:
            logs = await fleet.bus.request_all(subjects.service_logs(name), b"", 1, 30)
            assert logs, name
            shown[f"logs of {name}"] = b"".join(logs)
        ask = subjects.node_command("a", node.node, "logs")
        shown["logs of a node"] = (await fleet.bus.request(ask, b"", timeout_seconds=30)).data
        async with _leaking(fleet, outside):
            found = find_leaks(await _shown(fleet, outside), CONTROL)
    # The copy of the configuration in force, which is for the owner alone, is gone with the fleet.
    shown |= dict(file_texts(tmp_path / "data"))

    assert {"v1", "lambda", "drained", f"{CANARY}-cordon", f"{CANARY}-drain"} <= outside.seen
    vendors = {"slack", "slack-hook", "pagerduty", "opsgenie", "teams", "alertmanager", "alerts"}
    assert vendors | {"ray", "sink", "slurm-rest"} <= outside.seen
    assert b"connect" in shown["query workload-check b"]
    assert b"rest.url" in shown["query workload-check c"]
    assert [] == find_leaks(shown, CANARY)
    where = "\n".join(found)
    assert [] == [each for each in LEAKS if each not in where]


@asynccontextmanager
async def _fleet(directory: Path, url: str) -> AsyncIterator[Fleet]:
    """The fleet with a canary in every secret setting."""
    host = url.removeprefix("http://")
    config = CONFIG.format(directory=directory, url=url, host=host, canary=CANARY)
    async with serving_fleet(directory, config=config) as fleet:
        yield fleet


async def _has_called(outside: Outside, path: str) -> bool:
    return path in outside.seen


async def _source_failed(fleet: Fleet) -> bool:
    """Whether the failure of the metrics source is stored with the pool."""
    entry = await fleet.bus.get(POOLS, pool_key("a"))
    record = _pool.decode(entry.value) if entry else None
    return record is not None and record.advice is not None


async def _shown(fleet: Fleet, outside: Outside) -> dict[str, bytes]:
    """All that the running fleet stores, shows, and hands to other processes."""
    shown = {place: text async for place, text in stored_texts(fleet.bus)}
    shown |= {f"/metrics of {k}": v.content for k, v in (await fleet.get("/metrics")).items()}
    shown |= dict(process_texts(f"NAVARCH_STATE_DIR={fleet.directory}"))
    copy = fleet.serving.directory / COPY_FILE
    assert copy.stat().st_mode & 0o777 == 0o600
    files = file_texts(fleet.serving.directory)
    shown |= {name: data for name, data in files if name != str(copy)}
    shown["logs"] = "\n".join(fleet.log).encode()
    shown["traces"] = b"".join(outside.traces)
    return shown


@asynccontextmanager
async def _leaking(fleet: Fleet, outside: Outside) -> AsyncIterator[None]:
    """A secret in each of the places that are searched."""
    secret = CONTROL.encode()
    fault = subjects.node_event("leaks", "n1", "fault")
    await fleet.bus.publish(fault, b"", headers={"X-Leak": CONTROL})
    await fleet.bus.put(HEARTBEATS, "leaks.n1", base64.b64encode(b"u:" + secret))
    split = b" " * (CHUNK_BYTES - 5) + secret
    await fleet.bus.put_object(EVIDENCE, "leaks.n1", split, metadata={}, revision=0)
    (fleet.serving.directory / "leak.gz").write_bytes(gzip.compress(secret))
    fleet.log.append(CONTROL)
    outside.traces.append(secret)
    process = await asyncio.create_subprocess_exec(
        *("sleep", "60"),
        env={"NAVARCH_STATE_DIR": str(fleet.directory), "LEAK": secret.hex()},
    )
    argument = await asyncio.create_subprocess_exec("sh", "-c", "sleep 60; :", CONTROL)
    try:
        yield
    finally:
        for each in (process, argument):
            each.kill()
            await each.wait()
