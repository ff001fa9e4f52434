"""The metrics service on a real bus, scraped as Prometheus would."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from schemas import subjects
from schemas.gpu_samples import GpuSample
from schemas.health_records import HealthRecord
from schemas.messages import encode
from schemas.metric_catalogue import METRICS
from schemas.node_events import Fault, Telemetry
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import NodeReplaced
from schemas.settings import Settings
from schemas.topology import FACTS_WAITING_MAX, HEALTH, NODES
from services.metrics.service import build
from services.primitives.clock import SystemClock
from services.runtime.consumer_loop import ConsumerLoop
from services.runtime.metric_exposition import exposition
from services.runtime.process import Context
from services.runtime.process_metrics import Instruments
from services.runtime.tracing import Tracing

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ACTIVE = "navarch_nodes_total{pool=a,status=active}"
DOCUMENTED = {
    "navarch_node_gpu_count": ("gauge", {"pool", "node"}),
    "navarch_node_gpu_temperature_celsius": ("gauge", {"pool", "node", "gpu"}),
    "navarch_node_gpu_utilization_percent": ("gauge", {"pool", "node", "gpu"}),
    "navarch_node_gpu_memory_used_bytes": ("gauge", {"pool", "node", "gpu"}),
    "navarch_node_gpu_power_watts": ("gauge", {"pool", "node", "gpu"}),
    "navarch_node_health_check_status": ("gauge", {"pool", "node"}),
    "navarch_nodes_total": ("gauge", {"pool", "status"}),
    "navarch_nodes_healthy": ("gauge", {"pool"}),
    "navarch_nodes_unhealthy": ("gauge", {"pool"}),
    "navarch_commands_issued_total": ("counter", {"pool", "command"}),
    "navarch_xid_errors_total": ("counter", {"pool", "node", "xid"}),
    "navarch_gpus_total": ("gauge", {"pool", "provider"}),
    "navarch_node_health_status": ("gauge", {"pool", "node_id", "status"}),
}
"""The names that Navarch has always documented: type and labels."""
Scrape = Callable[[], dict[str, float]]


@pytest.fixture
def replica(bus):
    """One running metrics service; yields its scrape: `name{labels}` -> value."""

    @asynccontextmanager
    async def run() -> AsyncIterator[Scrape]:
        context = Context(
            name="metrics",
            replica="metrics-test",
            bus=bus,
            clock=SystemClock(),
            settings=Settings(),
            settings_file=None,
            instruments=Instruments(),
            tracing=Tracing("metrics"),
        )
        service = await build(context)
        loops = [
            ConsumerLoop(bus, each, context.clock, context.instruments, context.tracing).run
            for each in service.consumers
        ]
        tasks = [asyncio.ensure_future(each()) for each in (*service.tasks, *loops)]

        def scrape() -> dict[str, float]:
            text = generate_latest(context.instruments.registry).decode()
            found = {}
            for family in text_string_to_metric_families(text):
                for each in family.samples:
                    labels = ",".join(f"{k}={v}" for k, v in sorted(each.labels.items()))
                    found[f"{each.name}{{{labels}}}"] = each.value
            return found

        scrape.registry = context.instruments.registry
        try:
            yield scrape
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(each) for each in ends] == [asyncio.CancelledError] * len(tasks)

    return run


async def until(scrape: Scrape, condition: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """Scrape until a condition holds."""
    async with asyncio.timeout(60):
        while not condition(found := scrape()):
            await asyncio.sleep(0.02)
    return found


async def sample(bus, node: str, temperature: int, *scrapes: Scrape) -> None:
    """Publish a sample as an agent would, until every scrape shows it."""
    gpu = GpuSample(
        index=0,
        temperature_celsius=temperature,
        utilization_percent=5,
        memory_used_bytes=6,
        power_watts=7.5,
    )
    telemetry = Telemetry(id=f"t-{temperature}", time=NOW, pool="a", node=node, gpus=(gpu,))
    name = f"navarch_node_gpu_temperature_celsius{{gpu=0,node={node},pool=a}}"
    async with asyncio.timeout(60):
        while not all(scrape().get(name) == temperature for scrape in scrapes):
            await bus.publish(subjects.telemetry("a", node), encode(telemetry))


async def xid(bus, node: str, number: int) -> None:
    """Publish a fault."""
    fault = Fault(id=f"{node}-{number}", time=NOW, pool="a", node=node, kind="xid", code=79)
    await bus.publish(subjects.node_event("a", node, "fault"), encode(fault), msg_id=fault.id)


async def put(bus, node: str, *, state: str = "active", status: str = "healthy") -> None:
    """Write a node's two records."""
    record = NodeRecord(pool="a", node=node, state=state, registered_at=NOW)
    await bus.put(NODES, node_key("a", node), encode(record))
    await bus.put(
        HEALTH, node_key("a", node), encode(HealthRecord(pool="a", node=node, status=status))
    )


async def test_every_documented_metric_exists(bus, replica):
    """The names that dashboards and alerts use, with a value for a busy node."""
    async with replica() as scrape:
        await put(bus, "n-1")
        await until(scrape, lambda found: found.get("navarch_nodes_healthy{pool=a}") == 1)
        await sample(bus, "n-1", 60, scrape)
        await xid(bus, "n-1", 1)
        replaced = NodeReplaced(
            id="r",
            time=NOW,
            pool="a",
            old_node="n-1",
            new_node="n-2",
            saga="s",
            duration_seconds=42,
        )
        await bus.publish(subjects.pool_event("a", "node-replaced"), encode(replaced))
        cordoned = f'{{"type":"io.navarch.pool_manager.event.v1.cordoned","id":"c","time":"{NOW.isoformat()}","pool":"a","node":"n-1"}}'  # noqa: E501
        await bus.publish(subjects.node_event("a", "n-1", "cordoned"), cordoned.encode())
        temperature = "navarch_node_gpu_temperature_celsius{gpu=0,node=n-1,pool=a}"
        found = await until(
            scrape,
            lambda found: (
                temperature in found
                and "navarch_commands_issued_total{command=cordon,pool=a}" in found
                and "navarch_replacements_total{pool=a}" in found
                and any(each.startswith("navarch_xid_errors_total{") for each in found)
            ),
        )
    exported = {(n.partition("{")[0], frozenset(re.findall(r"[{,](\w+)=", n))) for n in found}
    assert exported >= {(name, frozenset(labels)) for name, (_, labels) in DOCUMENTED.items()}
    declared = {each.name: (each.type, set(each.labels)) for each in METRICS}
    assert declared | DOCUMENTED == declared
    assert found[temperature] == 60
    assert found["navarch_xid_errors_total{node=n-1,pool=a,xid=79}"] == 1
    assert found["navarch_replacement_seconds_count{pool=a}"] == 1
    assert found["navarch_replacement_seconds_sum{pool=a}"] == 42
    assert found["navarch_replacement_seconds_bucket{le=30.0,pool=a}"] == 0
    assert found["navarch_replacement_seconds_bucket{le=60.0,pool=a}"] == 1
    assert found["navarch_replacement_seconds_bucket{le=+Inf,pool=a}"] == 1


async def test_a_replacement_shows_its_trace(bus, replica):
    """A bucket has the trace as exemplar for a scraper of OpenMetrics; others see none."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    about = {"time": NOW, "pool": "a", "old_node": "n-1", "new_node": "n-2", "saga": "s"}
    async with replica() as scrape:
        replaced = NodeReplaced(id="r", duration_seconds=42, **about)
        subject = subjects.pool_event("a", "node-replaced")
        await bus.publish(subject, encode(replaced), headers=headers)
        await until(scrape, lambda found: "navarch_replacements_total{pool=a}" in found)
        found, kind = await exposition(scrape.registry, "application/openmetrics-text")
        plain, _ = await exposition(scrape.registry, "")
    assert kind.startswith("application/openmetrics-text")
    lines = [each for each in found.decode().splitlines() if trace in each]
    assert [each.partition(" ")[0] for each in lines if "replacement" in each] == [
        'navarch_replacement_seconds_bucket{le="60.0",pool="a"}'
    ]
    handled = [each for each in lines if each.startswith("navarch_message_seconds_bucket")]
    assert handled  # of this event, or of the `repaired` that follows it in the same trace
    assert trace not in plain.decode()


async def test_the_series_of_a_terminated_node_end(bus, replica):
    """A terminated or deleted node's series end at the next scrape; others stay."""
    async with replica() as scrape:
        for node in ("n-1", "n-2", "n-3"):
            await put(bus, node)
        await until(scrape, lambda found: found.get(ACTIVE) == 3)
        for node in ("n-1", "n-2", "n-3"):
            await sample(bus, node, 60, scrape)
            await xid(bus, node, 1)
        await until(scrape, lambda found: len([k for k in found if "xid_errors" in k]) == 3)
        await put(bus, "n-1", state="terminated")
        await bus.delete(NODES, node_key("a", "n-2"))
        found = await until(scrape, lambda found: found[ACTIVE] == 1)
    assert [name for name in found if "node=n-1" in name or "node=n-2" in name] == []
    assert "navarch_node_gpu_temperature_celsius{gpu=0,node=n-3,pool=a}" in found


async def test_replicas_show_the_same_gauges_and_share_the_counts(bus, replica):
    """Each receives every sample; each event is counted by one of them."""
    async with replica() as one, replica() as two:
        await put(bus, "n-1")
        for scrape in (one, two):
            await until(scrape, lambda found: found.get(ACTIVE) == 1)
        for number in range(FACTS_WAITING_MAX):
            await xid(bus, "n-1", number)
        await sample(bus, "n-1", 71, one, two)
        name = "navarch_xid_errors_total{node=n-1,pool=a,xid=79}"
        await until(
            lambda: {"sum": one().get(name, 0) + two().get(name, 0)},
            lambda found: found["sum"] >= FACTS_WAITING_MAX,
        )
        assert one().get(name, 0) + two().get(name, 0) == FACTS_WAITING_MAX


async def test_an_unreadable_sample_is_counted(bus, replica):
    """The last good sample stays."""
    async with replica() as scrape:
        await put(bus, "n-1")
        await until(scrape, lambda found: found.get(ACTIVE) == 1)
        await sample(bus, "n-1", 60, scrape)
        for garbage in (b"", b"{", b"\xff", b'{"type": "other"}', b"[" * 10_000):
            await bus.publish(subjects.telemetry("a", "n-1"), garbage)
        found = await until(scrape, lambda found: found["navarch_telemetry_invalid_total{}"] == 5)
    assert found["navarch_node_gpu_temperature_celsius{gpu=0,node=n-1,pool=a}"] == 60
