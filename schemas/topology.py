"""Every stream, bucket and durable with all options; `services.bus.topology_setup` creates them.

Names stay under 32 characters. A durable's `ack_wait` is short because the consumer loop extends it
by progress acknowledgements; messages of a killed service are redelivered within two seconds.
"""

from typing import Final

from schemas import node_events, subjects
from schemas.names import token
from schemas.step_declarations import step_filters
from schemas.stream_specs import DAY_SECONDS, BucketSpec, DurableSpec, ObjectBucketSpec, StreamSpec

SERVER_VERSION_MIN: Final = (2, 12, 0)
"""The first version with scheduled messages."""

MIB: Final = 1_048_576
GIB: Final = 1024 * MIB

FACTS_WAITING_MAX: Final = 32
"""Facts of one kind and node that wait in INTAKE, where the server refuses more. It stores some
4,000 messages a second on a disk that is written each time: 32 take eight milliseconds of that."""

TELEMETRY: Final = StreamSpec(
    name="TELEMETRY",
    description="The last samples of each node",
    subjects=(subjects.TELEMETRY,),
    age_max_seconds=900,
    bytes_max=1 * GIB,
    messages_per_subject_max=120,
    duplicate_window_seconds=1,
    replicas_one=True,
    unsynced=True,
)
INTAKE: Final = StreamSpec(
    name="INTAKE",
    description="Facts of agents on their way into EVENTS: at most 32 of each kind of a node wait",
    subjects=tuple(map(subjects.node_event_wildcard, node_events.FACTS_OF_AGENTS)),
    discard="new",
    bytes_max=256 * MIB,
    messages_per_subject_max=FACTS_WAITING_MAX,
    # With the header of a copy it must fit into EVENTS, or nothing behind it would be copied.
    message_bytes_max=131_072,
    full_subject_refuses=True,
)
EVENTS: Final = StreamSpec(
    name="EVENTS",
    description="Events about nodes, pools and the fleet's services",
    subjects=(
        *map(subjects.node_event_wildcard, node_events.FACTS_OF_SERVICES),
        *(subjects.POOL_EVENTS, subjects.FLEET_EVENTS),
    ),
    sources=(INTAKE.name,),
    age_max_seconds=30 * DAY_SECONDS,
    bytes_max=2 * GIB,
    live=True,
)
REQUESTS: Final = StreamSpec(
    name="REQUESTS",
    description="Requests of operators: a work queue",
    subjects=(subjects.POOL_REQUESTS,),
    retention="workqueue",
    age_max_seconds=1 * DAY_SECONDS,
    bytes_max=256 * MIB,
)
SAGAS: Final = StreamSpec(
    name="SAGAS",
    description="Saga logs: an open one stays, one that has ended is removed after 30 days",
    subjects=(subjects.SAGAS,),
    discard="new",
    bytes_max=1 * GIB,
    live=True,
)
TIMERS: Final = StreamSpec(
    name="TIMERS",
    description="Deadlines and retries: scheduled messages and their targets",
    subjects=(subjects.TIMERS,),
    retention="workqueue",
    bytes_max=256 * MIB,
    schedules=True,
    rollup=True,
    message_ttl=True,
)
DEAD: Final = StreamSpec(
    name="DEAD",
    description="Messages that could not be processed, with the reason",
    subjects=(subjects.DEAD, subjects.MAX_DELIVERIES),
    age_max_seconds=30 * DAY_SECONDS,
    bytes_max=256 * MIB,
)
SINKS: Final = StreamSpec(
    name="SINKS",
    description="What event sinks of type `subject` are sent, as CloudEvents",
    subjects=(subjects.SINKS,),
    age_max_seconds=7 * DAY_SECONDS,
    bytes_max=1 * GIB,
    live=True,
)
STREAMS: Final = (TELEMETRY, INTAKE, EVENTS, REQUESTS, SAGAS, TIMERS, DEAD, SINKS)

POOLS: Final = BucketSpec(
    name="POOLS",
    description="Desired sizes, open sagas and safety state",
    writer="pool-manager",
    ends="a removed pool keeps its name alone; the fleet's entries stay",
    live=True,
)
NODES: Final = BucketSpec(
    name="NODES",
    description="Nodes",
    writer="pool-manager",
    ends="7 days after the node is terminated",
    live=True,
)
HEALTH: Final = BucketSpec(
    name="HEALTH",
    description="Health of nodes",
    writer="health-monitor",
    ends="when the node is terminated; of a node that NODES lacks, after ten minutes of silence",
    live=True,
)
INSTANCES: Final = BucketSpec(
    name="INSTANCES",
    description="Instances, from their launch to their confirmed absence",
    writer="provisioner",
    ends="7 days after the provider confirms its absence",
)
OFFERINGS: Final = BucketSpec(
    name="OFFERINGS",
    description="Exhausted and blocked offerings, prices, reserved spend",
    writer="provisioner",
    ends="replaced by the next about its offering, account or pool",
)
HARDWARE: Final = BucketSpec(
    name="HARDWARE",
    description="Denylist: GPUs and hosts that must not be admitted",
    writer="pool-manager",
    ends="after 180 days, or when an operator removes it",
    bytes_max=64 * MIB,
)
HEARTBEATS: Final = BucketSpec(
    name="HEARTBEATS",
    description="Heartbeats of agents",
    writer="agents",
    ends="after `agent.heartbeat_ttl` without another",
    marker_ttl_seconds=0,
    message_bytes_max=4096,
    in_memory=True,
)
LEASES: Final = BucketSpec(
    name="LEASES",
    description="Leases and rate limits",
    writer="every service, its own keys",
    ends="a lease 3 s after its holder, a pace or suspect after an hour, a message set aside after "
    "7 days; a pool's openings go with the pool, an alert that ALERTS refuses with its end",
    marker_ttl_seconds=60,
)
REPAIRS: Final = BucketSpec(
    name="REPAIRS",
    description="Cost of outages: totals over all `repaired` events",
    writer="metrics",
    ends="stays: one entry",
)
ALERTS: Final = BucketSpec(
    name="ALERTS",
    description="Alerts that were sent and have not ended",
    writer="notifier",
    ends="with the alert; 8 days after the last news of it",
    bytes_max=64 * MIB,
)
ANSWERS: Final = BucketSpec(
    name="ANSWERS",
    description="What pools and nodes wait for, as the pool-manager answered last",
    writer="pool-manager",
    ends="with the pool; replaced at most once a second, by the next that says something else",
    bytes_max=64 * MIB,
)
BUCKETS: Final = (
    *(POOLS, NODES, HEALTH, INSTANCES, OFFERINGS, HARDWARE, HEARTBEATS, LEASES, REPAIRS, ALERTS),
    ANSWERS,
)

EVIDENCE: Final = ObjectBucketSpec(
    name="EVIDENCE",
    description="Evidence about unhealthy nodes",
    writer="metrics",
    age_max_seconds=180 * DAY_SECONDS,
    bytes_max=4 * GIB,
)
OBJECT_BUCKETS: Final = (EVIDENCE,)
EVERY_STREAM: Final = (*STREAMS, *(each.stream() for each in (*BUCKETS, *OBJECT_BUCKETS)))
"""The streams, and those behind the buckets."""
STORED_BYTES_MAX: Final = sum(each.bytes_max for each in EVERY_STREAM if each.bytes_max > 0)
"""What they may hold together, but for buckets that are small without a limit."""

HEALTH_EVENTS: Final = DurableSpec(
    stream=EVENTS.name,
    name="health-events",
    description="health-monitor: faults, and events after which a node's health is evaluated",
    filters=tuple(
        subjects.node_event_wildcard(fact)
        for fact in (
            *("fault", "registered", "boot-checked", "uncordoned", "terminated"),
            *("machine-refused", "drill-started"),
        )
    ),
)
HEALTH_TIMERS: Final = DurableSpec(
    stream=TIMERS.name,
    name="health-timers",
    description="health-monitor: degraded nodes to evaluate again",
    filters=(subjects.timer_due_wildcard("health-monitor"),),
)
POOL_NODE_EVENTS: Final = DurableSpec(
    stream=EVENTS.name,
    name="pool-node-events",
    description="pool-manager: events that change a node",
    filters=tuple(
        subjects.node_event_wildcard(fact)
        for fact in (
            *("registered", "boot-checked", "verdict", "lost", "returned", "provider-notice"),
            *("workload-state", "work-gangs"),
        )
    ),
)
POOL_REQUESTS: Final = DurableSpec(
    stream=REQUESTS.name,
    name="pool-requests",
    description="pool-manager: requests of operators",
    filters=(subjects.POOL_REQUESTS,),
)
POOL_SAGAS: Final = DurableSpec(
    stream=SAGAS.name,
    name="pool-sagas",
    description="pool-manager: the saga coordinator",
    filters=(subjects.SAGAS,),
)
POOL_TIMERS: Final = DurableSpec(
    stream=TIMERS.name,
    name="pool-timers",
    description="pool-manager: deadlines and retries that are due",
    filters=(subjects.timer_due_wildcard("pool-manager"),),
)
PROVISIONER_STEPS: Final = DurableSpec(
    stream=SAGAS.name,
    name="provisioner-steps",
    description="provisioner: instances to launch and terminate, nodes to reset and reboot",
    filters=step_filters("provisioner"),
    # Launches wait here for capacity and must not delay terminations.
    in_flight_max=8192,
)
NOTIFIER_STEPS: Final = DurableSpec(
    stream=SAGAS.name,
    name="notifier-steps",
    description="notifier: the workload system's cordon, uncordon and drain",
    filters=step_filters("notifier"),
    # A drain may outlast many restarts; its failures are limited by the step's deadline.
    failures_max=1_000,
    in_flight_max=4096,
)
NOTIFIER_ALERTS: Final = DurableSpec(
    stream=EVENTS.name,
    name="notifier-alerts",
    description="notifier: events that begin or end alerts",
    filters=(
        *(
            subjects.pool_event_wildcard(fact)
            for fact in (
                *("breaker-opened", "breaker-closed", "quarantine-full", "incident"),
                *("operator-needed", "on-demand-short", "pool-condition"),
                *("saga-failed", "saga-stuck", "saga-overdue", "saga-cancelled"),
                *("node-refused", "node-replaced", "pool-removed"),
                *("instance-leaked", "launch-refused"),
            )
        ),
        *(
            subjects.node_event_wildcard(fact)
            for fact in (
                *("verdict", "lost", "returned", "terminated", "admitted", "promoted"),
                *("cordoned", "uncordoned", "drained", "remediated", "machine-refused"),
                "identity-changed",
            )
        ),
        subjects.FLEET_EVENTS,
    ),
)
NOTIFIER_NODES: Final = DurableSpec(
    stream=EVENTS.name,
    name="notifier-nodes",
    description="notifier: nodes that come and go, for workload systems that list them",
    filters=(
        *(subjects.node_event_wildcard(fact) for fact in ("registered", "admitted", "terminated")),
        subjects.pool_event_wildcard("saga-failed"),
    ),
)
METRICS_EVENTS: Final = DurableSpec(
    stream=EVENTS.name,
    name="metrics-events",
    description="metrics: counters over events",
    filters=(subjects.NODE_EVENTS, subjects.POOL_EVENTS),
    in_flight_max=1024,
)
METRICS_EVIDENCE: Final = DurableSpec(
    stream=EVENTS.name,
    name="metrics-evidence",
    description="metrics: unhealthy nodes and the ends of their outages, for evidence",
    filters=(
        *(
            subjects.node_event_wildcard(fact)
            for fact in ("verdict", "lost", "returned", "uncordoned", "terminated")
        ),
        *(
            subjects.pool_event_wildcard(fact)
            for fact in ("saga-opened", "node-replaced", "saga-failed", "saga-cancelled")
        ),
    ),
    in_flight_max=4,
)
DURABLES: Final = (
    *(HEALTH_EVENTS, HEALTH_TIMERS, POOL_NODE_EVENTS, POOL_REQUESTS, POOL_SAGAS, POOL_TIMERS),
    *(PROVISIONER_STEPS, NOTIFIER_STEPS, NOTIFIER_ALERTS, NOTIFIER_NODES),
    *(METRICS_EVENTS, METRICS_EVIDENCE),
)

SINK_PREFIX: Final = "sink-"
"""Begins the names of the event sinks' durables, of which there are as many as are configured."""
SINK_IN_FLIGHT_MAX: Final = 256


def sink_durable(name: str, filters: tuple[str, ...]) -> DurableSpec:
    """The durable that keeps the position of one event sink in EVENTS."""
    return DurableSpec(
        stream=EVENTS.name,
        name=f"{SINK_PREFIX}{token(name, 'sink')}",
        description=f"notifier: the event sink {name}",
        filters=filters,
        in_flight_max=SINK_IN_FLIGHT_MAX,
        # One replica delivers; what a killed one held leaves little room for what is newer.
        ack_pending_max=SINK_IN_FLIGHT_MAX,
    )
