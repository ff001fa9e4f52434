"""The gateway answers about samples, evidence, costs, the policy and diagnoses."""

from datetime import timedelta
from itertools import pairwise

import msgspec
import pytest

from schemas import subjects
from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.evidence_bundles import EvidenceBundle
from schemas.gpu_samples import GpuSample
from schemas.instance_records import InstanceRecord
from schemas.messages import encode
from schemas.node_events import CheckResult, Telemetry
from schemas.saga_params import LaunchSpec
from schemas.topology import EVIDENCE
from services.bus.memory.memory_bus import MemoryBus
from services.bus.port import Stored
from services.fleet_client.cost_report import pool_history
from services.fleet_client.fleet_use import readings_of, sampled_nodes, utilization_points
from services.primitives.clock import SystemClock
from tests.gateway.conftest import NOW, Gateway
from tests.gateway.test_reading import ask

LAUNCH = LaunchSpec(fleet="tests", provider="aws", instance_type="p5", region="us-east-1")


def ran(begin: float | None, end: float | None, price: float = 2.0) -> InstanceRecord:
    """An instance from one hour to another after NOW; None: not running, not terminated."""

    def at(hours: float | None) -> object:
        return None if hours is None else NOW + timedelta(hours=hours)

    return InstanceRecord(
        pool="training",
        instance="training-1",
        provider="aws",
        token="t",
        launch=LAUNCH,
        intended_at=NOW,
        dollars_per_hour=price,
        running_at=at(begin),  # type: ignore[arg-type]
        terminated_at=at(end),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("records", "points", "dollars"),
    [
        ([], [(0, 0, 0)], 0),
        ([ran(None, None)], [(0, 0, 0)], 0),
        ([ran(-5, None)], [(0, 1, 2)], 20),
        ([ran(-5, -1)], [(0, 0, 0)], 0),
        ([ran(2, 7)], [(0, 0, 0), (2, 1, 2), (7, 0, 0)], 10),
        ([ran(-1, 4), ran(4, None, 3.0)], [(0, 1, 2), (4, 1, 3)], 26),
        ([ran(12, None)], [(0, 0, 0)], 0),
        ([ran(-1, 14, 0.0)], [(0, 1, 0)], 0),
    ],
)
def test_a_pools_history_sums_what_ran(
    records: list[InstanceRecord], points: list[tuple[int, int, int]], dollars: float
) -> None:
    """Ten hours: what began before counts from their start, what runs on counts to their end."""
    found = pool_history("training", records, NOW, NOW + timedelta(hours=10))
    found_points = [
        ((each.time - NOW).total_seconds() / 3600, each.instances, each.dollars_per_hour)
        for each in found.points
    ]
    assert (found_points, found.dollars) == (points, dollars)
    assert found.unpriced == sum(not each.dollars_per_hour for each in records)


async def test_a_pools_history_is_of_its_own_instances(gateway: Gateway) -> None:
    """Three instances at two dollars since they run."""
    found = await ask(gateway, "/pools/training/history?since=1m")
    assert [(each["instances"], each["dollars_per_hour"]) for each in found["points"]] == [(3, 6.0)]
    assert found["dollars"] == 0.1
    await ask(gateway, "/pools/training/history?since=soon", 400)
    await ask(gateway, "/pools/none/history", 404)


async def test_samples_of_a_node_and_the_use_of_its_pool(gateway: Gateway, bus: MemoryBus) -> None:
    """A node's readings in order; one that cannot be read is left out; the pool has their mean."""
    for use in (50, 80):
        gpus = tuple(GpuSample(index=index, utilization_percent=use) for index in (0, 1))
        sample = Telemetry(
            id=f"s{use}", time=SystemClock().now(), pool="training", node="training-1", gpus=gpus
        )
        await bus.publish(subjects.telemetry("training", "training-1"), encode(sample))
    await bus.publish(subjects.telemetry("training", "training-1"), b'{"gpus": "none"}')
    found = await ask(gateway, "/nodes/training-1/samples")
    assert [each["gpus"][1]["utilization_percent"] for each in found] == [50, 80]
    assert (await ask(gateway, "/pools/training/status"))["utilization"] == 80.0
    assert (await ask(gateway, "/pools/serving/status"))["utilization"] is None
    await ask(gateway, "/nodes/none/samples", 404)
    [point] = (lately := await ask(gateway, "/pools/training/utilization"))["points"]
    assert (point["percent"], lately["sampled"], lately["nodes"]) == (65.0, 3, 3)
    assert (await ask(gateway, "/pools/serving/utilization"))["points"] == []
    await ask(gateway, "/pools/none/utilization", 404)


@pytest.mark.parametrize("count", [2, 32, 33, 1_000])
def test_a_large_pools_utilization_is_that_of_nodes_all_over_it(count: int) -> None:
    """Each node of a small pool is sampled."""
    names = [f"n{each:03}" for each in range(count)]
    chosen = sampled_nodes(reversed(names))
    assert len(chosen) == min(count, 32)
    gaps = [later - sooner for sooner, later in pairwise(map(names.index, chosen))]
    assert max(gaps) - min(gaps) <= 1
    assert sampled_nodes([]) == []


def test_utilization_is_the_mean_of_each_half_minute() -> None:
    """GPUs that do not say it, and what cannot be read, do not count."""

    def sample(seconds: int, *percents: int | None) -> Stored:
        gpus = tuple(
            GpuSample(index=index, utilization_percent=each) for index, each in enumerate(percents)
        )
        time = NOW.replace(second=0, microsecond=0) + timedelta(seconds=seconds)
        data = encode(Telemetry(id="s", time=time, pool="training", node="n", gpus=gpus))
        return Stored(sequence=1, subject="s", data=data, time=time)

    garbled = msgspec.structs.replace(sample(95, 7), data=b"[]")
    samples = [sample(0, 10, 20), sample(29, 60), sample(30, 5, None), sample(61, None), garbled]
    found = utilization_points(readings_of(samples))
    start = found[0].time
    seen = [((each.time - start).total_seconds(), each.percent) for each in found]
    assert seen == [(0, 30.0), (30, 5.0)]


async def test_evidence_is_shown_to_who_sees_the_pool(gateway: Gateway, bus: MemoryBus) -> None:
    """The list and one bundle; a token of other pools sees neither."""
    for pool in ("training", "serving"):
        bundle = EvidenceBundle(
            pool=pool, node=f"{pool}-9", saga="", outcome="replaced", unhealthy_at=NOW
        )
        about = {
            "pool": pool,
            "node": bundle.node,
            "outcome": "replaced",
            "unhealthy_at": NOW.isoformat(),
        }
        await bus.put_object(
            EVIDENCE, f"{pool}.{bundle.node}.1", encode(bundle), metadata=about, revision=0
        )
    assert [each["node"] for each in await ask(gateway, "/evidence")] == ["training-9", "serving-9"]
    assert (await ask(gateway, "/nodes/training-9/evidence"))["outcome"] == "replaced"
    await ask(gateway, "/nodes/training-1/evidence", 404)
    await ask(gateway, "/nodes/training-9/evidence?saga=other", 404)
    scoped = gateway.client("scoped-token")
    assert [each["node"] for each in (await scoped.get("/api/v1/evidence")).json()] == [
        "training-9"
    ]
    assert (await scoped.get("/api/v1/nodes/serving-9/evidence")).status_code == 404


async def test_the_policy_is_shown_in_order(gateway: Gateway) -> None:
    """Every rule of the policy in force, with what it leads to."""
    found = await ask(gateway, "/policy")
    assert len(found["rules"]) > 20
    assert {"condition", "result", "action", "name"} <= set(found["rules"][0])


async def test_a_diagnosis_is_run_by_the_agent(gateway: Gateway, bus: MemoryBus) -> None:
    """The answer has what each test found; a refusal is a conflict, an absent agent is named."""
    asked = []

    async def agent(data: bytes, _: object) -> bytes:
        asked.append(msgspec.json.decode(data, type=DiagnoseRequest))
        if "memory" in asked[-1].checks:
            return encode(Diagnosis(ok=False, refused="a job uses the GPUs"))
        return encode(Diagnosis(ok=True, checks=(CheckResult(name="boot", ok=True),)))

    await bus.answer(subjects.node_command("training", "training-1", "diagnose"), agent)
    operator = gateway.client("operator-token")
    path = "/api/v1/nodes/training-1/diagnose"
    answer = await operator.post(path, json={"checks": ["boot"]})
    assert (answer.status_code, answer.json()["ok"]) == (200, True)
    answer = await operator.post(path, json={"checks": ["memory"]})
    assert (answer.status_code, answer.json()["detail"]) == (
        409,
        "training-1 was not tested: a job uses the GPUs",
    )
    assert (await operator.post(f"{path}?wait=soon", json={})).status_code == 400
    assert (await operator.post(path, json={"check": 1})).status_code == 400
    answer = await operator.post("/api/v1/nodes/training-2/diagnose?wait=1s", json={})
    assert (answer.status_code, "agent of training-2" in answer.json()["detail"]) == (503, True)
