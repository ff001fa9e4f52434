"""The `stress:` section: what it takes, and how it says where something is wrong."""

import pytest

from services.runtime.configuration import read_document
from services.runtime.errors import ConfigurationError
from services.simulator.stress.format import StressSpec, affected_share, read, zones_of

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
    """A file with everything in it is read, durations in seconds, older words as they stand."""
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
    """Zones are named by region; where a region names none, it has one of its own name."""
    fleet = _read(WHOLE).fleet_gen
    assert ("us-central1-a", "us-central1-b") == zones_of(fleet, "us-central1")
    assert ("europe-west1-a",) == zones_of(fleet, "europe-west1")


@pytest.mark.parametrize(("written", "share"), [("0.1", 0.1), ("10", 0.1), ("1", 1.0), ("0", 0.0)])
def test_the_affected_percentage_may_be_a_share(written: str, share: float) -> None:
    """The original's 0.1 is a tenth; whoever writes 10 means the same."""
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
        ("name: a100-4gpu", "name: h100-8gpu", "templates.1.name: 'h100-8gpu' stands twice"),
        ("name: a100-4gpu", "name: A100", "fleet_gen.templates.1.name: with provider 'gcp'"),
        ("min_delay: 500ms", "min_delay: 1h", "chaos.cascading.max_delay: is less than min_delay"),
        ("cold_start_mean: 45s", "", "cold_start_stddev: means nothing without cold_start_mean"),
        ("scope: same_rack", "scope: same_planet", "chaos.correlated_failures.1.scope"),
        ("total_nodes: 5000", "total_nodes: 0", "stress.yaml:8: fleet_gen.total_nodes"),
        ("cold_start_min: 30s", "cold_start_min: 3m", "is less than cold_start_min"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(old: str, new: str, message: str) -> None:
    """Every error has file, line, key and what is wrong with it."""
    assert old in WHOLE
    with pytest.raises(ConfigurationError) as raised:
        _read(WHOLE.replace(old, new, 1))
    assert message in str(raised.value)
