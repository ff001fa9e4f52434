"""A small stress run: the services repair the failures, and the report describes them."""

import hashlib
import os
import subprocess
import sys
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from schemas import subjects
from schemas.messages import Message, encode
from schemas.saga_log_entries import WHOLE, SagaStarted, SagaUnwound
from schemas.saga_params import SagaParams
from schemas.settings import BudgetSpec, Settings
from services.bus.port import Stored
from services.cli.app import app
from services.settings.yaml_document import read_document
from services.simulator.inputs.stress import report_composer, stress_entry
from services.simulator.inputs.stress.failure_schedule import ScheduledFailure
from services.simulator.inputs.stress.stress_format import FailureType, StressSpec
from services.simulator.inputs.stress.stress_recorder import Repair, StressRecorder
from services.simulator.inputs.stress.stress_validation import read
from services.simulator.report import html_report, report_format
from services.simulator.report.report_format import StressReport
from services.simulator.report.svg_charts import clock, nice

pytestmark = pytest.mark.slow

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SMALL = """\
duration: 5m
metrics_interval: 5s
seed: 3
fleet_gen:
  total_nodes: 40
  templates:
    - {name: h100, weight: 60, gpu_count: 8, price_per_hour: 30}
    - {name: a100, weight: 40, gpu_count: 4, price_per_hour: 10}
  providers: {gcp: 50, aws: 50}
  regions: {east: 100}
  zones: {east: [east-a, east-b]}
  startup: {pattern: wave, duration: 20s, batch_size: 10, cold_start_min: 5s, cold_start_max: 10s}
  pool: {budget: {max_replacements: unlimited}, health: {incident: {hold: 30s}, lost_after: 30s}}
chaos:
  failure_rate: 150
  xid_distribution: {13: 1, 79: 1}
  failure_types:
    - {type: xid_error, weight: 4}
    - {type: temperature, weight: 2}
    - {type: memory_error, weight: 1}
    - {type: nvlink_error, weight: 1}
    - {type: network, weight: 1}
    - {type: boot_failure, weight: 1}
    - {type: backend_error, weight: 1}
  cascading: {probability: 0.3, scope: zone, max_affected_percent: 10}
  recovery: {probability: 0.8, mean_time: 20s, replace_cold_start: 3s}
  scheduled_outages:
    - {name: "zone <b> is away", start_time: 2m, duration: 45s, scope: zone, target: east-b,
       failure_type: network}
"""


def _spec(text: str = SMALL, **changes: Any) -> StressSpec:
    document = read_document("stress.yaml", text)
    return msgspec.structs.replace(read(document, document.value), **changes)


@pytest.fixture(scope="module")
def found() -> StressReport:
    """Return the report of one run."""
    return stress_entry.simulate(_spec(), name="small")


def test_the_services_repair_what_fails(found: StressReport) -> None:
    """Fatal failures lead to replacements, others pass, and no service ends by itself."""
    summary = found.summary
    assert [] == found.defects
    assert 40 == summary.nodes_wanted
    assert summary.up_at is not None
    assert summary.repairs == summary.replacements > 3
    assert summary.recoveries > 3
    assert 40 + summary.replacements <= summary.machines_made
    assert 0.5 < summary.availability < 1
    assert 0 < summary.dollars_out_of_service < summary.dollars
    assert {"gpu-off-the-bus", "memory-uncorrectable"} <= {each.name for each in found.rules}


def test_the_figures_agree_with_each_other(found: StressReport) -> None:
    """Failures by type, by cause and over time are the same failures; so are the repairs."""
    total = found.summary.failures
    assert total == sum(found.failures.by_type.values())
    assert total == sum(found.failures.by_cause.values())
    assert total == sum(point.failures for point in found.timeline)
    assert found.failures.by_type["xid_error"] == sum(found.failures.by_xid.values())
    assert found.summary.recoveries == sum(found.failures.recovered_by_type.values())
    assert found.summary.repairs == found.repair_seconds.count
    assert found.summary.repairs == sum(each.done for each in found.repairs.values())
    assert found.outages[0].struck == found.failures.by_cause["outage"]
    assert found.nodes_left_out == 0
    assert total == sum(each.failures for each in found.nodes)
    assert total == sum(each.whole.failures for each in found.regions)
    assert found.summary.repairs == sum(each.repairs for each in found.nodes)
    assert found.summary.nodes_at_end == sum(each.whole.healthy for each in found.regions)
    for region in found.regions:
        assert [point.out for point in found.timeline] == region.timeline["out"]
        for state in ("places", "healthy", "out", "failures", "repairs"):
            of_zones = sum(getattr(zone, state) for zone in region.zones)
            assert getattr(region.whole, state) == of_zones
    for each in found.budget:
        assert each.most <= each.limit
    for story in found.slowest:
        assert story.seconds == pytest.approx(sum(each.seconds for each in story.stages), abs=0.1)


def test_the_same_seed_makes_the_same_report_twice(found: StressReport) -> None:
    """Two reports agree to the byte, page included; another seed makes another report."""
    again = stress_entry.simulate(_spec(), name="small")
    assert report_format.encode(found) == report_format.encode(again)
    assert html_report.render(found) == html_report.render(again)
    other = stress_entry.simulate(_spec(duration=60.0, seed=4), name="small")
    assert found.history != other.history


HASHES = """
import hashlib, sys
from pathlib import Path
from services.simulator.inputs.scenario.scenario_file import read_file
from services.simulator.inputs.stress import stress_entry
from services.simulator.report import html_report, report_format
scenario = read_file(Path(sys.argv[1]))
found = stress_entry.simulate(scenario.stress, name=scenario.name, base=scenario.configuration)
print(hashlib.sha256(report_format.encode(found) + html_report.render(found).encode()).hexdigest())
"""


def test_another_process_makes_the_same_report(tmp_path: Path) -> None:
    """Processes agree to the byte, whatever the order of sets and of memory addresses in them."""
    scenario = tmp_path / "small.yaml"
    short = SMALL.replace("5m", "1m", 1).replace("total_nodes: 40", "total_nodes: 12")
    short = short.replace("start_time: 2m", "start_time: 30s")
    indented = "".join(f"  {line}\n" for line in short.splitlines())
    scenario.write_text(f"name: small\nstress:\n{indented}")
    there = subprocess.run(
        [sys.executable, "-c", HASHES, str(scenario)],
        env=os.environ | {"PYTHONHASHSEED": "777"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    here = stress_entry.simulate(_spec(short), name="small", base=Settings())
    data = report_format.encode(here) + html_report.render(here).encode()
    assert hashlib.sha256(data).hexdigest() == there.strip()


class _Links(HTMLParser):
    """Everything in a page that could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect addresses and scripts."""
        self.found += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset")]
        self.found += [tag] if tag in ("script", "link", "iframe", "object", "b>") else []

    def handle_data(self, data: str) -> None:
        """Collect the text."""
        self.text.append(data)


def test_the_page_is_self_contained(found: StressReport) -> None:
    """No script, no address, nothing to load; names from the file are escaped."""
    text = html_report.render(found)
    links = _Links()
    links.feed(text)
    assert [] == links.found
    assert "url(" not in text
    assert "@import" not in text
    words = " ".join(links.text)
    assert "zone <b> is away" in words
    assert "gpu-off-the-bus" in words
    assert 5 == text.count("<svg ")


def test_a_report_without_failures_has_a_page() -> None:
    """The page says that nothing was repaired where there were no failures and repairs."""
    calm = stress_entry.simulate(_spec(SMALL.partition("chaos:")[0], duration=40.0), name="calm")
    assert 0 == calm.summary.failures
    assert "Nothing was repaired." in html_report.render(calm)


def test_the_command_writes_its_reports_and_evaluates(tmp_path: Path) -> None:
    """`simulator run`: JSON, page and log are written, and the exit code is the assertions'."""
    indented = "".join(f"  {line}\n" for line in SMALL.replace("5m", "30s", 1).splitlines())
    indented = indented.replace("start_time: 2m", "start_time: 10s")
    files = "".join(
        f"  {key}: {tmp_path / name}\n"
        for key, name in (
            ("report_file", "r.json"),
            ("html_report_file", "r.html"),
            ("log_file", "r.log"),
        )
    )
    scenario = tmp_path / "stress.yaml"
    for least, code in ((1, 0), (41, 1)):
        scenario.write_text(
            f"name: small\nstress:\n{files}{indented}"
            f"assertions:\n  - {{type: node_count, at_least: {least}}}\n"
        )
        run = ["simulator", "run", str(scenario), "--runs", str(tmp_path / "runs")]
        result = CliRunner().invoke(app, run)
        assert code == result.exit_code, result.output
    written = msgspec.json.decode((tmp_path / "r.json").read_bytes(), type=StressReport)
    assert "small" == written.name
    assert "<svg" in (tmp_path / "r.html").read_text()
    assert "pool-manager starts" in (tmp_path / "r.log").read_text()


def _stored(step: str, status: str, message: Message) -> Stored:
    subject = subjects.saga_entry("reset-gpu-a-1", step, status)
    return Stored(subject, encode(message), 1, NOW)


def test_an_unwound_repair_is_closed() -> None:
    """An unwound repair's end releases the budget and is not a repair, whichever step failed."""
    recording = StressRecorder({"p": 10}, {"p": BudgetSpec(max_unavailable=1)})
    about: dict[str, Any] = {"time": NOW, "saga": "reset-gpu-a-1"}
    params = SagaParams(pool="p", node="a", fault_signature="xid-48")
    begun = SagaStarted(id="1", kind="reset-gpu", params=params, **about)
    recording.record(10.0, "SAGAS", _stored(WHOLE, "started", begun))
    recording.sample(20.0, {"p": 10}, {"p": 10})
    undone = SagaUnwound(id="2", step="check", reason="it did not help", **about)
    recording.record(25.0, "SAGAS", _stored(WHOLE, "unwound", undone))
    recording.sample(30.0, {"p": 10}, {"p": 10})
    (repair,) = recording.repairs
    assert ("unwound", 25.0, None) == (repair.outcome, repair.ended_at, repair.seconds)
    assert [1, 0] == [each.repairing for each in recording.samples]
    assert (1, 20.0) == (recording.budgets["p"].most, recording.budgets["p"].full_seconds)


@pytest.mark.parametrize(
    ("struck", "since"),
    [
        ([(5.0, "temperature", False), (9.0, "xid_error", True)], 9.0),
        ([(5.0, "network", False), (9.0, "temperature", False)], 5.0),
        ([(5.0, "xid_error", False), (9.0, "xid_error", False)], 9.0),
        ([(5.0, "xid_error", True), (9.0, "network", False)], 5.0),
    ],
)
def test_a_repair_counts_from_the_failure_that_led_to_it(
    struck: list[tuple[float, FailureType, bool]], since: float
) -> None:
    """The most severe failure of the machine counts; where all are light, the last does."""
    recording = StressRecorder({"p": 10}, {"p": BudgetSpec()})
    for number, (at, kind, fatal) in enumerate(struck):
        failure = ScheduledFailure(number=number, at=at, slot=1, type=kind, fatal=fatal)
        recording.inject(failure, "a", at)
    params = SagaParams(pool="p", node="a")
    begun = SagaStarted(id="1", time=NOW, saga="reset-gpu-a-1", kind="replace", params=params)
    recording.record(10.0, "SAGAS", _stored(WHOLE, "started", begun))
    assert since == recording.repairs[0].failed_at


def test_what_a_repair_consists_of() -> None:
    """A repair's stages follow one another without a gap, from the failure to the last entry."""
    repair = Repair(
        saga="replace-a-1",
        kind="replace",
        pool="p",
        node="a",
        new_node="b",
        fault_signature="xid-79",
        reason="",
        failed_at=10.0,
        noticed_at=11.0,
        began_at=30.0,
        ended_at=100.0,
        outcome="done",
        steps=[
            (30.0, "cordon", "started"),
            (31.0, "cordon", "succeeded"),
            (31.0, "drain", "started"),
        ],
    )
    parts = [(each.name, each.at, each.seconds) for each in report_composer.stages(repair, 500.0)]
    assert [
        ("detect", 10.0, 1.0),
        ("wait", 11.0, 19.0),
        ("begin", 30.0, 0.0),
        ("cordon", 30.0, 1.0),
        ("drain", 31.0, 69.0),
    ] == parts
    assert 90.0 == repair.seconds


def test_spreads_and_axes() -> None:
    """Percentiles are taken from the values; axes end on round numbers."""
    assert (3, 2.0, 2.0, 3.0) == (
        (spread := report_composer.spread([3.0, 1.0, 2.0])).count,
        spread.mean,
        spread.p50,
        spread.max,
    )
    assert 0 == report_composer.spread([]).count
    assert [1.0, 1.2, 120.0, 1_000.0, 6_000.0] == [nice(v) for v in (0, 1.15, 118, 1_000, 5_003)]
    assert ["0:05", "12:30", "1:00:00"] == [clock(each) for each in (5, 750, 3_600)]


def test_cascades_are_counted_by_their_chains() -> None:
    """A chain is all failures with one root; its size includes the root."""

    def failure(number: int, parent: int, root: int, depth: int) -> ScheduledFailure:
        return ScheduledFailure(
            number=number, at=1.0, slot=1, type="network", parent=parent, root=root, depth=depth
        )

    done = [failure(1, 0, 1, 0), failure(2, 1, 1, 1), failure(3, 2, 1, 2), failure(4, 0, 4, 0)]
    cascades = report_composer.cascades(done)
    assert (1, 2, 2, 3) == (
        cascades.chains,
        cascades.nodes,
        cascades.depth_max,
        cascades.size_max,
    )
