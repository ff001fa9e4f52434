"""A real Prometheus scrapes the real metrics process; promtool reads what it serves."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas import subjects
from schemas.gpu_samples import GpuSample
from schemas.messages import encode
from schemas.node_events import Fault, GpuIdentity, Telemetry
from schemas.node_records import NodeRecord, node_key
from schemas.topology import NODES
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.autoscaling.metrics_sources import Load, SourceError
from services.pool_manager.autoscaling.sources.prometheus_source import PrometheusSource
from tests.support.inprocess import eventually

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not (shutil.which("prometheus") and shutil.which("promtool")),
        reason="no prometheus here: apt-get install prometheus",
    ),
]
DASHBOARDS = Path(__file__).parents[2] / "deploy/grafana/dashboards"
FILLED = {
    "fleet: Nodes by pool",
    "pool: Nodes",
    "node: GPUs",
    "node: Temperature",
    "bus: Clock ahead of the server's",
    "bus: Undelivered messages",
}
"""Panels that have data in the fleet of `fill`: one node without a pool's record."""
NOW = datetime(2026, 1, 2, tzinfo=UTC)


@asynccontextmanager
async def metrics_process(url: str) -> AsyncIterator[str]:
    """`python -m services.metrics` on a bus; yields its HTTP address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.metrics"),
        env=os.environ | {"NAVARCH_NATS_URL": url},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(20):
            while True:
                entry: dict[str, Any] = json.loads(await process.stderr.readline())
                if entry["msg"] == "ready":
                    break
        yield entry["http"]
    finally:
        process.terminate()
        await process.communicate()


@asynccontextmanager
async def prometheus(directory: Path, target: str) -> AsyncIterator[httpx.AsyncClient]:
    """A Prometheus that scrapes `target` every half second; yields a client of its API."""
    config = directory / "prometheus.yml"
    config.write_text(
        "scrape_configs:\n- job_name: navarch\n  scrape_interval: 500ms\n"
        f"  scrape_timeout: 500ms\n  static_configs:\n  - targets: ['{target}']\n"
    )
    log = directory / "prometheus.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            "--web.listen-address=127.0.0.1:0",
            "--log.format=json",
            stderr=out,
        )

    async def listening() -> str:
        for line in log.read_text().splitlines():
            entry = json.loads(line)
            if entry.get("msg") == "Listening on" and "address" in entry:
                return str(entry["address"])
        return ""

    try:
        address = await eventually(listening, within_seconds=20)
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


async def fill(bus: NatsBus) -> None:
    """One node in service, with one XID."""
    record = NodeRecord(
        pool="training",
        node="n1",
        state="active",
        health="healthy",
        gpus=(GpuIdentity(index=0, uuid="GPU-1"),),
    )
    await bus.create(NODES, node_key("training", "n1"), encode(record))
    about: dict[str, Any] = {"time": NOW, "pool": "training", "node": "n1"}
    fault = Fault(id="f1", kind="xid", code=79, gpu_index=0, **about)
    await bus.publish(subjects.node_event("training", "n1", "fault"), encode(fault), msg_id="f1")


async def sample(bus: NatsBus) -> None:
    """One sample; samples are followed from now on, so a test sends them until one is seen."""
    gpus = (GpuSample(index=0, uuid="GPU-1", temperature_celsius=61),)
    now = datetime.now(UTC)
    telemetry = Telemetry(id=f"t{now}", time=now, pool="training", node="n1", gpus=gpus)
    await bus.publish(subjects.telemetry("training", "n1"), encode(telemetry))


async def test_prometheus_scrapes_the_documented_names(
    server: EmbeddedServer, bus: NatsBus, tmp_path: Path
) -> None:
    """Queried with PromQL, each name has its value and labels."""
    async with metrics_process(server.url) as http:
        await fill(bus)
        async with prometheus(tmp_path, http.removeprefix("http://")) as client:

            async def value(query: str) -> float | None:
                reply = await client.get("/api/v1/query", params={"query": query})
                found = reply.json()["data"]["result"]
                return float(found[0]["value"][1]) if found else None

            async def hot() -> bool:
                await sample(bus)
                query = 'navarch_node_gpu_temperature_celsius{node="n1",gpu="0"}'
                return await value(query) == 61

            await eventually(hot, within_seconds=20)
            assert await value('navarch_node_gpu_count{node="n1"}') == 1
            assert await value("navarch_nodes_total") == 1
            assert await value('sum(navarch_xid_errors_total{xid="79"})') == 1
            assert await value("up") == 1


async def test_prometheus_answers_every_query_of_the_dashboards(
    server: EmbeddedServer, bus: NatsBus, tmp_path: Path
) -> None:
    """None is refused; those about nodes, GPUs and the bus have a result here."""
    async with metrics_process(server.url) as http:
        await fill(bus)
        async with prometheus(tmp_path, http.removeprefix("http://")) as client:

            async def results() -> dict[str, int]:
                await sample(bus)
                found: dict[str, int] = {}
                for path in sorted(DASHBOARDS.glob("*.json")):
                    for panel in json.loads(path.read_text("utf-8"))["panels"]:
                        query = panel["targets"][0]["expr"]
                        for name in ("$pool", "$node"):
                            query = query.replace(name, ".*")
                        reply = await client.get("/api/v1/query", params={"query": query})
                        assert reply.status_code == 200, reply.text
                        found[f"{path.stem}: {panel['title']}"] = len(
                            reply.json()["data"]["result"]
                        )
                return found

            async def filled() -> bool:
                return {name for name, count in (await results()).items() if count} >= FILLED

            await eventually(filled, within_seconds=30)


async def test_promtool_accepts_the_metrics(server: EmbeddedServer, bus: NatsBus) -> None:
    """The body is not empty, and `promtool check metrics` accepts it."""
    async with metrics_process(server.url) as http:
        await fill(bus)
        async with httpx.AsyncClient() as client:

            async def body() -> str:
                await sample(bus)
                text = (await client.get(f"{http}/metrics")).text
                return text if "navarch_node_gpu_temperature_celsius{" in text else ""

            text = await eventually(body)
    checker = await asyncio.create_subprocess_exec(
        *("promtool", "check", "metrics"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await checker.communicate(text.encode())
    # Two documented names break the naming rules and stay, because dashboards use them.
    named = ("navarch_nodes_total ", "navarch_node_gpu_count ")
    complaints = [
        line for line in output.decode().splitlines() if line and not line.startswith(named)
    ]

    assert complaints == []


async def test_autoscaler_reads_its_queue_with_promql(tmp_path: Path) -> None:
    """A query has one number as its result; a series that is absent is no zero."""
    async with prometheus(tmp_path, "127.0.0.1:1") as client:

        async def load(query: str) -> Load | str:
            options = PrometheusSource.Options(url=str(client.base_url), pending_jobs=query)
            source = PrometheusSource(options=options)
            try:
                return await source.load("training")
            except SourceError as error:
                return str(error)
            finally:
                await source.close()

        async def scraped() -> bool:
            return await load("count(up == 0)") == Load(pending_jobs=1)

        await eventually(scraped, within_seconds=20)
        assert await load("vector(2.5)") == Load(pending_jobs=3)
        assert await load("scalar(vector(4))") == Load(pending_jobs=4)
        assert "has no result" in str(await load('queue{pool="$pool"}'))
        assert await load('sum(queue{pool="$pool"}) or vector(0)') == Load(pending_jobs=0)
        assert "parse error" in str(await load("sum("))
        assert "is a matrix" in str(await load("up[5m]"))
