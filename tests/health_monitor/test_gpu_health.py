"""Each GPU's health beside its node's, and the job of the fault that decided it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from schemas.fleet_queries import NodeView
from schemas.health_records import HealthRecord
from schemas.node_events import Fault, GpuIdentity, Registered, Uncordoned
from schemas.node_records import NodeRecord
from services.cli.text.tables import node_page
from services.health_monitor.rules import node_health
from services.health_monitor.rules.health_policy import Judgement
from services.health_monitor.rules.node_health import PublishVerdict, Trigger
from services.pool_manager.queries import node_view

NOW = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def seen(number: int, seconds: float = 0.0) -> Trigger:
    return Trigger(f"f{number}", number, at(seconds))


def fault(number: int, code: int, gpu: int, **fields: Any) -> Fault:
    about = {"pool": "p", "node": "n", "kind": "xid", "code": code, "gpu_index": gpu}
    return Fault(id=f"f{number}", time=NOW, **about, **fields)


def judged(result: str, action: str = "none", **fields: Any) -> Judgement:
    return Judgement(result=result, action=action, rule=f"r-{result}", policy="abc", **fields)


def after(*steps: tuple[Fault, Judgement], record: HealthRecord | None = None) -> HealthRecord:
    """Return a node's record after these faults, one per second."""
    record = record or HealthRecord(pool="p", node="n", status="healthy")
    for number, (each, judgement) in enumerate(steps, 1):
        record, _ = node_health.decide_fault(record, each, judgement, seen(number, number))
    return record


def states(record: HealthRecord) -> dict[int, tuple[str, str]]:
    return {each.index: (each.status, each.action) for each in record.gpus}


def test_each_unhealthy_gpu_has_its_own_state() -> None:
    """The worst state of each GPU and when it began; faults of the node belong to no GPU."""
    record = after(
        (fault(1, 13, 0), judged("healthy", "restart_app")),
        (fault(2, 63, 5), judged("degraded", "reset_gpu")),
        (fault(3, 74, 5), judged("degraded", "inspect")),
        (fault(4, 79, 3), judged("unhealthy", "replace", fatal=True)),
        (fault(5, 48, 2), judged("unhealthy", "reset_gpu", fatal=True)),
        (fault(6, 0, -1), judged("degraded", "inspect")),
        (fault(7, 74, 3), judged("degraded", "inspect")),
    )
    assert {
        2: ("unhealthy", "reset_gpu"),
        3: ("unhealthy", "replace"),
        5: ("degraded", "reset_gpu"),
    } == states(record)
    assert [at(5), at(4), at(2)] == [each.since for each in record.gpus]
    assert [("f5", "xid", 48), ("f4", "xid", 79), ("f2", "xid", 63)] == [
        (each.fault, each.kind, each.code) for each in record.gpus
    ]


def test_gpu_keeps_its_worst_state() -> None:
    """A stronger action replaces a weaker one and keeps the start time; a weaker one does not."""
    record = after(
        (fault(1, 48, 2), judged("unhealthy", "reset_gpu")),
        (fault(2, 79, 2), judged("unhealthy", "replace")),
        (fault(3, 94, 2), judged("unhealthy", "restart_app")),
    )
    [gpu] = record.gpus
    assert ("replace", 79, at(1)) == (gpu.action, gpu.code, gpu.since)


def test_degraded_gpu_recovers_when_its_conditions_end() -> None:
    """A degraded GPU is healthy when its last condition has ended; each ends at its own time."""
    record = after(
        (fault(1, 63, 0), judged("degraded", sticky_seconds=10)),
        (fault(2, 74, 1), judged("degraded", sticky_seconds=100)),
        (fault(3, 149, 4), judged("degraded", sticky_seconds=100)),
        (fault(4, 150, 4), judged("healthy", cancels=(149,))),
    )
    assert {0: ("degraded", "none"), 1: ("degraded", "none")} == states(record)
    record, _ = node_health.decide_review(record, Trigger("t1", 0, at(20)))
    assert {1: ("degraded", "none")} == states(record)
    record, _ = node_health.decide_review(record, Trigger("t2", 0, at(120)))
    assert ("healthy", ()) == (record.status, record.gpus)


def test_unhealthy_gpu_stays_unhealthy_until_the_node_is_uncordoned() -> None:
    """Neither time nor a reboot clears it; an uncordon clears all GPUs."""
    record = after(
        (fault(1, 79, 3, boot_id="b1"), judged("unhealthy", "replace")),
        (fault(2, 74, 1, boot_id="b1"), judged("degraded", sticky_seconds=1e6)),
    )
    boots = [
        Registered(id=f"r{boot}", time=NOW, pool="p", node="n", instance="n", boot_id=boot)
        for boot in ("b1", "b2")
    ]
    record, _ = node_health.decide_registered(record, boots[0], Trigger("rb1", 10, at(10)))
    assert {1, 3} == set(states(record))
    record, _ = node_health.decide_registered(record, boots[1], Trigger("rb2", 11, at(11)))
    assert {3: ("unhealthy", "replace")} == states(record)
    uncordoned = Uncordoned(id="u", time=NOW, pool="p", node="n")
    record, _ = node_health.decide_uncordoned(record, uncordoned, Trigger("u", 12, at(12)))
    assert ("healthy", ()) == (record.status, record.gpus)


_steps = st.lists(
    st.tuples(
        st.sampled_from(["healthy", "degraded", "unhealthy"]),
        st.sampled_from(["none", "inspect", "reset_gpu", "replace"]),
        st.integers(-1, 3),
        st.integers(0, 2),
    ),
    max_size=20,
)


@given(_steps, st.integers(1, 3))
def test_no_gpu_is_worse_than_its_node(
    steps: list[tuple[str, str, int, int]], unhealthy_after: int
) -> None:
    """Each GPU is listed at most once, and no healthy GPU is listed."""
    rank = {"healthy": 0, "degraded": 1, "unhealthy": 2}
    record = HealthRecord(pool="p", node="n", status="healthy")
    for number, (result, action, gpu, code) in enumerate(steps, 1):
        record, _ = node_health.decide_fault(
            record,
            fault(number, code, gpu),
            judged(result, action),
            seen(number, number * 900.0),
            unhealthy_after=unhealthy_after,
        )
        indexes = [each.index for each in record.gpus]
        assert sorted(set(indexes)) == indexes
        assert -1 not in indexes
        assert all(rank[each.status] <= rank[record.status] for each in record.gpus)
        assert all(each.status != "healthy" for each in record.gpus)


def test_verdict_names_the_job_of_its_fault() -> None:
    """The job goes from fault to record to verdict, until the next deciding fault."""
    record = HealthRecord(pool="p", node="n", status="healthy")
    first = fault(1, 63, 0, job="slurm-1234")
    record, effects = node_health.decide_fault(
        record, first, judged("degraded", "inspect"), seen(1)
    )
    [verdict] = [each.verdict for each in effects if isinstance(each, PublishVerdict)]
    assert ("slurm-1234", "slurm-1234") == (record.job, verdict.job)
    record, effects = node_health.decide_fault(
        record, fault(2, 79, 0), judged("unhealthy", "replace"), seen(2, 1)
    )
    [verdict] = [each.verdict for each in effects if isinstance(each, PublishVerdict)]
    assert ("", "") == (record.job, verdict.job)


def test_navarch_get_shows_the_health_of_each_gpu() -> None:
    """The page has all GPUs with their health, and a table of the unhealthy ones' conditions."""
    gpus = tuple(GpuIdentity(index=index, uuid=f"GPU-{index}") for index in range(2))
    node = NodeRecord(pool="p", node="n", state="active", gpus=gpus, rack="hall-2-rack-17")
    health = after((fault(1, 79, 1), judged("unhealthy", "replace", description="it fell")))
    view = node_view(NodeView, node, health, now=NOW, detailed=True)
    assert ["healthy", "unhealthy"] == [gpu.health for gpu in view.gpus]
    well, broken = view.gpus
    assert ("replace", "r-unhealthy", 79) == (broken.action, broken.rule, broken.code)
    assert ("", "") == (well.action, well.reason)
    page = node_page(view, NOW, colour=False)
    assert "rack           hall-2-rack-17" in page
    assert "XID 79: it fell (GPU 1)" in page
    unknown = node_view(NodeView, node, None, now=NOW, detailed=True)
    assert ["unknown", "unknown"] == [gpu.health for gpu in unknown.gpus]
