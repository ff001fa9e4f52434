"""The `stress:` section: its keys, and how its problems are reported."""

import pytest

from services.primitives.errors import ConfigurationError
from services.settings.yaml_document import read_document
from services.simulator.inputs.scenario.scenario_file import ScenarioError, read_text
from services.simulator.inputs.stress.stress_fleet import generate
from services.simulator.inputs.stress.stress_format import StressSpec, affected_share, zones_of
from services.simulator.inputs.stress.stress_validation import read

WHOLE = """\
duration: 30m
metrics_interval: 10s
seed: 54321
report_file: report.json
html_report_file: report.html
log_file: report.log
fleet_gen:
  total_nodes: 5000
  templates:
    - name: h100-8gpu
      weight: 60
      gpu_count: 8
      gpu_type: NVIDIA H100 80GB HBM3
      instance_type: a3-highgpu-8g
      price_per_hour: 28.0
      labels: {tier: premium}
    - {name: a100-4gpu, weight: 40, gpu_count: 4}
  providers: {gcp: 50, aws: 35, lambda: 15}
  regions: {us-central1: 60, europe-west1: 40}
  zones:
    us-central1: [us-central1-a, us-central1-b]
  startup:
    pattern: wave
    duration: 5m
    batch_size: 100
    jitter_percent: 20
    cold_start_min: 30s
    cold_start_max: 2m
    cold_start_mean: 45s
    cold_start_stddev: 10s
chaos:
  enabled: true
  failure_rate: 50.0
  xid_distribution: {13: 10, 79: 6}
  failure_types:
    - {type: xid_error, weight: 65}
    - {type: temperature, weight: 12}
    - {type: nvml_failure, weight: 10}
    - {type: boot_failure, weight: 3}
    - {type: network, weight: 10}
  cascading:
    enabled: true
    probability: 0.3
    max_depth: 4
    min_delay: 500ms
    max_delay: 15s
    scope: zone
    max_affected_percent: 0.2
  recovery:
    enabled: true
    probability: 0.5
    mean_time: 8m
    std_dev: 3m
    replace_fatal: true
    replace_cold_start: 45s
  scheduled_outages:
    - name: partition
      start_time: 8m
      duration: 3m
      scope: zone
      target: us-central1-a
      failure_type: network
    - {name: heat, start_time: 22m, duration: 2m, scope: percentage, target: "10",
       failure_type: temperature}
  correlated_failures:
    - name: nvlink
      trigger: "74"
      response: xid_error
      probability: 0.4
      delay: 2s
      scope: same_node
    - {name: heat, trigger: temperature, response: xid_error, delay: 5s, scope: same_rack}
"""


def _read(text: str) -> StressSpec:
    document = read_document("stress.yaml", text)
    return read(document, document.value)


def test_every_key_of_the_format_is_taken() -> None:
    """Durations are read as seconds, older words are kept as written."""
    spec = _read(WHOLE)
    startup = spec.fleet_gen.startup
    assert (1800.0, 10.0, 54321) == (spec.duration, spec.metrics_interval, spec.seed)
    assert (30.0, 120.0, 45.0, 10.0) == (
        startup.cold_start_min,
        startup.cold_start_max,
        startup.cold_start_mean,
        startup.cold_start_stddev,
    )
    assert {"13": 10.0, "79": 6.0} == spec.chaos.xid_distribution
    assert "nvml_failure" == spec.chaos.failure_types[2].type
    assert 480.0 == spec.chaos.scheduled_outages[0].start_time


def test_a_region_without_zones_has_one() -> None:
    """A region without named zones has one, `<region>-a`."""
    fleet = _read(WHOLE).fleet_gen
    assert ("us-central1-a", "us-central1-b") == zones_of(fleet, "us-central1")
    assert ("europe-west1-a",) == zones_of(fleet, "europe-west1")


@pytest.mark.parametrize(("written", "share"), [("0.1", 0.1), ("10", 0.1), ("1", 1.0), ("0", 0.0)])
def test_the_affected_percentage_may_be_a_share(written: str, share: float) -> None:
    """The original's 0.1 is a tenth, and so is 10."""
    text = WHOLE.replace("max_affected_percent: 0.2", f"max_affected_percent: {written}")
    assert share == affected_share(_read(text).chaos.cascading)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seed: 54321", "sead: 1", "stress.yaml:3: sead: unknown key"),
        ("duration: 30m", "duration: soon", "stress.yaml:1: duration: 'soon' is not a duration"),
        ("duration: 30m", "duration: 0s", "stress.yaml:1: duration: must be more than 0s"),
        ("metrics_interval: 10s", "metrics_interval: 1ms", "stress.yaml:2: metrics_interval"),
        ("{13: 10, 79: 6}", "{13: 10, gpu: 6}", "chaos.xid_distribution.gpu: is not an XID"),
        ("target: us-central1-a", "target: mars", "chaos.scheduled_outages.0.target: no such zone"),
        ('target: "10"', "target: some", "chaos.scheduled_outages.1.target: 'some' is no perc"),
        ('trigger: "74"', "trigger: rain", "chaos.correlated_failures.0.trigger: 'rain'"),
        ("start_time: 8m", "start_time: 31m", "is after the run's end"),
        ("    us-central1: [", "    us-central: [", "fleet_gen.zones.us-central: no such region"),
        ("name: a100-4gpu", "name: h100-8gpu", "templates.1.name: 'h100-8gpu' is there twice"),
        ("name: a100-4gpu", "name: A100", "fleet_gen.templates.1.name: with provider 'gcp'"),
        ("min_delay: 500ms", "min_delay: 1h", "chaos.cascading.max_delay: is less than min_delay"),
        ("cold_start_mean: 45s", "", "cold_start_stddev: means nothing without cold_start_mean"),
        ("scope: same_rack", "scope: same_planet", "chaos.correlated_failures.1.scope"),
        ("total_nodes: 5000", "total_nodes: 0", "stress.yaml:8: fleet_gen.total_nodes"),
        ("cold_start_min: 30s", "cold_start_min: 3m", "is less than cold_start_min"),
        (
            "gpu_count: 4}",
            "gpus: 4}",
            "stress.yaml:17: fleet_gen.templates.1.gpus: unknown key; kno",
        ),
        ("type: network, w", "type: rain, w", "write one of xid_error, temperature, memory_error"),
        ("pattern: wave", "pattern: slow", "write one of instant, linear, exponential, wave"),
        (
            "pattern: wave",
            "pattern: linear",
            "startup.batch_size: means nothing without `pattern: ",
        ),
        ("pattern: wave", "pattern: instant", "startup.duration: means nothing where all come at"),
        ("us-central1-b]", "us-central1-a]", "zones.us-central1: 'us-central1-a' is there twice"),
        ("us-central1-b]", "europe-west1-a]", "'europe-west1-a' is in us-central1, too"),
        ("duration: 3m", "duration: 0s", "scheduled_outages.0.duration: must be more than 0s"),
        (
            "name: heat, start",
            "name: partition, start",
            "1.name: 'partition' is there twice; rename",
        ),
        (
            "name: heat, trig",
            "name: nvlink, trig",
            "correlated_failures.1.name: 'nvlink' is there t",
        ),
        (
            "scope: zone\n      target: us-central1-a",
            "scope: rack\n      target: r9",
            "no such rack:",
        ),
        ("failure_rate: 50.0", "failure_rate: 10000.0", "more than 1,000,000 failures in all"),
        ("report_file: report.html", "report_file: report.json", "is where report_file goes, too"),
        (
            "fleet_gen:",
            "fleet_gen:\n  pool: {min_nodes: 1}",
            "fleet_gen.pool.min_nodes: a stress run",
        ),
        (
            "fleet_gen:",
            "fleet_gen:\n  pool: {drains: 1m}",
            "fleet_gen.pool.drains: unknown key; di",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(old: str, new: str, message: str) -> None:
    """Every error has file, line, key and problem."""
    assert old in WHOLE
    with pytest.raises(ConfigurationError) as raised:
        _read(WHOLE.replace(old, new, 1))
    assert message in str(raised.value)


def test_all_problems_are_reported_at_once() -> None:
    """Not one after the other: an operator corrects them all in one go."""
    wrong = WHOLE.replace("duration: 30m", "duration: 0s", 1).replace("{13: 10, 79: 6}", "{a: 1}")
    with pytest.raises(ConfigurationError) as raised:
        _read(wrong)
    assert ["stress.yaml:1: duration", "stress.yaml:34: chaos.xid_distribution.a"] == [
        line.partition(": must")[0].partition(": is not")[0]
        for line in str(raised.value).splitlines()
        if "outages" not in line
    ]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("seed: 7", "f.yaml:2: seed: means nothing beside `stress`; write it as stress.seed"),
        (
            "duration: 3m",
            "f.yaml:2: duration: means nothing beside `stress`; write it as stress.du",
        ),
        ("replace_fatal: true", "write it as stress.chaos.recovery.replace_fatal"),
        ("fleet: [{id: node-1}]", "f.yaml:2: fleet: means nothing beside `stress`"),
        ("pools: {mine: {min_nodes: 3}}", "write it as stress.fleet_gen.pool"),
        ("settings: {alerts: []}", "f.yaml:2: settings.alerts: means nothing beside `stress`"),
        ("events: [{action: start_fleet}]", "f.yaml:2: events.0: a stress run fails as"),
        (
            "events: [{action: log, at: 1h, params: {log_message: late}}]",
            "f.yaml:2: events.0.at: is after the run's end",
        ),
        (
            "assertions: [{type: node_status, target: a, expected: active}]",
            "assertions.0.type: node_status cannot be asserted of a stress run; what can: node",
        ),
        ("assertions: [{type: node_count, target: a, expected: 3}]", "assertions.0.target: a stre"),
        ("assertions: [{type: node_count}]", "expects nothing; add `at_least` or `at_most`"),
        ("assertions: [{type: node_count, expected: many}]", "0.expected: 'many' is no number"),
        ("assertions: [{type: node_count, status: active, at_least: 1}]", "0.status: a stress run"),
    ],
)
def test_what_means_nothing_beside_stress_is_refused(written: str, message: str) -> None:
    """No key is ignored: it has an effect, or it is refused with its line."""
    indented = "".join(f"  {line}\n" for line in WHOLE.splitlines())
    with pytest.raises(ScenarioError) as raised:
        read_text("f.yaml", f"name: x\n{written}\nstress:\n{indented}")
    assert message in str(raised.value)


def test_numbers_in_quotes_and_an_empty_fleet_are_taken() -> None:
    """Older files write `fleet: []` beside `stress`, and `expected` of a count in quotes."""
    indented = "".join(f"  {line}\n" for line in WHOLE.splitlines())
    scenario = read_text(
        "f.yaml",
        "name: x\nfleet: []\nassertions: [{type: node_count, target: all, expected: '3000'}]\n"
        f"stress:\n{indented}",
    )
    assert 3_000 == scenario.assertions[0].expected


@pytest.mark.parametrize(
    ("pattern", "seconds"),
    [("instant", 0.0), ("linear", 30.0), ("exponential", 120.0), ("wave", 300.0)],
)
def test_each_pattern_has_its_time(pattern: str, seconds: float) -> None:
    """A fleet without a duration starts within its pattern's default time."""
    document = read_document(
        "f.yaml",
        "duration: 10m\nfleet_gen:\n  total_nodes: 1000\n"
        f"  templates: [{{name: a}}]\n  startup: {{pattern: {pattern}}}\n",
    )
    fleet = generate(read(document, document.value).fleet_gen, "1")
    assert seconds == pytest.approx(max(each.wanted_at for each in fleet.slots), rel=0.15)
