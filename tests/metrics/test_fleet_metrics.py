"""Records, samples and events as metrics."""

from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest

from schemas.gpu_samples import GpuSample
from schemas.health_records import HealthRecord
from schemas.held_conditions import ConditionList, HeldCondition
from schemas.node_events import (
    Admitted,
    Cordoned,
    Drained,
    Fault,
    GpuIdentity,
    Telemetry,
    Terminated,
    Uncordoned,
)
from schemas.node_records import NodeRecord, Quarantine
from schemas.pool_events import NodeReplaced, Scaled
from schemas.saga_params import LaunchSpec
from services.metrics.fleet.fleet_metrics import (
    COMMANDS,
    CONDITIONS_MAX,
    REPLACEMENT_SECONDS,
    REPLACEMENTS,
    SCALINGS,
    STALE_SECONDS,
    XIDS,
    Increment,
    LatestSample,
    NodeStatus,
    gauges,
    increments,
    node_status,
    stale_samples,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OF_POOL = {"id": "e", "time": NOW, "pool": "training"}
OF_NODE = {"id": "e", "time": NOW, "pool": "training", "node": "n-1"}


def node(name: str, state: str = "active", **more) -> NodeRecord:  # noqa: ANN003
    return NodeRecord(pool="training", node=name, state=state, **more)


def health(name: str, status: str) -> HealthRecord:
    return HealthRecord(pool="training", node=name, status=status)


def sample(name: str, *gpus: GpuSample, age_seconds: float = 0) -> LatestSample:
    telemetry = Telemetry(id="t", time=NOW, pool="training", node=name, gpus=gpus)
    return LatestSample(telemetry, NOW - timedelta(seconds=age_seconds))


def values(nodes, statuses=(), samples=()) -> dict[str, dict[tuple[str, ...], float]]:
    """Return every gauge's values by its name."""
    found = gauges(
        {f"training.{each.node}": each for each in nodes},
        {f"training.{each.node}": each for each in statuses},
        {f"training.{each.sample.node}": each for each in samples},
        NOW,
    )
    return {gauge.spec.name: gauge.values for gauge in found}


def test_nodes_are_counted_by_pool_and_health():
    """A lost node is unhealthy whatever its verdict; a terminated one is not counted."""
    found = values(
        [
            node("n-1"),
            node("n-2"),
            node("n-3", lost=True),
            node("n-4", "launching"),
            node("n-5"),
            node("n-6", "terminated"),
            NodeRecord(pool="inference", node="n-7"),
            node("n-8", cordoned=True, quarantine=Quarantine(since=NOW)),
            node("n-9", cordoned=True),
        ],
        [
            health("n-1", "healthy"),
            health("n-2", "unhealthy"),
            health("n-3", "healthy"),
            health("n-5", "degraded"),
            health("n-6", "unhealthy"),
        ],
    )
    total = {key: count for key, count in found["navarch_nodes_total"].items() if count}
    assert total == {
        ("training", "active"): 2,
        ("training", "unhealthy"): 2,
        ("training", "launching"): 1,
        ("training", "cordoned"): 2,
        ("inference", "launching"): 1,
    }
    assert len(found["navarch_nodes_total"]) == 2 * len(get_args(NodeStatus))
    assert found["navarch_nodes_quarantined"] == {("training",): 1, ("inference",): 0}
    assert found["navarch_nodes_healthy"] == {("training",): 1, ("inference",): 0}
    assert found["navarch_nodes_unhealthy"] == {("training",): 2, ("inference",): 0}
    assert found["navarch_node_health_check_status"] == {
        ("training", "n-1"): 1.0,
        ("training", "n-2"): 0.0,
        ("training", "n-3"): 1.0,
        ("training", "n-5"): 0.5,
    }
    named = found["navarch_node_health_status"]
    assert named["training", "n-5", "degraded"] == 0.5
    assert named["training", "n-4", "unknown"] == 0
    assert len(named) == 8


@pytest.mark.parametrize(
    ("record", "status", "expected"),
    [
        (node("n", "registered"), "unhealthy", "registered"),
        (node("n", "leaving", cordoned=True, saga="s"), "unhealthy", "leaving"),
        (node("n", cordoned=True, saga="s"), "unhealthy", "draining"),
        (node("n", cordoned=True, saga="s", drained=True), "healthy", "cordoned"),
        (node("n", saga="s"), "healthy", "active"),
        (node("n", cordoned=True), "unhealthy", "unhealthy"),
        (node("n"), "degraded", "active"),
    ],
)
def test_a_node_has_one_status(record, status, expected):
    """A node's status says what is being done to it before what is wrong with it."""
    assert node_status(record, status) == expected


def test_gpus_are_counted_by_provider():
    """The provider is unknown for a node that no provider launched."""
    launch = LaunchSpec(fleet="f", provider="aws", instance_type="p5", region="r")
    gpus = (GpuIdentity(index=0), GpuIdentity(index=1))
    found = values([node("n-1", launch=launch, gpus=gpus), node("n-2", gpus=gpus), node("n-3")])
    assert found["navarch_gpus_total"] == {("training", "aws"): 2, ("training", "unknown"): 2}


def test_readings_are_by_gpu_and_absent_where_the_gpu_has_none():
    """A GPU without a sensor has no series for it, and zero is a reading."""
    gpus = (
        GpuSample(
            index=0,
            temperature_celsius=61,
            utilization_percent=0,
            memory_used_bytes=1024,
            power_watts=350.5,
        ),
        GpuSample(index=1, temperature_celsius=70),
    )
    found = values([node("n-1")], samples=[sample("n-1", *gpus)])
    first, second = ("training", "n-1", "0"), ("training", "n-1", "1")
    assert found["navarch_node_gpu_temperature_celsius"] == {first: 61, second: 70}
    assert found["navarch_node_gpu_utilization_percent"] == {first: 0}
    assert found["navarch_node_gpu_memory_used_bytes"] == {first: 1024}
    assert found["navarch_node_gpu_power_watts"] == {first: 350.5}
    assert found["navarch_node_gpu_count"] == {("training", "n-1"): 2}


def test_a_condition_has_a_series_while_it_holds_or_cannot_be_read():
    """A node in order has none; names that agents make up are bounded."""
    held = [
        HeldCondition(name="pcie-width", gpu=3, since=1.0),
        HeldCondition(name="nvml", since=1.0, unknown=True),
        *(HeldCondition(name=f"made-up-{i}", since=1.0) for i in range(CONDITIONS_MAX)),
    ]
    listed = ConditionList(boot_id="b", counter=1, held=tuple(held))
    faulty = HealthRecord(pool="training", node="n-1", conditions=listed)
    found = values([node("n-1"), node("n-2")], [faulty, health("n-2", "healthy")])
    series = found["navarch_node_condition"]
    assert series["training", "n-1", "pcie-width", "gpu3"] == 1
    assert series["training", "n-1", "nvml", "host"] == 0
    assert len({name for _, _, name, _ in series}) == CONDITIONS_MAX + 1
    assert {each[1] for each in series} == {"n-1"}


def test_a_missing_gpu_lowers_the_count():
    """The newest sample counts; without one, the registration; before that there is no series."""
    registered = {
        "registered_at": NOW,
        "gpus": (GpuIdentity(index=0), GpuIdentity(index=1)),
    }
    found = values(
        [node("n-1", **registered), node("n-2", **registered), node("n-3", "launching")],
        samples=[sample("n-1", GpuSample(index=0))],
    )
    assert found["navarch_node_gpu_count"] == {("training", "n-1"): 1, ("training", "n-2"): 2}


@pytest.mark.parametrize(
    ("nodes", "age_seconds"),
    [
        ([node("n-1")], STALE_SECONDS + 1),
        ([node("n-1", "terminated")], 0),
        ([], 0),
    ],
    ids=["stale", "terminated", "unknown"],
)
def test_stale_samples_and_samples_of_absent_nodes_are_left_out(nodes, age_seconds):
    """Old samples are left out, and those of terminated and unknown nodes."""
    latest = sample("n-1", GpuSample(index=0, temperature_celsius=1), age_seconds=age_seconds)
    found = values(nodes, samples=[latest])
    assert found["navarch_node_gpu_temperature_celsius"] == {}
    assert found["navarch_node_gpu_count"] == {}
    assert stale_samples({"training.n-1": latest}, NOW) == (
        {"training.n-1"} if age_seconds > STALE_SECONDS else frozenset()
    )


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Fault(**OF_NODE, kind="xid", code=79), [Increment(XIDS, ("training", "n-1", "79"))]),
        (Fault(**OF_NODE, kind="xid", code=999), [Increment(XIDS, ("training", "n-1", "other"))]),
        (Fault(**OF_NODE, kind="xid", code=-1), [Increment(XIDS, ("training", "n-1", "other"))]),
        (Fault(**OF_NODE, kind="sxid", code=12028), []),
        (Cordoned(**OF_NODE), [Increment(COMMANDS, ("training", "cordon"))]),
        (Uncordoned(**OF_NODE), [Increment(COMMANDS, ("training", "uncordon"))]),
        (Drained(**OF_NODE), [Increment(COMMANDS, ("training", "drain"))]),
        (Terminated(**OF_NODE), [Increment(COMMANDS, ("training", "terminate"))]),
        (Admitted(**OF_NODE), []),
        (Scaled(**OF_POOL, previous=4, nodes=8), [Increment(SCALINGS, ("training", "up"))]),
        (Scaled(**OF_POOL, previous=4, nodes=0), [Increment(SCALINGS, ("training", "down"))]),
        (Scaled(**OF_POOL, previous=4, nodes=4), []),
        (
            NodeReplaced(
                id="e",
                time=NOW,
                pool="training",
                old_node="n-1",
                new_node="n-2",
                saga="s",
                duration_seconds=42.5,
            ),
            [
                Increment(REPLACEMENTS, ("training",)),
                Increment(REPLACEMENT_SECONDS, ("training",), 42.5),
            ],
        ),
    ],
)
def test_what_each_event_adds(event, expected):
    """Events without a counter add nothing."""
    assert list(increments(event)) == expected
