"""The number of series is bounded, whatever agents send: for 10,000 nodes, and beyond them."""

from datetime import UTC, datetime

import pytest

from schemas.gpu_samples import GpuSample
from schemas.health_records import HealthRecord
from schemas.metric_catalogue import (
    GPU_INDEX_MAX,
    LABEL_VALUES_MAX,
    METRICS,
    NODE_XIDS_MAX,
    XID_CODE_MAX,
)
from schemas.node_events import Fault, Telemetry
from schemas.node_records import NodeRecord, node_key
from services.metrics.fleet.fleet_metrics import XIDS, LatestSample, increments
from services.metrics.fleet.prometheus_collector import FleetCollector

NOW = datetime(2026, 1, 2, tzinfo=UTC)
GPUS = 8
POOLS = 20


def collector(nodes: int, indexes: range = range(GPUS)) -> FleetCollector:
    """One that has so many nodes, each with a sample."""
    found = FleetCollector(lambda: NOW)
    records = [
        NodeRecord(pool=f"p{i % POOLS}", node=f"n-{i}", state="active") for i in range(nodes)
    ]
    found.nodes = {node_key(each.pool, each.node): each for each in records}
    found.health = {
        key: HealthRecord(pool=each.pool, node=each.node, status="healthy")
        for key, each in found.nodes.items()
    }
    reading = {"utilization_percent": 5, "memory_used_bytes": 9, "power_watts": 5.5}
    gpus = tuple(GpuSample(index=i, temperature_celsius=61, **reading) for i in indexes)
    for key, each in found.nodes.items():
        telemetry = Telemetry(id="t", time=NOW, pool=each.pool, node=each.node, gpus=gpus)
        found.samples[key] = LatestSample(telemetry, NOW)
    return found


def xid(found: FleetCollector, pool: str, node: str, code: int) -> None:
    """An agent reports an XID."""
    fault = Fault(id="f", time=NOW, pool=pool, node=node, kind="xid", code=code)
    for increment in increments(fault):
        found.add(increment, {})


def series(found: FleetCollector) -> dict[str, int]:
    """Name -> number of series, of a scrape."""
    return {family.name: len(family.samples) for family in found.collect()}


def test_every_label_has_a_limit() -> None:
    """A metric with a label that any number of values could have would end Prometheus."""
    labels = {label for each in METRICS for label in each.labels}
    assert labels == set(LABEL_VALUES_MAX)
    assert XID_CODE_MAX + 2 == LABEL_VALUES_MAX["xid"]


@pytest.mark.slow
def test_ten_thousand_nodes_all_have_their_series() -> None:
    """Each node has its status and each GPU its readings; nothing is left out."""
    found = collector(10_000)
    for i in range(10_000):
        xid(found, f"p{i % POOLS}", f"n-{i}", 79)
    counted = series(found)
    assert counted["navarch_node_gpu_temperature_celsius"] == 10_000 * GPUS
    assert counted["navarch_node_health_status"] == counted["navarch_node_gpu_count"] == 10_000
    assert counted["navarch_xid_errors"] == 10_000
    assert sum(counted.values()) < 10_000 * (4 * GPUS + 4) + POOLS * 100
    left = next(each for each in found.collect() if each.name == "navarch_series_left_out")
    assert [each.value for each in left.samples] == [0]


@pytest.mark.slow
def test_nodes_beyond_the_limit_count_in_their_pools_alone() -> None:
    """The same nodes at every scrape, and a metric says how many have none."""
    most = LABEL_VALUES_MAX["node"]
    found = collector(most + 7, range(1))
    families = {each.name: each.samples for each in found.collect()}
    assert len(families["navarch_node_health_status"]) == most
    assert len(families["navarch_node_gpu_power_watts"]) == most
    assert sum(each.value for each in families["navarch_nodes_total"]) == most + 7
    assert [each.value for each in families["navarch_series_left_out"]] == [7]
    again = {each.name: each.samples for each in found.collect()}
    assert again["navarch_node_health_status"] == families["navarch_node_health_status"]
    for number in range(most + 100):
        xid(found, "p0", f"gone-{number}", 79)
    xid(found, "p1", "n-1", 79)
    assert len(found._counts[XIDS]) <= most + 1


def test_an_agent_cannot_make_series_at_will() -> None:
    """Neither by codes nor by indexes of GPUs; what is beyond counts as `other`."""
    found = collector(1, range(-5, 5_000, 5))
    for code in range(3 * NODE_XIDS_MAX):
        xid(found, "p0", "n-0", code)
    for code in range(10**6, 10**6 + 500):
        xid(found, "p0", "n-0", code)
    counted = series(found)
    assert counted["navarch_node_gpu_temperature_celsius"] <= GPU_INDEX_MAX + 1
    families = {each.name: each.samples for each in found.collect()}
    xids = {each.labels["xid"]: each.value for each in families["navarch_xid_errors"]}
    assert len(xids) == NODE_XIDS_MAX + 1
    assert sum(xids.values()) == 3 * NODE_XIDS_MAX + 500
    assert xids["other"] == 2 * NODE_XIDS_MAX + 500


def test_an_event_after_a_nodes_end_makes_no_series() -> None:
    """The node's series have ended, and nothing would end new ones."""
    found = collector(1)
    gone = NodeRecord(pool="p0", node="n-1", state="terminated")
    found.nodes = {**found.nodes, "p0.n-1": gone}
    xid(found, "p0", "n-1", 79)
    assert series(found)["navarch_xid_errors"] == 0
