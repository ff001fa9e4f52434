"""Every stream, bucket and durable, with every option spelt out; set-up makes the server match.

Names stay under 32 characters. A durable's `ack_wait` is short because the consumer loop keeps what
it holds alive by progress signs; so what a killed service held comes back within two seconds.
"""

from typing import Any, Final

import msgspec

from schemas import subjects

SECOND_NS: Final = 1_000_000_000
DAY_SECONDS: Final = 86_400
SERVER_VERSION_MIN: Final = (2, 12, 0)
"""Scheduled messages came with 2.12."""

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
    """True: one replica whatever the cluster has; the stream is worth little."""

    def config(self, replicas: int) -> dict[str, Any]:
        """The server's JSON form (`$JS.API.STREAM.CREATE`)."""
        config: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "subjects": list(self.subjects),
            "retention": self.retention,
            "discard": self.discard,
            "storage": "file",
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
        if self.schedules:
            config["allow_msg_schedules"] = True
        if self.message_ttl:
            config["allow_msg_ttl"] = True
        if self.delete_marker_ttl_seconds:
            config["subject_delete_marker_ttl"] = int(self.delete_marker_ttl_seconds * SECOND_NS)
        return config


class BucketSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One key-value bucket and who alone writes it."""

    name: str
    description: str
    writer: str
    marker_ttl_seconds: float = 3600
    """How long the marker of a removed key stands, for watchers that were away."""
    bytes_max: int = -1

    def stream(self) -> StreamSpec:
        """The stream behind the bucket."""
        return StreamSpec(
            name=f"KV_{self.name}",
            description=self.description,
            subjects=(f"$KV.{self.name}.>",),
            discard="new",
            bytes_max=self.bytes_max,
            messages_per_subject_max=1,
            duplicate_window_seconds=120,
            message_ttl=True,
            delete_marker_ttl_seconds=self.marker_ttl_seconds,
            rollup=True,
            deny_delete=True,
        )


class ObjectBucketSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One bucket of the object store and who alone writes it."""

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
        """The stream behind the bucket, whose oldest makes room for what is new."""
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
    deliveries_max: int = 20
    """After this many the loop dead-letters the message itself; the server's own bound is higher,
    and trips only where a message kills its consumer every time."""
    in_flight_max: int = 256
    """Messages one process holds at once."""
    ack_pending_max: int = 20_000
    """Messages all replicas hold at once."""

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
            "max_deliver": self.deliveries_max + 10,
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
    description="The last samples of each node: the time series itself",
    subjects=(subjects.TELEMETRY,),
    age_max_seconds=900,
    bytes_max=1 * GIB,
    messages_per_subject_max=120,
    duplicate_window_seconds=1,
    replicas_one=True,
)
EVENTS: Final = StreamSpec(
    name="EVENTS",
    description="Facts about nodes, pools and the fleet's services",
    subjects=(subjects.NODE_EVENTS, subjects.POOL_EVENTS, subjects.FLEET_EVENTS),
    age_max_seconds=30 * DAY_SECONDS,
    bytes_max=2 * GIB,
)
REQUESTS: Final = StreamSpec(
    name="REQUESTS",
    description="What people ask of pools: a work queue",
    subjects=(subjects.POOL_REQUESTS,),
    retention="workqueue",
    age_max_seconds=1 * DAY_SECONDS,
    bytes_max=256 * MIB,
)
SAGAS: Final = StreamSpec(
    name="SAGAS",
    description="Saga logs; open sagas never age out",
    subjects=(subjects.SAGAS,),
    discard="new",
    bytes_max=1 * GIB,
)
TIMERS: Final = StreamSpec(
    name="TIMERS",
    description="Deadlines and retries: scheduled messages and what they fire into",
    subjects=(subjects.TIMERS,),
    retention="workqueue",
    bytes_max=256 * MIB,
    schedules=True,
    rollup=True,
    message_ttl=True,
)
DEAD: Final = StreamSpec(
    name="DEAD",
    description="Messages that could not be used, with the reason",
    subjects=(subjects.DEAD, subjects.MAX_DELIVERIES),
    age_max_seconds=30 * DAY_SECONDS,
    bytes_max=256 * MIB,
)
STREAMS: Final = (TELEMETRY, EVENTS, REQUESTS, SAGAS, TIMERS, DEAD)

POOLS: Final = BucketSpec(
    name="POOLS", description="What is wanted and what is under way", writer="pool-manager"
)
NODES: Final = BucketSpec(name="NODES", description="Nodes", writer="pool-manager")
HEALTH: Final = BucketSpec(name="HEALTH", description="Health of nodes", writer="health-monitor")
INSTANCES: Final = BucketSpec(
    name="INSTANCES", description="What costs money", writer="provisioner"
)
OFFERINGS: Final = BucketSpec(
    name="OFFERINGS", description="What is exhausted, since when; prices", writer="provisioner"
)
HARDWARE: Final = BucketSpec(
    name="HARDWARE",
    description="GPUs and hosts that are not admitted any more",
    writer="pool-manager",
    bytes_max=64 * MIB,
)
HEARTBEATS: Final = BucketSpec(
    name="HEARTBEATS", description="Agents that are alive", writer="agents"
)
LEASES: Final = BucketSpec(
    name="LEASES",
    description="Who does what only one may do, and whose turn it is",
    writer="every service, its own keys",
    marker_ttl_seconds=60,
)
REPAIRS: Final = BucketSpec(
    name="REPAIRS",
    description="What sick nodes have cost up to now: the sum over all that was told",
    writer="metrics",
)
BUCKETS: Final = (POOLS, NODES, HEALTH, INSTANCES, OFFERINGS, HARDWARE, HEARTBEATS, LEASES, REPAIRS)

EVIDENCE: Final = ObjectBucketSpec(
    name="EVIDENCE",
    description="What was known of each node that was sick, for whoever repairs it",
    writer="metrics",
    age_max_seconds=180 * DAY_SECONDS,
    bytes_max=4 * GIB,
)
OBJECT_BUCKETS: Final = (EVIDENCE,)

HEALTH_EVENTS: Final = DurableSpec(
    stream=EVENTS.name,
    name="health-events",
    description="health-monitor: faults to judge, nodes to judge anew",
    filters=tuple(
        subjects.node_event_wildcard(fact)
        for fact in ("fault", "registered", "boot-checked", "uncordoned", "terminated")
    ),
)
HEALTH_TIMERS: Final = DurableSpec(
    stream=TIMERS.name,
    name="health-timers",
    description="health-monitor: degraded nodes to look at again",
    filters=(subjects.timer_due_wildcard("health-monitor"),),
)
POOL_NODE_EVENTS: Final = DurableSpec(
    stream=EVENTS.name,
    name="pool-node-events",
    description="pool-manager: what changes a node",
    filters=tuple(
        subjects.node_event_wildcard(fact)
        for fact in ("registered", "boot-checked", "verdict", "lost", "returned", "preempting")
    ),
)
POOL_REQUESTS: Final = DurableSpec(
    stream=REQUESTS.name,
    name="pool-requests",
    description="pool-manager: what people ask",
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
    description="provisioner: instances to make and to remove, nodes to reset and to reboot",
    filters=(
        subjects.saga_step_wildcard("provision", "started"),
        subjects.saga_step_wildcard("provision", "undo-started"),
        subjects.saga_step_wildcard("bootstrap", "started"),
        subjects.saga_step_wildcard("terminate", "started"),
        subjects.saga_step_wildcard("reset", "started"),
        subjects.saga_step_wildcard("reboot", "started"),
        subjects.saga_step_wildcard("check", "started"),
    ),
    # Launches wait here for capacity; terminations must not wait behind them.
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
    # A drain may be waited for over many restarts; each step's own deadline bounds its failures.
    deliveries_max=1_000,
    in_flight_max=4096,
)
NOTIFIER_ALERTS: Final = DurableSpec(
    stream=EVENTS.name,
    name="notifier-alerts",
    description="notifier: what people are told",
    filters=(
        *(
            subjects.pool_event_wildcard(fact)
            for fact in (
                "breaker-opened",
                "breaker-closed",
                "incident",
                "saga-failed",
                "saga-stuck",
                "saga-overdue",
                "node-refused",
                "node-replaced",
                "operator-needed",
                "instance-leaked",
                "launch-refused",
            )
        ),
        subjects.node_event_wildcard("verdict"),
        subjects.node_event_wildcard("lost"),
        subjects.FLEET_EVENTS,
    ),
)
METRICS_EVENTS: Final = DurableSpec(
    stream=EVENTS.name,
    name="metrics-events",
    description="metrics: counters over the fleet's facts",
    filters=(subjects.NODE_EVENTS, subjects.POOL_EVENTS),
    in_flight_max=1024,
)
METRICS_EVIDENCE: Final = DurableSpec(
    stream=EVENTS.name,
    name="metrics-evidence",
    description="metrics: unhealthy nodes, to keep evidence of them, and the ends of their outages",
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
    HEALTH_EVENTS,
    HEALTH_TIMERS,
    POOL_NODE_EVENTS,
    POOL_REQUESTS,
    POOL_SAGAS,
    POOL_TIMERS,
    PROVISIONER_STEPS,
    NOTIFIER_STEPS,
    NOTIFIER_ALERTS,
    METRICS_EVENTS,
    METRICS_EVIDENCE,
)
