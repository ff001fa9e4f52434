"""The shipped alert rules: promtool finds each firing where it should, and silent where not."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.metric_catalogue import METRICS

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/navarch-rules.yaml"
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        shutil.which("promtool") is None, reason="no promtool here: apt-get install prometheus"
    ),
]
Series = dict[str, str]
HOURS = "x240"
"""Four hours of samples, one a minute."""
UP = 'up{job="navarch-fleet",instance="m:1"}'
SERVICE = 'up{job="navarch-services",instance="p:1"}'
NODES = 'navarch_nodes_total{pool="a",status="active"}'
HEALTHY = 'navarch_nodes_healthy{pool="a"}'
UNHEALTHY = 'navarch_nodes_unhealthy{pool="a"}'
LAUNCHING: Series = {NODES: f"3+0{HOURS}", HEALTHY: f"0+0{HOURS}", UNHEALTHY: f"0+0{HOURS}"}
"""A pool that grows from zero: its nodes count, and are neither healthy nor unhealthy yet."""
XIDS = 'navarch_xid_errors_total{pool="a",node="n1",xid="79"}'
OTHER_XID = XIDS.replace("79", "31")
HOT = 'navarch_node_gpu_temperature_celsius{pool="a",node="n1",gpu="0"}'
STATUS = 'navarch_node_health_check_status{pool="a",node="n1"}'
LOST = 'navarch_nodes_lost{pool="a"}'
DESIRED = 'navarch_pool_desired_nodes{pool="a"}'
BREAKER = 'navarch_pool_breaker_state{pool="a",state="open"}'
ERRORS = 'navarch_http_requests_total{route="/api/v1/nodes",method="GET",status="500"}'
COUNT = 'navarch_node_gpu_count{pool="a",node="%s"}'

CASES: dict[str, tuple[Series, Series]] = {
    "NavarchMetricsAbsent": ({UP: f"0+0{HOURS}"}, {UP: f"1+0{HOURS}"}),
    "NavarchServiceDown": ({SERVICE: f"0+0{HOURS}"}, {SERVICE: f"1+0{HOURS}"}),
    "NavarchPoolWithoutHealthyNodes": (
        {NODES: f"3+0{HOURS}", HEALTHY: f"0+0{HOURS}", UNHEALTHY: f"3+0{HOURS}"},
        {NODES: f"0+0{HOURS}", HEALTHY: f"0+0{HOURS}", UNHEALTHY: f"0+0{HOURS}"},
    ),
    "NavarchNodesUnhealthy": (
        {NODES: f"10+0{HOURS}", HEALTHY: f"8+0{HOURS}", UNHEALTHY: f"2+0{HOURS}"},
        {NODES: f"10+0{HOURS}", HEALTHY: f"9+0{HOURS}", UNHEALTHY: f"1+0{HOURS}"},
    ),
    "NavarchNodesQuarantined": (
        {'navarch_nodes_quarantined{pool="a"}': f"2+0{HOURS}"},
        {'navarch_nodes_quarantined{pool="a"}': f"0+0{HOURS}"},
    ),
    "NavarchStoreUnwritable": (
        {'navarch_failures{failure="store-unwritable",instance="p:1"}': f"1+0{HOURS}"},
        {'navarch_failures{failure="record-unreadable",instance="p:1"}': f"1+0{HOURS}"},
    ),
    "NavarchFailure": (
        {'navarch_failures{failure="record-unreadable",instance="p:1"}': f"1+0{HOURS}"},
        {'navarch_failures{failure="record-unreadable",instance="p:1"}': f"0+0{HOURS}"},
    ),
    "NavarchConsumerBehind": (
        {'navarch_consumer_oldest_seconds{stream="EVENTS",durable="d"}': f"90+0{HOURS}"},
        {'navarch_consumer_oldest_seconds{stream="EVENTS",durable="d"}': f"9+0{HOURS}"},
    ),
    "NavarchGpuHot": (
        {'navarch_node_gpu_temperature_celsius{pool="a",node="n1",gpu="0"}': f"84+0{HOURS}"},
        {'navarch_node_gpu_temperature_celsius{pool="a",node="n1",gpu="0"}': f"82+0{HOURS}"},
    ),
    "NavarchGpuFellOffBus": (
        {XIDS: "_x230 1+0x10", OTHER_XID: f"1+0{HOURS}"},
        {XIDS: f"1+0{HOURS}", OTHER_XID: "_x230 1+0x10"},
    ),
    "NavarchNodeNotHealthy": ({STATUS: f"0.5+0{HOURS}"}, {STATUS: f"1+0{HOURS}"}),
    "NavarchNodesLost": ({LOST: f"1+0{HOURS}"}, {LOST: f"0+0{HOURS}"}),
    "NavarchPoolCapacityLow": (
        {DESIRED: f"20+0{HOURS}", HEALTHY: f"1+0{HOURS}"},
        {DESIRED: f"20+0{HOURS}", HEALTHY: f"2+0{HOURS}"},
    ),
    "NavarchBreakerOpen": ({BREAKER: f"1+0{HOURS}"}, {BREAKER: f"0+0{HOURS}"}),
    "NavarchGpuMissing": (
        {COUNT % "n1": f"7+0{HOURS}", COUNT % "n2": f"8+0{HOURS}"},
        {COUNT % "n1": f"8+0{HOURS}", COUNT % "n2": f"8+0{HOURS}"},
    ),
    "NavarchXidsInMany": ({XIDS: f"0+5{HOURS}"}, {XIDS: "0+0x200 1+0x40"}),
    "NavarchClockWrong": (
        {'navarch_clock_ahead_seconds{instance="p:1"}': f"-9+0{HOURS}"},
        {'navarch_clock_ahead_seconds{instance="p:1"}': f"1+0{HOURS}"},
    ),
    "NavarchGatewayErrors": ({ERRORS: f"0+60{HOURS}"}, {ERRORS: f"0+1{HOURS}"}),
}
"""Alert -> series of which it fires, and of which it does not."""


MORE: tuple[tuple[str, Series, bool], ...] = (
    ("NavarchGpuFellOffBus", {XIDS: f"1+0x230 2+0{HOURS}"}, True),
    ("NavarchPoolCapacityLow", {DESIRED: f"3+0{HOURS}"}, True),
    ("NavarchPoolCapacityLow", {DESIRED: f"0+0{HOURS}"}, False),
    ("NavarchNodeNotHealthy", {STATUS: "1+0x228 0+0x20"}, False),
    ("NavarchGpuHot", {HOT: "60+0x232 90+0x20"}, False),
    ("NavarchGpuHot", {HOT: f"83+0{HOURS}"}, False),
    ("NavarchNodesLost", {LOST: "0+0x230 1+0x20"}, False),
    ("NavarchNodesLost", {LOST: "0+0x229 1+0x20"}, True),
)
"""A second XID; a pool without any node; one that is to have none; what has not lasted yet."""
LABELS: dict[str, str] = {
    "NavarchGpuHot": 'severity="warning", pool="a", node="n1", gpu="0"',
    "NavarchGpuFellOffBus": 'severity="critical", pool="a", node="n1"',
    "NavarchNodeNotHealthy": 'severity="warning", pool="a", node="n1"',
    "NavarchNodesLost": 'severity="critical", pool="a"',
    "NavarchPoolCapacityLow": 'severity="warning", pool="a"',
    "NavarchBreakerOpen": 'severity="warning", pool="a", state="open"',
}
"""Alert -> the labels by which it is routed."""


THRESHOLDS: dict[str, tuple[str, str, str]] = {
    "NavarchGpuHot": ("> 83", "5m", "warning"),
    "NavarchGpuFellOffBus": ('{xid="79"}', "0s", "critical"),
    "NavarchNodeNotHealthy": ("< 1", "10m", "warning"),
    "NavarchNodesLost": ("navarch_nodes_lost) > 0", "4m30s", "critical"),
    "NavarchPoolCapacityLow": ("< 0.1", "15m", "warning"),
}
"""What Navarch has always recommended: more than 83 degrees for five minutes, XID 79, not healthy
for ten minutes, no heartbeat for five, less than a tenth of the nodes available."""


def alerts() -> list[dict[str, Any]]:
    """The shipped alerts."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [each for group in groups for each in group["rules"] if "alert" in each]


def case(name: str, series: Series, *, fires: bool) -> dict[str, Any]:
    """One unit test of promtool: whether the alert fires at the end."""
    firing = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                "eval_time": "235m",
                "exp_samples": firing,
            }
        ],
    }


def labelled(name: str, labels: str) -> dict[str, Any]:
    """One unit test of promtool: the alert fires with exactly these labels."""
    found = case(name, CASES[name][0], fires=True)
    firing = f'ALERTS{{alertname="{name}", alertstate="firing", {labels}}}'
    query = f'ALERTS{{alertname="{name}",alertstate="firing"}}'
    expected = [{"labels": firing, "value": 1}]
    found["promql_expr_test"][0] |= {"expr": query, "exp_samples": expected}
    return found


def test_each_alert_fires_and_is_silent(tmp_path: Path) -> None:
    """Every shipped alert is in the table, and promtool agrees with each line."""
    assert {each["alert"] for each in alerts()} == set(CASES)
    tests = [
        case(name, series, fires=fires)
        for name, (wrong, right) in CASES.items()
        for series, fires in ((wrong, True), (right, False))
    ]
    tests += [case(name, LAUNCHING, fires=False) for name in CASES if "Nodes" in name]
    tests += [case(name, series, fires=fires) for name, series, fires in MORE]
    tests += [labelled(*each) for each in LABELS.items()]
    file = tmp_path / "tests.yaml"
    body = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    file.write_text(yaml.safe_dump(body))
    found = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_recommended_thresholds_are_those_of_the_rules() -> None:
    """Condition, duration and severity; promtool tries the values at their sides above."""
    found = {each["alert"]: each for each in alerts()}
    for name, (condition, lasts, severity) in THRESHOLDS.items():
        rule = found[name]
        assert condition in rule["expr"], name
        assert (lasts, severity) == (rule["for"], rule["labels"]["severity"]), name


def test_each_alert_names_a_page_that_exists() -> None:
    """The runbook's page has the heading."""
    for each in alerts():
        page, _, anchor = each["annotations"]["runbook_url"].partition("#")
        headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
        known = {re.sub(r"[^a-z0-9 -]", "", text.lower()).replace(" ", "-") for text in headings}
        assert anchor in known, each["alert"]


def test_rules_use_metrics_that_are_exported() -> None:
    """A renamed metric would silence its alert."""
    used = set(re.findall(r"\bnavarch_[a-z_]+", RULES.read_text("utf-8")))
    assert used <= {name for each in METRICS for name in each.series}
