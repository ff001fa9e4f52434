"""Every stream, bucket and durable with all options; `services.bus.topology_setup` creates them.

Names stay under 32 characters. A durable's `ack_wait` is short because the consumer loop extends it
by progress acknowledgements; messages of a killed service are redelivered within two seconds.
"""

from typing import Any, Final

import msgspec

from schemas import subjects

SECOND_NS: Final = 1_000_000_000
DAY_SECONDS: Final = 86_400
SERVER_VERSION_MIN: Final = (2, 12, 0)
"""The first version with scheduled messages."""

MESSAGE_BYTES_MAX: Final = 1_048_576
DUPLICATE_WINDOW_SECONDS: Final = 600


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One stream."""

    name: str
    description: str
    subjects: tuple[str, ...]
    retention: str = "limits"
    discard: str = "old"
    age_max_seconds: float = 0
    bytes_max: int = -1
    messages_per_subject_max: int = -1
    message_bytes_max: int = MESSAGE_BYTES_MAX
    duplicate_window_seconds: float = DUPLICATE_WINDOW_SECONDS
    schedules: bool = False
    message_ttl: bool = False
    delete_marker_ttl_seconds: float = 0
    rollup: bool = False
    deny_delete: bool = False
    compression: str = "none"
    replicas_one: bool = False
    """True: one replica in any cluster, because the stream is expendable."""
    in_memory: bool = False
    """True: lost when every server restarts; who writes it and who reads it must bear that."""
    unsynced: bool = False
    """True: acknowledged before it is on disk; a power cut loses the last writes."""
    live: bool = False
    """Whether the server publishes a copy of each stored message under `subjects.LIVE`."""

    def config(self, replicas: int) -> dict[str, Any]:
        """The server's JSON form (`$JS.API.STREAM.CREATE`)."""
        config: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "subjects": list(self.subjects),
            "retention": self.retention,
            "discard": self.discard,
            "storage": "memory" if self.in_memory else "file",
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": self.bytes_max,
            "max_age": int(self.age_max_seconds * SECOND_NS),
            "max_msgs_per_subject": self.messages_per_subject_max,
            "max_msg_size": self.message_bytes_max,
            "duplicate_window": int(self.duplicate_window_seconds * SECOND_NS),
            "num_replicas": 1 if self.replicas_one else replicas,
            "no_ack": False,
            "deny_delete": self.deny_delete,
            "deny_purge": False,
            "allow_rollup_hdrs": self.rollup,
            "allow_direct": True,
            "compression": self.compression,
        }
        if self.unsynced:
            config["persist_mode"] = "async"
        if self.live:
            config["republish"] = {"src": ">", "dest": f"{subjects.LIVE}.>"}
        if self.schedules:
            config["allow_msg_schedules"] = True
        if self.message_ttl:
            config["allow_msg_ttl"] = True
        if self.delete_marker_ttl_seconds:
            config["subject_delete_marker_ttl"] = int(self.delete_marker_ttl_seconds * SECOND_NS)
        return config


class BucketSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One key-value bucket and its only writer."""

    name: str
    description: str
    writer: str
    marker_ttl_seconds: float = 3600
    """How long the marker of a removed key is kept for disconnected watchers. 0: there are none,
    and no message can remove others, as the header `Nats-Rollup` does."""
    bytes_max: int = -1
    message_bytes_max: int = MESSAGE_BYTES_MAX
    in_memory: bool = False
    live: bool = False

    def stream(self) -> StreamSpec:
        """The stream behind the bucket."""
        return StreamSpec(
            name=f"KV_{self.name}",
            description=self.description,
            subjects=(f"$KV.{self.name}.>",),
            discard="new",
            bytes_max=self.bytes_max,
            messages_per_subject_max=1,
            message_bytes_max=self.message_bytes_max,
            duplicate_window_seconds=120,
            message_ttl=True,
            delete_marker_ttl_seconds=self.marker_ttl_seconds,
            rollup=self.marker_ttl_seconds > 0,  # the server requires it for markers
            deny_delete=True,
            in_memory=self.in_memory,
            live=self.live,
        )


class ObjectBucketSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One object store bucket and its only writer."""

    name: str
    description: str
    writer: str
    age_max_seconds: float
    bytes_max: int

    @property
    def stream_name(self) -> str:
        """The stream behind the bucket."""
        return f"OBJ_{self.name}"

    def stream(self) -> StreamSpec:
        """The stream behind the bucket; it discards the oldest objects."""
        return StreamSpec(
            name=self.stream_name,
            description=self.description,
            subjects=(f"$O.{self.name}.C.>", f"$O.{self.name}.M.>"),
            age_max_seconds=self.age_max_seconds,
            bytes_max=self.bytes_max,
            duplicate_window_seconds=120,
            compression="s2",
            rollup=True,
        )


class DurableSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One durable pull consumer, shared by all replicas of its service."""

    stream: str
    name: str
    description: str
    filters: tuple[str, ...]
    ack_wait_seconds: float = 2.0
    deliveries_max: int = -1
    """The server's own limit; -1: none, since a bus that fails for days must lose nothing."""
    failures_max: int = 20
    """A message whose handler raised this often, without any bus error, is dead-lettered."""
    in_flight_max: int = 256
    """Messages that one process holds at once."""
    ack_pending_max: int = 20_000
    """Messages that all replicas hold at once."""

    def config(self, replicas: int) -> dict[str, Any]:
        """The server's JSON form (`$JS.API.CONSUMER.DURABLE.CREATE`)."""
        return {
            "durable_name": self.name,
            "name": self.name,
            "description": self.description,
            "filter_subjects": list(self.filters),
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": int(self.ack_wait_seconds * SECOND_NS),
            "max_deliver": self.deliveries_max,
            "max_ack_pending": self.ack_pending_max,
            "max_waiting": 512,
            "replay_policy": "instant",
            "num_replicas": replicas,
            "mem_storage": False,
        }


MIB: Final = 1_048_576
GIB: Final = 1024 * MIB

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
EVENTS: Final = StreamSpec(
    name="EVENTS",
    description="Events about nodes, pools and the fleet's services",
    subjects=(subjects.NODE_EVENTS, subjects.POOL_EVENTS, subjects.FLEET_EVENTS),
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
    description="Saga logs; entries of open sagas do not expire",
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
STREAMS: Final = (TELEMETRY, EVENTS, REQUESTS, SAGAS, TIMERS, DEAD)

POOLS: Final = BucketSpec(
    name="POOLS",
    description="Desired sizes, open sagas and safety state",
    writer="pool-manager",
    live=True,
)
NODES: Final = BucketSpec(name="NODES", description="Nodes", writer="pool-manager", live=True)
HEALTH: Final = BucketSpec(
    name="HEALTH", description="Health of nodes", writer="health-monitor", live=True
)
INSTANCES: Final = BucketSpec(
    name="INSTANCES",
    description="Instances, from their launch to their confirmed absence",
    writer="provisioner",
)
OFFERINGS: Final = BucketSpec(
    name="OFFERINGS",
    description="Exhausted and blocked offerings, prices, reserved spend",
    writer="provisioner",
)
HARDWARE: Final = BucketSpec(
    name="HARDWARE",
    description="Denylist: GPUs and hosts that must not be admitted",
    writer="pool-manager",
    bytes_max=64 * MIB,
)
HEARTBEATS: Final = BucketSpec(
    name="HEARTBEATS",
    description="Heartbeats of agents",
    writer="agents",
    marker_ttl_seconds=0,
    message_bytes_max=4096,
    in_memory=True,
)
LEASES: Final = BucketSpec(
    name="LEASES",
    description="Leases and rate limits",
    writer="every service, its own keys",
    marker_ttl_seconds=60,
)
REPAIRS: Final = BucketSpec(
    name="REPAIRS",
    description="Cost of outages: totals over all `repaired` events",
    writer="metrics",
)
ALERTS: Final = BucketSpec(
    name="ALERTS",
    description="Alerts that were sent and have not ended",
    writer="notifier",
    bytes_max=64 * MIB,
)
BUCKETS: Final = (
    *(POOLS, NODES, HEALTH, INSTANCES, OFFERINGS, HARDWARE, HEARTBEATS, LEASES, REPAIRS, ALERTS),
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

HEALTH_EVENTS: Final = DurableSpec(
    stream=EVENTS.name,
    name="health-events",
    description="health-monitor: faults, and events after which a node's health is evaluated",
    filters=tuple(
        subjects.node_event_wildcard(fact)
        for fact in ("fault", "registered", "boot-checked", "uncordoned", "terminated")
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
    filters=(
        subjects.saga_step_wildcard("provision", "started"),
        subjects.saga_step_wildcard("provision", "undo-started"),
        subjects.saga_step_wildcard("bootstrap", "started"),
        subjects.saga_step_wildcard("terminate", "started"),
        subjects.saga_step_wildcard("reset", "started"),
        subjects.saga_step_wildcard("reboot", "started"),
        subjects.saga_step_wildcard("check", "started"),
    ),
    # Launches wait here for capacity and must not delay terminations.
    in_flight_max=8192,
)
NOTIFIER_STEPS: Final = DurableSpec(
    stream=SAGAS.name,
    name="notifier-steps",
    description="notifier: the workload system's cordon, uncordon and drain",
    filters=(
        subjects.saga_step_wildcard("cordon", "started"),
        subjects.saga_step_wildcard("cordon", "undo-started"),
        subjects.saga_step_wildcard("uncordon", "started"),
        subjects.saga_step_wildcard("reserve", "started"),
        subjects.saga_step_wildcard("open", "started"),
        subjects.saga_step_wildcard("promote", "started"),
        subjects.saga_step_wildcard("drain", "started"),
        subjects.saga_step_wildcard("vacate", "started"),
    ),
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
                "operator-needed",
                *("saga-failed", "saga-stuck", "saga-overdue", "saga-cancelled"),
                *("node-refused", "node-replaced", "pool-removed"),
                *("instance-leaked", "launch-refused"),
            )
        ),
        *(
            subjects.node_event_wildcard(fact)
            for fact in (
                *("verdict", "lost", "returned", "terminated", "admitted", "promoted"),
                *("cordoned", "uncordoned", "drained", "remediated"),
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
