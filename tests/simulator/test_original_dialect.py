"""Files in the words of the original's simulator run unchanged, and mean what they mean there."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from services.cli.app import app
from services.simulator.inputs.scenario.original_dialect import UNLIMITED, XIDS
from services.simulator.inputs.scenario.scenario_file import ScenarioError, read_file, read_text
from services.simulator.inputs.scenario.scenario_format import Scenario
from services.simulator.inputs.scenario.scenario_runner import run
from services.simulator.inputs.stress import stress_entry
from services.simulator.report.report_format import StressReport

FILES = Path(__file__).parent / "original_files"
"""Of the shape of the original's, in other words."""
FAULTY = """
name: a-gpu-is-gone
fleet:
  - {id: n-1, provider: gcp, region: r, zone: r-a, instance_type: a3-highgpu-8g, gpu_count: 8}
  - {id: n-2, provider: aws, region: s, zone: s-a, instance_type: p5.48xlarge, gpu_count: 8}
events:
  - {at: 0s, action: start_fleet}
  - {at: 5s, action: log, params: {log_message: "now"}}
  - {at: 5s, action: inject_failure, target: n-1, params: {failure_type: FAULT}}
  - {at: 8s, action: wait_for_status, target: n-1, params: {expected_status: STATUS}}
assertions:
  - {type: node_status, target: n-2, expected: active}
  - {type: node_status, target: n-1, expected: STATUS}
  - {type: health_status, target: n-1, expected: HEALTH}
"""


@pytest.mark.parametrize(
    ("fault", "status", "health"),
    [
        ("xid_error, xid_code: 79, gpu_index: 3", "unhealthy", "healthy"),
        ("memory_error", "unhealthy", "healthy"),
        ("xid_error, xid_code: 13", "active", "healthy"),
        ("nvml_failure", "active", "degraded"),
        ("device_error", "active", "degraded"),
        ("boot_failure", "active", "degraded"),
    ],
)
def test_faults_are_reported_once_or_last(fault: str, status: str, health: str) -> None:
    """An XID is forgotten once it is reported; the node stays as Navarch has judged it."""
    words = {"FAULT": fault, "STATUS": status, "HEALTH": health}
    text = re.sub("|".join(words), lambda found: words[found[0]], FAULTY)
    scenario = read_text("a.yaml", text)
    assert scenario.is_original
    outcome = run(scenario)
    assert [] == [each.text for each in outcome.checks if not each.ok]
    assert [] == [each.text for each in outcome.steps if not each.ok]


def test_without_the_originals_words_the_fault_lasts() -> None:
    """The same file in our own words has a fault that lasts."""
    words = {"FAULT": "xid_error", "STATUS": "unhealthy", "HEALTH": "unhealthy"}
    text = re.sub("|".join(words), lambda found: words[found[0]], FAULTY)
    scenario = read_text("a.yaml", text.replace("log_message", "message"))
    assert not scenario.is_original
    assert run(scenario).ok


@pytest.mark.parametrize("file", ["three-nodes", "one-gpu-off-the-bus"])
def test_a_scenario_runs_unchanged(file: str) -> None:
    """Every wait and every assertion holds, and no node is replaced."""
    scenario = read_file(FILES / f"{file}.yaml")
    assert scenario.is_original
    outcome = run(scenario)
    assert outcome.ok
    assert {each.node for each in outcome.nodes} == {each.id for each in scenario.fleet}


@pytest.mark.slow
def test_a_stress_file_runs_unchanged() -> None:
    """A node that is judged is not replaced, the outage passes, and the assertion only logs."""
    scenario = read_file(FILES / "chaos.yaml")
    said: list[str] = []
    result = stress_entry.run_scenario(scenario, on_word=lambda _, text: said.append(text))
    report = result.report
    assert (result.ok, [each.ok for each in result.checks]) == (True, [False])
    assert said == ["=== it begins ===", "it ends soon"]
    assert (report.summary.repairs, report.summary.machines_made) == (0, 30)
    assert set(report.failures.by_xid) == {"13", "48", "79"}
    assert report.failures.by_type["boot_failure"] == report.outages[0].struck == 3
    assert report.failures.recovered_by_type["boot_failure"] == 3
    assert {"us-central1", "us-west4"} == {each.whole.name for each in report.regions}
    assert [2, 4] == [len(each.zones) for each in report.regions]
    lasting = [each for each in report.nodes if each.state == "out"]
    assert lasting
    assert all(any("XID" in moment.text for moment in each.moments) for each in lasting)


@pytest.mark.parametrize(
    ("compat", "is_original"), [("", True), ("original", True), ("navarch", False)]
)
def test_compat_decides_before_the_words_of_a_file(compat: str, is_original: bool) -> None:
    """A file's own `compat`, or the one that is given instead, decides."""
    assert read_file(FILES / "chaos.yaml", compat).is_original == is_original
    written = BARE.replace("CHAOS", "") + (f"compat: {compat}\n" if compat else "")
    written = written.replace("fleet_gen", "duration: 1m\n  fleet_gen")
    assert read_text("a.yaml", written).is_original == is_original
    with pytest.raises(ScenarioError, match="compat: Invalid enum value 'orignal'"):
        read_text("a.yaml", written, "orignal")


@pytest.mark.parametrize(
    "wrong",
    [
        "events: [{action: inject_failure, params: {failure_type: {}, log_message: x}}]",
        "events: [7, {params: [log_message]}, {action: wait_for_status, params: 3}]",
        "stress: 4",
        "stress: {fleet_gen: [], chaos: 3}",
        "stress: {fleet_gen: {pool: [], zones: 4, regions: [a], startup: 5}}",
        "stress: {fleet_gen: {total_nodes: 1, pool: {health: 4}}}\nsettings: []",
        "stress: {chaos: {recovery: {mean_time: []}, cascading: 1, scheduled_outages: {}}}",
        "stress: {chaos: {cascading: {min_delay: {}, max_delay: x}, xid_distribution: [1]}}",
    ],
)
def test_a_wrong_file_is_refused_with_its_problems(wrong: str) -> None:
    """A file with any value where something else belongs is refused with its problems."""
    for compat in ("original", ""):
        with pytest.raises(ScenarioError):
            read_text("a.yaml", f"name: a\nfleet: []\n{wrong}\n", compat)


BARE = """
name: bare
fleet: []
stress:
  fleet_gen:
    total_nodes: 12
    templates: [{name: t, weight: 1, gpu_count: 8}]
  chaos: {CHAOS}
"""


def bare(chaos: str, compat: str = "") -> Scenario:
    """A stress run with nothing but this chaos."""
    return read_text("a.yaml", BARE.replace("CHAOS", chaos), compat)


def test_what_is_absent_has_the_originals_defaults() -> None:
    """Mix of providers, regions, zones and XIDs, start, deviation, and what is off."""
    spec = bare("enabled: true, failure_rate: 1, recovery: {enabled: true, mean_time: 2m}").stress
    fleet, chaos = spec.fleet_gen, spec.chaos
    assert (spec.duration, spec.metrics_interval, spec.clock) == (600, 5, "after_startup")
    assert list(fleet.providers) == ["gcp", "aws", "lambda"]
    assert len(fleet.regions) == 5
    assert {len(zones) for zones in fleet.zones.values()} == {4}
    assert (fleet.startup.pattern, fleet.startup.duration) == ("linear", 30)
    assert list(map(int, chaos.xid_distribution)) == list(XIDS)
    assert (chaos.hot_celsius, chaos.lasting, chaos.cascading.enabled) == (95, False, False)
    recovery = chaos.recovery
    assert (recovery.std_dev, recovery.min_time, recovery.replace_fatal) == (30, 10, False)
    assert not bare("failure_rate: 1").stress.chaos.enabled
    off = bare("enabled: true").stress.chaos.recovery
    assert (off.enabled, off.replace_fatal) == (False, False)


def test_a_file_of_our_own_has_none_of_them() -> None:
    """A file of our own, even one with `stress` alone, gets no default of the original."""
    own = read_text(
        "a.yaml",
        BARE.replace("fleet: []\n", "")
        .replace("fleet_gen", "duration: 1m\n  fleet_gen")
        .replace("CHAOS", ""),
    )
    assert not own.is_original
    assert own.stress.chaos.lasting
    assert list(own.stress.fleet_gen.providers) == ["simulated"]


def test_what_the_original_never_reads_is_left_out_and_said() -> None:
    """Correlated failures, and a scale of real time."""
    chaos = "enabled: true, correlated_failures: [{name: a, trigger: '74', response: xid_error}]"
    found = read_text(
        "a.yaml", BARE.replace("CHAOS", chaos).replace("stress:", "stress:\n  time_scale: 4")
    )
    assert found.stress.chaos.correlated_failures == ()
    said = [each.split()[0] for each in found.notes]
    assert said == ["read", "time_scale", "correlated_failures"]


OUTAGE = """
  enabled: true, failure_rate: 0, recovery: {enabled: true, replace_fatal: REPLACE},
  scheduled_outages: [{name: o, start_time: 30s, duration: 1m, scope: provider, target: gcp,
                       failure_type: xid_error}]
"""


def report_of(replace: str, compat: str = "") -> tuple[Scenario, StressReport]:
    """Half of a small fleet has a fatal XID at once."""
    text = BARE.replace("CHAOS", OUTAGE.replace("REPLACE", replace))
    text = text.replace("stress:", "stress:\n  seed: 3\n  duration: 3m")
    text += "assertions: [{type: node_count, at_least: 12}]\n"
    scenario = read_text("a.yaml", text, compat)
    result = stress_entry.run_scenario(scenario)
    assert result.ok
    assert not all(each.ok for each in result.checks) or replace == "true"
    return scenario, result.report


@pytest.mark.slow
def test_unhealthy_nodes_are_replaced_only_where_the_file_says_so() -> None:
    """An outage is of XID 79, and the clock of the file starts when the fleet is up."""
    _, kept = report_of("false")
    assert (kept.summary.repairs, kept.summary.machines_made) == (0, 12)
    assert set(kept.failures.by_xid) == {"79"}
    assert kept.outages[0].at > 60
    assert kept.seconds == pytest.approx(kept.outages[0].at - 30 + 180)
    assert kept.summary.nodes_at_end == 12 - kept.outages[0].struck
    assert not any("breaker" in each for each in kept.notes)


@pytest.mark.slow
def test_what_a_limit_changed_is_said_and_can_be_taken_out() -> None:
    """The breaker opens at the outage; with `compat: original` every node is replaced."""
    _, limited = report_of("true")
    [said] = [each for each in limited.notes if "the breaker opened" in each]
    assert "`compat: original` runs without breaker and budget" in said
    scenario, free = report_of("true", "original")
    assert scenario.stress.fleet_gen.pool["budget"] == UNLIMITED
    assert free.notes == []
    assert free.summary.repairs == free.outages[0].struck > limited.summary.repairs
    assert free.summary.nodes_at_end == 12


@pytest.mark.slow
def test_a_run_has_its_directory(tmp_path: Path) -> None:
    """Scenario, log with node and XID, report and page; a seed is drawn where the file has none."""
    text = BARE.replace("CHAOS", OUTAGE.replace("REPLACE", "false"))
    file = tmp_path / "a.yaml"
    file.write_text(text.replace("stress:", "stress:\n  duration: 1m"))
    seeds: set[Any] = set()
    for options in ((), ("-v",), ("--debug", "--quiet")):
        run = ("simulator", "run", str(file), "--runs", str(tmp_path / "runs"), *options)
        result = CliRunner().invoke(app, run)
        assert result.exit_code == 0, result.output
        shown = bool(re.search(r"\d  t-gcp-\S+: xid_error 79", result.stderr))
        assert (shown, "stored navarch" in result.stderr) == (bool(options), "--debug" in options)
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(runs) == 3
    for each in runs:
        assert (each / "scenario.yaml").read_text() == file.read_text()
        report = msgspec.json.decode((each / "report.json").read_bytes(), type=StressReport)
        seeds.add(report.seed)
        assert re.search(r"t-gcp-\S+: xid_error 79", (each / "run.log").read_text())
        assert "<svg" in (each / "report.html").read_text()
    assert len(seeds) == 3
    refused = CliRunner().invoke(app, ["simulator", "run", str(file), "--runs", str(file)])
    assert refused.exit_code == 1
    assert "name another directory with --runs" in str(refused.exception)
