"""Stress runs whose pools have an autoscaler, and jobs that wait for their nodes."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.settings import Setting
from schemas.topology import NODES
from services.bus.port import Stored
from services.pool_manager.autoscaling.autoscalers import PoolState, Recommendation
from services.pool_manager.autoscaling.metrics_sources import Load
from services.primitives.errors import ConfigurationError
from services.settings.yaml_document import read_document
from services.simulator.engine import virtual_time
from services.simulator.engine.simulation_context import SimulationContext
from services.simulator.inputs.scenario.scenario_file import read_file
from services.simulator.inputs.stress import job_demand, stress_entry
from services.simulator.inputs.stress.job_demand import Job
from services.simulator.inputs.stress.job_queues import JobQueues
from services.simulator.inputs.stress.stress_format import DemandSpec, StressSpec, WorkloadSpec
from services.simulator.inputs.stress.stress_validation import read
from services.simulator.report import html_report, report_format
from services.simulator.report.report_format import StressReport

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "config" / "scenarios" / "stress" / "autoscaler-under-load.yaml"
TINY = """\
duration: 3m
fleet_gen:
  total_nodes: 6
  templates: [{name: h100}]
  startup: {cold_start_min: 5s, cold_start_max: 9s}
  pool:
    cooldown: 30s
    autoscaling: {type: queue}
workload:
  job_mean: 40s
  demand: [{at: 0s, jobs_per_minute: 5}]
chaos: {failure_rate: 100}
"""


class Generous:
    """An autoscaler plugin of the operator: a node more than there are jobs."""

    class Options(Setting, frozen=True, kw_only=True):
        """Say how many more nodes the plugin wants."""

        more: int = 1

    def __init__(self, *, options: Options) -> None:
        """Keep so many nodes more than jobs."""
        self._more = options.more

    def recommend(self, state: PoolState) -> Recommendation:
        """Count the jobs."""
        jobs = state.metrics.queue_depth or 0
        return Recommendation(target_nodes=jobs + self._more, reason=f"{jobs} jobs and some air")


def _spec(text: str = TINY, **changes: Any) -> StressSpec:
    document = read_document("stress.yaml", text)
    return msgspec.structs.replace(read(document, document.value), **changes)


@pytest.fixture(scope="module")
def found() -> StressReport:
    """Return the report of the shipped scenario."""
    scenario = read_file(SHIPPED)
    return stress_entry.simulate(scenario.stress, name=scenario.name, base=scenario.configuration)


def test_the_autoscaler_follows_the_demand_through_failures(found: StressReport) -> None:
    """Pools grow with the jobs and shrink after them, within their bounds; nodes are repaired."""
    wanted = [point.wanted for point in found.timeline]
    assert wanted[0] == 4
    assert 30 < max(wanted) == found.summary.nodes_wanted <= 50
    assert wanted[-1] < 10
    assert all(each.ups >= 3 and each.downs >= 3 for each in found.scaling)
    assert all(2 == each.least <= each.most <= each.nodes_max for each in found.scaling)
    assert all(each.kept_seconds["cooldown"] > 0 for each in found.scaling)
    assert found.summary.repairs > 0  # an unhealthy node that a smaller pool does not need leaves
    assert [] == found.defects


def test_the_figures_of_the_jobs_agree(found: StressReport) -> None:
    """Every job has ended, runs or waits; waits are not negative."""
    jobs, last = found.demand, found.timeline[-1]
    assert jobs is not None
    assert jobs.arrived == jobs.finished + jobs.running + jobs.waiting
    assert (jobs.running, jobs.waiting) == (last.running, last.waiting)
    assert jobs.arrived - jobs.waiting <= jobs.wait_seconds.count <= jobs.arrived
    assert 0 < jobs.wait_seconds.p50 <= jobs.wait_seconds.p99 <= 180
    assert jobs.interrupted > 0
    assert 0 < jobs.idle_share < 0.5
    assert 0 < jobs.dollars_idle < found.summary.dollars <= 200
    assert max(point.running for point in found.timeline) > 20


def test_the_page_shows_sizes_and_waiting(found: StressReport) -> None:
    """The page has a chart for each, and a table of the pools."""
    text = html_report.render(found)
    assert "Nodes wanted and in service over time" in text
    assert "Jobs that run and wait over time" in text
    assert all(f"<td>{each.pool}</td>" in text for each in found.scaling)
    assert "Nodes wanted and had" not in html_report.render(
        msgspec.structs.replace(found, scaling=[], demand=None)
    )


def test_the_same_seed_makes_the_same_jobs_and_sizes() -> None:
    """Two runs agree to the byte; an operator's autoscaler is found as in a configuration."""
    own = TINY.replace("{type: queue}", f"{{type: '{__name__}:Generous', more: 2}}")
    one, two = (stress_entry.simulate(_spec(own)) for _ in range(2))
    assert report_format.encode(one) == report_format.encode(two)
    assert html_report.render(one) == html_report.render(two)
    assert [True] == [each.ups > 0 for each in one.scaling]
    assert one.history != stress_entry.simulate(_spec(TINY)).history


def test_jobs_without_an_autoscaler_wait_for_the_nodes_there_are() -> None:
    """The fleet starts as `startup` says, and the report says how long jobs wait."""
    fixed = TINY.replace("    autoscaling: {type: queue}\n", "").replace(
        "total_nodes: 6", "total_nodes: 2"
    )
    report = stress_entry.simulate(_spec(fixed))
    assert [] == report.scaling
    assert report.demand is not None
    assert report.demand.waiting > 0
    assert 2 == report.summary.nodes_wanted


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{type: queue}", "{type: quue}", "stress.yaml:8: fleet_gen.pool.autoscaling.type: no nav"),
        (
            "{type: queue}",
            "{type: queue, jobs: 1}",
            "stress.yaml:8: fleet_gen.pool.autoscaling.jobs",
        ),
        ("{type: queue}", "queue", "stress.yaml:8: fleet_gen.pool.autoscaling"),
        ("cooldown: 30s", "min_nodes: 7", "fleet_gen.pool.min_nodes: pool h100-simulated has 6"),
        (
            "cooldown: 30s",
            "max_nodes: 7",
            "fleet_gen.pool.max_nodes: a stress run says this itself",
        ),
        ("{cold_", "{pattern: wave, cold_", "fleet_gen.startup.pattern: means nothing beside an"),
        ("at: 0s", "at: 5m", "workload.demand.0.at: is after the run's end"),
        (
            "[{at: 0s",
            "[{at: 1m, jobs_per_minute: 1}, {at: 0s",
            "workload.demand.1.at: must be later",
        ),
        ("minute: 5", "minute: 500000", "workload.demand: makes about 1,500,000 jobs; 200,000 are"),
        ("job_mean: 40s", "job_mean: 0s", "workload.job_mean: must be more than 0s"),
        ("job_mean", "job_length", "workload.job_length: unknown key"),
    ],
)
def test_a_problem_is_reported_with_its_key(old: str, new: str, message: str) -> None:
    """File, line and key, and what to write instead."""
    with pytest.raises(ConfigurationError) as raised:
        _spec(TINY.replace(old, new))
    assert message in str(raised.value)


def test_older_spellings_mean_the_same() -> None:
    """A pool's `autoscaler` and its thresholds are accepted, as they are in a configuration."""
    older = "autoscaler: {type: reactive, scale_up_threshold: 50, step: 2}"
    text = TINY.replace("autoscaling: {type: queue}", older)
    health = "health: {remediation: ladder, unhealthy_threshold: 2}"
    text = text.replace("cooldown: 30s", f"cooldown_period: 30s\n    {health}")
    found = stress_entry.simulate(_spec(text, duration=90.0))
    assert [True] == [each.ups > 0 for each in found.scaling]


def test_jobs_arrive_at_the_rate_of_the_file() -> None:
    """Jobs arrive in each span, to each pool by its share, with the given durations."""
    spec = WorkloadSpec(
        demand=(DemandSpec(at=0, jobs_per_minute=600), DemandSpec(at=60, jobs_per_minute=60)),  # type: ignore[arg-type]
        job_mean=100,  # type: ignore[arg-type]
        job_stddev=10,  # type: ignore[arg-type]
    )
    jobs = job_demand.draw(spec, {"big": 3, "small": 1}, 660.0, "1")
    early = [each for each in jobs if each.at < 60]
    assert 1200 == job_demand.expected_jobs(spec, 660.0)
    assert 500 < len(early) < 700
    assert 500 < len(jobs) - len(early) < 700
    assert 0.70 < sum(each.pool == "big" for each in jobs) / len(jobs) < 0.80
    assert 98 < sum(each.seconds for each in jobs) / len(jobs) < 102
    assert jobs == job_demand.draw(spec, {"big": 3, "small": 1}, 660.0, "1")


# --- the workload system alone -------------------------------------------------------------------


def _node(name: str, state: str) -> Stored:
    record = NodeRecord(pool="p", node=name, state=state)  # type: ignore[arg-type]
    at = datetime(2030, 1, 1, tzinfo=UTC)
    return Stored(
        subject=f"$KV.NODES.p.{name}", data=encode(record), sequence=1, time=at, headers={}
    )


def _jobs(*seconds: float) -> JobQueues:
    drawn = [Job(number=n, at=0.0, pool="p", seconds=each) for n, each in enumerate(seconds)]
    return JobQueues(SimulationContext("1"), drawn, 1, ["p"])


def _play(jobs_of: Any) -> None:
    virtual_time.run(jobs_of)


def test_a_job_waits_for_a_node_and_leaves_it_to_the_next() -> None:
    """The metrics source reports running and waiting jobs, and samples show the GPU utilization."""

    async def live() -> None:
        jobs = _jobs(10.0, 10.0)
        jobs.begin()
        await asyncio.sleep(5)
        assert Load(pending_jobs=2, queue_depth=2) == jobs.loads["p"]
        jobs.on_stored(f"KV_{NODES.name}", _node("a", "active"))
        assert (Load(pending_jobs=1, queue_depth=2), 90) == (jobs.loads["p"], jobs.used("a"))
        await asyncio.sleep(11)
        assert [5.0, 15.0] == [round(each, 3) for each in jobs.waits]
        await asyncio.sleep(10)
        assert (2, 0, 0) == (jobs.finished, jobs.running, jobs.used("a"))
        assert {"p": 1} == jobs.idle()

    _play(live)


def test_what_runs_on_a_machine_that_breaks_starts_again_elsewhere() -> None:
    """An interrupted job precedes waiting ones; its machine gets no job until it is uncordoned."""

    async def live() -> None:
        jobs = _jobs(10.0, 10.0)
        jobs.begin()
        jobs.on_stored(f"KV_{NODES.name}", _node("a", "active"))
        await asyncio.sleep(6)
        jobs.interrupt("a")
        assert (1, 0, 2) == (jobs.interrupted, jobs.running, jobs.waiting)
        jobs.on_stored(f"KV_{NODES.name}", _node("b", "active"))
        await asyncio.sleep(10.5)
        assert (1, 1) == (jobs.finished, jobs.running)
        jobs.uncordon("a")
        jobs.leave("b")
        await asyncio.sleep(10.5)
        assert (2, 2, 0) == (jobs.finished, jobs.interrupted, jobs.running)
        assert 0.0 == jobs.longest()

    _play(live)


def test_a_node_is_drained_when_its_last_job_has_ended() -> None:
    """A node that waits for its drain gets no new job, nor does a cordoned node."""

    async def live() -> None:
        jobs = _jobs(10.0, 10.0)
        for name in ("a", "b"):
            jobs.on_stored(f"KV_{NODES.name}", _node(name, "active"))
        jobs.cordon("b", "an operator inspects it")
        jobs.begin()
        await asyncio.sleep(1)
        jobs.cordon("a", "it leaves")
        jobs.drain("a")
        assert not jobs.is_drained("a")
        await asyncio.sleep(10)
        assert jobs.is_drained("a")
        assert (1, 1) == (jobs.finished, jobs.waiting)
        jobs.uncordon("b")
        assert (1, 0) == (jobs.running, jobs.waiting)

    _play(live)
