"""Every metric that a service exports: name, type, unit, labels, exporter and meaning.

The code that measures takes its name, help and labels from here; docs/metrics.md has the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

MetricType = Literal["gauge", "counter", "histogram"]
Exporter = Literal["metrics", "every service", "health-monitor", "notifier", "gateway"]

POOL: Final = ("pool",)
NODE: Final = ("pool", "node")
GPU: Final = ("pool", "node", "gpu")
FAULT: Final = ("pool", "fault")
CONSUMER: Final = ("stream", "durable")
PLUGIN: Final = ("kind", "plugin")


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric as it is exported; a counter's name ends in `_total`."""

    name: str
    type: MetricType
    unit: str
    labels: tuple[str, ...]
    exporter: Exporter
    help: str

    @property
    def declared(self) -> tuple[str, str, tuple[str, ...]]:
        """Name, help and labels, as prometheus_client takes them."""
        return (self.name, self.help, self.labels)

    @property
    def series(self) -> tuple[str, ...]:
        """The names that a query may use."""
        if self.type == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


def _of_fleet(
    name: str, kind: MetricType, unit: str, labels: tuple[str, ...], text: str
) -> MetricSpec:
    return MetricSpec(name, kind, unit, labels, "metrics", text)


def _of_process(
    name: str, kind: MetricType, unit: str, labels: tuple[str, ...], text: str
) -> MetricSpec:
    return MetricSpec(name, kind, unit, labels, "every service", text)


def _of_health(name: str, labels: tuple[str, ...], text: str) -> MetricSpec:
    return MetricSpec(name, "counter", "", labels, "health-monitor", text)


NODES_TOTAL: Final = _of_fleet(
    "navarch_nodes_total",
    "gauge",
    "nodes",
    ("pool", "status"),
    "Nodes by status: launching, registered, active, cordoned, draining, unhealthy, leaving",
)
GPUS_TOTAL: Final = _of_fleet(
    "navarch_gpus_total", "gauge", "GPUs", ("pool", "provider"), "GPUs of registered nodes"
)
NODES_HEALTHY: Final = _of_fleet(
    "navarch_nodes_healthy", "gauge", "nodes", POOL, "Healthy nodes that are not lost"
)
NODES_UNHEALTHY: Final = _of_fleet(
    "navarch_nodes_unhealthy", "gauge", "nodes", POOL, "Unhealthy or lost nodes"
)
NODES_QUARANTINED: Final = _of_fleet(
    "navarch_nodes_quarantined",
    "gauge",
    "nodes",
    POOL,
    "Unhealthy nodes that get no new work while their repair waits",
)
NODES_LOST: Final = _of_fleet(
    "navarch_nodes_lost", "gauge", "nodes", POOL, "Nodes whose heartbeats have stopped"
)
POOL_DESIRED: Final = _of_fleet(
    "navarch_pool_desired_nodes", "gauge", "nodes", POOL, "Nodes that the pool is to have"
)
POOL_MIN: Final = _of_fleet(
    "navarch_pool_min_nodes", "gauge", "nodes", POOL, "The pool's min_nodes"
)
POOL_MAX: Final = _of_fleet(
    "navarch_pool_max_nodes", "gauge", "nodes", POOL, "The pool's max_nodes"
)
INCIDENTS: Final = _of_fleet(
    "navarch_open_incidents",
    "gauge",
    "incidents",
    POOL,
    "Incidents that are open: equal faults on several nodes",
)
STOPPED: Final = _of_fleet(
    "navarch_stopped",
    "gauge",
    "",
    ("scope",),
    "1 where an operator has stopped what is automatic, by scope: fleet, pool.NAME, provider.NAME",
)
POOL_BREAKER: Final = _of_fleet(
    "navarch_pool_breaker_state",
    "gauge",
    "",
    ("pool", "state"),
    "1 for the breaker's state, 0 for the others: closed, open, half-open",
)
OPEN_SAGAS: Final = _of_fleet(
    "navarch_open_sagas", "gauge", "sagas", ("pool", "kind"), "Sagas that are open, by kind"
)
OLDEST_SAGA: Final = _of_fleet(
    "navarch_open_saga_oldest_seconds",
    "gauge",
    "seconds",
    ("pool", "kind"),
    "How long the oldest open saga of a kind has been open; absent without one",
)
INSTANCE_COUNT: Final = _of_fleet(
    "navarch_instances",
    "gauge",
    "instances",
    ("pool", "provider", "state"),
    "Instances by state: intended, running, terminating, leaked, orphaned",
)
POOL_SPEND: Final = _of_fleet(
    "navarch_spend_dollars_per_hour",
    "gauge",
    "dollars per hour",
    POOL,
    "Price of the pool's instances, terminating ones excluded",
)
POOL_SPEND_CAP: Final = _of_fleet(
    "navarch_pool_spend_cap_dollars_per_hour",
    "gauge",
    "dollars per hour",
    POOL,
    "The pool's spend_cap; absent without one",
)
FLEET_SPEND_CAP: Final = _of_fleet(
    "navarch_fleet_spend_cap_dollars_per_hour",
    "gauge",
    "dollars per hour",
    (),
    "The fleet's spend_cap; absent without one",
)
NODE_STATUS: Final = _of_fleet(
    "navarch_node_health_check_status",
    "gauge",
    "",
    NODE,
    "Health: 1 healthy, 0.5 degraded, 0 unhealthy; absent while unknown",
)
NODE_HEALTH: Final = _of_fleet(
    "navarch_node_health_status",
    "gauge",
    "",
    ("pool", "node_id", "status"),
    "The same with the status as a label; 0 while it is unknown",
)
NODE_CONDITION: Final = _of_fleet(
    "navarch_node_condition",
    "gauge",
    "",
    ("pool", "node", "condition", "scope"),
    "1: it holds on the GPU, or on the host; 0: it cannot be read; absent while it does not hold",
)
NODE_GPUS: Final = _of_fleet(
    "navarch_node_gpu_count", "gauge", "GPUs", NODE, "GPUs that the node reports"
)
GPU_TEMPERATURE: Final = _of_fleet(
    "navarch_node_gpu_temperature_celsius",
    "gauge",
    "degrees Celsius",
    GPU,
    "Temperature of the GPU's core",
)
GPU_UTILIZATION: Final = _of_fleet(
    "navarch_node_gpu_utilization_percent", "gauge", "percent", GPU, "Utilization of the GPU"
)
GPU_MEMORY: Final = _of_fleet(
    "navarch_node_gpu_memory_used_bytes", "gauge", "bytes", GPU, "Memory of the GPU in use"
)
GPU_POWER: Final = _of_fleet(
    "navarch_node_gpu_power_watts", "gauge", "watts", GPU, "Power that the GPU draws"
)
XIDS: Final = _of_fleet(
    "navarch_xid_errors_total",
    "counter",
    "",
    ("pool", "node", "xid"),
    "XID errors that agents saw, by node and code",
)
COMMANDS: Final = _of_fleet(
    "navarch_commands_issued_total",
    "counter",
    "",
    ("pool", "command"),
    "Commands carried out: cordon, uncordon, drain, terminate",
)
SCALINGS: Final = _of_fleet(
    "navarch_scaling_events_total",
    "counter",
    "",
    ("pool", "direction"),
    "Changes of a pool's desired size: up, down",
)
REPLACEMENTS: Final = _of_fleet(
    "navarch_replacements_total", "counter", "nodes", POOL, "Nodes that were replaced"
)
REPLACEMENT_SECONDS: Final = _of_fleet(
    "navarch_replacement_seconds",
    "histogram",
    "seconds",
    POOL,
    "From the decision to the new node in service",
)
LOST_GPU_HOURS: Final = _of_fleet(
    "navarch_lost_gpu_hours_total",
    "counter",
    "GPU-hours",
    FAULT,
    "GPU-hours out of service, by fault signature",
)
REPAIR_SECONDS: Final = _of_fleet(
    "navarch_repair_seconds",
    "histogram",
    "seconds",
    FAULT,
    "From the start of an outage to a node in service",
)
CONSUMER_PENDING: Final = _of_fleet(
    "navarch_consumer_pending",
    "gauge",
    "messages",
    CONSUMER,
    "Messages not yet delivered to any replica of the durable's service",
)
CONSUMER_IN_WORK: Final = _of_fleet(
    "navarch_consumer_in_work",
    "gauge",
    "messages",
    CONSUMER,
    "Messages delivered and not yet acknowledged",
)
CONSUMER_OLDEST: Final = _of_fleet(
    "navarch_consumer_oldest_seconds",
    "gauge",
    "seconds",
    CONSUMER,
    "How long the oldest undelivered message has waited",
)
TELEMETRY_INVALID: Final = _of_fleet(
    "navarch_telemetry_invalid_total", "counter", "samples", (), "Samples that could not be read"
)
LEFT_OUT: Final = _of_fleet(
    "navarch_series_left_out",
    "gauge",
    "",
    ("label",),
    "Values of a label that are beyond its limit and have no series",
)

FAILURES: Final = _of_process(
    "navarch_failures",
    "gauge",
    "",
    ("failure",),
    "What fails now, by kind: records that cannot be read, pools that cannot be decided on",
)
MESSAGES: Final = _of_process(
    "navarch_messages_total",
    "counter",
    "messages",
    ("durable", "outcome"),
    "Messages settled, by outcome: done, unknown, invalid, retried, dead, set-aside, withheld",
)
MESSAGE_SECONDS: Final = _of_process(
    "navarch_message_seconds",
    "histogram",
    "seconds",
    ("durable",),
    "Time from taking a message to settling it",
)
LAG_MESSAGES: Final = _of_process(
    "navarch_consumer_lag_messages",
    "gauge",
    "messages",
    ("durable",),
    "Messages that wait behind the last one taken",
)
LAG_SECONDS: Final = _of_process(
    "navarch_consumer_lag_seconds",
    "gauge",
    "seconds",
    ("durable",),
    "Age of the last message taken",
)
METRIC_PUSHES: Final = _of_process(
    "navarch_metric_pushes_total",
    "counter",
    "",
    ("outcome",),
    "Times that metrics were sent by OTLP: done, failed",
)
BUILD_INFO: Final = _of_process(
    "navarch_build_info", "gauge", "", ("version",), "1; the version that the process runs"
)
CLOCK_AHEAD: Final = _of_process(
    "navarch_clock_ahead_seconds",
    "gauge",
    "seconds",
    (),
    "How far this host's clock is ahead of the server's, which alone counts",
)
PLUGIN_CALLS: Final = _of_process(
    "navarch_plugin_calls_total", "counter", "", PLUGIN, "Calls of a plugin"
)
PLUGIN_FAILURES: Final = _of_process(
    "navarch_plugin_failures_total",
    "counter",
    "",
    PLUGIN,
    "Calls of a plugin that raised what its contract lacks, answered wrongly, or not in time",
)
PLUGIN_BLOCKED: Final = _of_process(
    "navarch_plugin_blocked_seconds_total",
    "counter",
    "seconds",
    PLUGIN,
    "Time for which a plugin kept its thread from everything else",
)
PLUGIN_WORKS: Final = _of_process(
    "navarch_plugin_works", "gauge", "", PLUGIN, "1; 0: it fails, is off, or is disabled somewhere"
)
PLUGINS: Final = (PLUGIN_CALLS, PLUGIN_FAILURES, PLUGIN_BLOCKED, PLUGIN_WORKS)

FAULTS_JUDGED: Final = _of_health(
    "navarch_faults_judged_total", ("kind", "result"), "Faults judged, by kind and result"
)
VERDICTS: Final = _of_health("navarch_verdicts_total", ("status",), "Verdicts published")
CONDITIONS_RAISED: Final = _of_health(
    "navarch_policy_conditions_raised_total",
    ("rule",),
    "Conditions that could not be evaluated for a fault (a metric is missing); no match",
)
SILENCES: Final = _of_health(
    "navarch_node_silences_total",
    ("fact",),
    "Nodes that fell silent (lost) and came back (returned)",
)
LEVELS: Final = _of_health(
    "navarch_levels_total",
    ("level", "edge"),
    "Levels in telemetry that lasted (begun) and that ended (over)",
)
SAMPLES_JUDGED: Final = _of_health(
    "navarch_samples_judged_total",
    ("outcome",),
    "Samples compared with the policy's levels: judged, invalid, or late and passed over",
)
POLICY_LOADS: Final = _of_health(
    "navarch_policy_loads_total",
    ("outcome",),
    "Policy files read: loaded, or refused because they are wrong",
)

SINK_EVENTS: Final = MetricSpec(
    "navarch_sink_events_total",
    "counter",
    "events",
    ("sink", "outcome"),
    "notifier",
    "Events of a sink settled: delivered, filtered, refused, expired, too-large, invalid",
)
SINK_PENDING: Final = MetricSpec(
    "navarch_sink_pending_events",
    "gauge",
    "events",
    ("sink",),
    "notifier",
    "Events that wait for a sink, before its filters of pools, severity and labels",
)
SINK_OLDEST: Final = MetricSpec(
    "navarch_sink_oldest_seconds",
    "gauge",
    "seconds",
    ("sink",),
    "notifier",
    "How long the oldest event that waits for a sink has waited",
)

HTTP_REQUESTS: Final = MetricSpec(
    "navarch_http_requests_total",
    "counter",
    "",
    ("method", "route", "status"),
    "gateway",
    "HTTP requests answered, by method, route and status",
)
HTTP_STREAMS: Final = MetricSpec(
    "navarch_http_event_streams", "gauge", "", (), "gateway", "Event streams that are open"
)

METRICS: Final = tuple(each for each in list(globals().values()) if isinstance(each, MetricSpec))
"""All of them, in the order of the table."""

LABEL_VALUES_MAX: Final[Mapping[str, int]] = {
    "pool": 1_000,
    "node": 20_000,
    "node_id": 20_000,
    "gpu": 64,
    "xid": 1_000,
    "fault": 1_000,
    "provider": 100,
    "stream": 100,
    "durable": 100,
    "sink": 100,
    "rule": 1_000,
    "condition": 100,
    "scope": 65,
    "route": 200,
    "plugin": 1_000,
    **dict.fromkeys(("kind", "status", "state", "command", "direction", "label"), 50),
    **dict.fromkeys(
        ("failure", "outcome", "version", "result", "fact", "level", "edge", "method"), 50
    ),
}
"""How many values each label can have at once, whatever agents and callers send.

Labels of the last two lines have the values of an enumeration."""
GPU_INDEX_MAX: Final = LABEL_VALUES_MAX["gpu"] - 1
XID_CODE_MAX: Final = LABEL_VALUES_MAX["xid"] - 2
"""Codes beyond it count as `other`."""
NODE_XIDS_MAX: Final = 16
"""Codes of one node that have a series each; what else its agent sends counts as `other`."""
OTHER: Final = "other"
