"""Faults caused by a job belong to the job: recorded on each node, and no node is unhealthy."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.node_events import Fault, NodeEvent, Verdict
from schemas.settings import HealthSpec, Settings
from schemas.topology import EVENTS
from services.health_monitor.rules.job_faults import JOBS_MAX, RULE, JobFaultHistory
from services.health_monitor.rules.policy_file import parse_policy
from services.health_monitor.rules.policy_replay import Fact, Replay

NOW = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
STRICT = b"""
version: 1
rules:
  - {name: gone, condition: event.code == 79, result: unhealthy, action: replace}
  - {name: mmu, condition: "event.code in [13, 31, 45]", result: unhealthy, action: replace}
  - {name: rest, condition: true, result: healthy}
"""


def word(node: str, code: int, at: float, *, job: str = "slurm-7", pool: str = "p") -> Fault:
    return Fault(
        id=f"{node}-{code}-{at}",
        time=NOW + timedelta(seconds=at),
        pool=pool,
        node=node,
        kind="xid",
        code=code,
        gpu_index=0,
        job=job,
    )


Said = list[tuple[str, int, float]]
CASES: list[tuple[str, Said, Fault, str]] = [
    ("alone", [], word("a", 31, 0), ""),
    ("itself again", [("a", 31, 0)], word("a", 31, 1), ""),
    ("the same on another", [("b", 31, 5)], word("a", 31, 0), "b of slurm-7 has it too"),
    ("long ago", [("b", 31, -100)], word("a", 31, 0), ""),
    ("something else on another", [("b", 13, 0)], word("a", 31, 0), ""),
    (
        "a clean-up after a crash",
        [("b", 79, -900)],
        word("a", 45, 0),
        "it came after XID 79 on b of slurm-7",
    ),
    ("a clean-up long after it", [("b", 79, -2000)], word("a", 45, 0), ""),
    ("a clean-up before it", [("b", 79, 10)], word("a", 45, 0), ""),
    ("of another job", [("b", 31, 0)], word("a", 31, 0, job="slurm-8"), ""),
    ("of another pool", [("b", 31, 0)], word("a", 31, 0, pool="q"), ""),
    ("of no job", [("b", 31, 0)], word("a", 31, 0, job=""), ""),
    ("what no program does", [("b", 79, 0)], word("a", 79, 0), ""),
]


@pytest.mark.parametrize(
    ("said", "fault", "why"), [each[1:] for each in CASES], ids=[each[0] for each in CASES]
)
def test_fault_belongs_to_the_job_when_another_node_has_it(
    said: Said, fault: Fault, why: str
) -> None:
    """Another node has the same program fault then, or any fault before a clean-up fault."""
    jobs = JobFaultHistory()
    for node, code, at in said:
        jobs.saw(word(node, code, at), NOW.timestamp() + at)
    assert why == jobs.shared(fault, NOW.timestamp())


def test_memory_of_jobs_is_bounded() -> None:
    """The least recently seen job is dropped first."""
    jobs = JobFaultHistory()
    for number in range(JOBS_MAX + 10):
        jobs.saw(word("b", 31, 0, job=f"slurm-{number}"), NOW.timestamp())
    shared = [
        bool(jobs.shared(word("a", 31, 0, job=f"slurm-{number}"), NOW.timestamp()))
        for number in (0, 9, 10, JOBS_MAX + 9)
    ]
    assert [False, False, True, True] == shared


def test_replay_attributes_faults_to_jobs_like_the_service() -> None:
    """The first node of a job waits for the second, in the service and in a replay."""
    replay = Replay(parse_policy("strict.yaml", STRICT), lambda _pool: HealthSpec())
    faults: list[NodeEvent] = [
        word("a", 31, 0),
        word("b", 31, 1),
        word("c", 31, 90),
        word("d", 79, 91),
    ]
    for sequence, each in enumerate(faults, 1):
        replay.take(Fact(each, sequence, each.time))
    replay.finish(NOW + timedelta(seconds=100))
    assert [("c", "unhealthy"), ("d", "unhealthy")] == [(v.node, v.status) for v in replay.verdicts]
    assert 4 == replay.faults


async def test_job_crash_on_sixty_nodes_makes_no_node_unhealthy(
    world, start, fault, bus, tmp_path: Path
) -> None:
    """The policy calls each of these XIDs unhealthy: one incident with the job's name.

    A node whose GPU fell off the bus is unhealthy, and so is a node whose job has no other fault.
    """
    (tmp_path / "policy.yaml").write_bytes(STRICT)
    for _ in range(2):
        await start(Settings(health_policy=str(tmp_path / "policy.yaml")))
    nodes = [f"training-{number}" for number in range(60)]
    for node in [*nodes, "training-alone"]:
        await world.register(node)
    await world.publish(fault("gone", node=nodes[0], code=79, job="slurm-7"))
    for number, node in enumerate(nodes):
        code = 31 if number % 3 else 45
        await world.publish(fault(f"f-{node}", node=node, code=code, job="slurm-7"))
    await world.publish(fault("alone", node="training-alone", code=31, job="slurm-8"))
    await world.settled()

    async def both() -> bool:
        return 2 == len([v for v in await world.events(Verdict) if v.status == "unhealthy"])

    await world.until(both)
    unhealthy = {
        v.node: (v.fault, v.job) for v in await world.events(Verdict) if v.status == "unhealthy"
    }
    assert {nodes[0]: ("gone", "slurm-7"), "training-alone": ("alone", "slurm-8")} == unhealthy
    record = await world.health(nodes[1])
    assert ("healthy", RULE) == (record.status, record.recent[-1].rule)
    incidents: list[dict[str, Any]] = [
        msgspec.json.decode(each.data)
        for each in await bus.read(EVENTS.name, subjects.pool_event_wildcard("incident"))
    ]
    [incident] = incidents
    assert ("job", "slurm-7", "opened") == tuple(incident[k] for k in ("scope", "within", "status"))
    assert "gone" == incident["cause"]
    assert "it came after XID 79 on training-0" in incident["reason"]
