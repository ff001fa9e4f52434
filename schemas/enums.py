"""Closed sets of codes shared by events, records, metrics and messages."""

from typing import Final, Literal, get_args

# --- health --------------------------------------------------------------------------------------

HealthStatus = Literal["healthy", "degraded", "unhealthy", "unknown"]
"""A node's health; `unknown` until it has registered."""

Action = Literal["none", "restart_app", "reset_gpu", "reboot", "replace", "inspect"]
"""Action of a verdict."""

FaultKind = Literal[
    "xid",
    "sxid",
    "fallen_off_bus",
    "gpu_lost",
    "ecc_dbe",
    "ecc_sbe",
    "row_remap",
    "page_retirement",
    "thermal",
    "power",
    "nvlink",
    "pcie",
    "fabric",
    "probe_failed",
    "probe_hung",
    "gpu_count",
    "lines_lost",
    "diagnostic",
    "preemption",
    "maintenance",
]
"""Kind of a fault; `event.event_type` in a health policy."""

DrillReach = Literal["", "drain", "act"]
"""How far a drill goes. Empty: it is none; drain: its node is cordoned and drained; act: what the
health policy demands is done."""
DrillKind = Literal[
    "xid",
    "sxid",
    "fallen_off_bus",
    "gpu_lost",
    "ecc_dbe",
    "row_remap",
    "thermal",
    "power",
    "nvlink",
    "pcie",
    "fabric",
    "probe_hung",
]
"""Kinds of faults that a drill may have."""

SwitchSeverity = Literal["nonfatal", "link-fatal", "fatal"]
"""Subcode of an SXID: the severity that its line gives, gravest last; of an NVLink 5 fault, too."""

NvlinkClass = Literal[
    "ignore", "threshold", "sympathetic", "repeated", "signal", "connection", "ecc"
]
"""Subcode of XID 74, gravest last. ecc: likely hardware, on the third report of one link;
connection: check seating, possibly hardware; signal: a marginal channel; repeated: report if it
repeats; sympathetic: follows another fault, which decides; threshold: corrected errors passed a
threshold; ignore: harmless."""

SUBCODES: Final[dict[FaultKind, tuple[str, ...]]] = {
    "sxid": get_args(SwitchSeverity),
    "gpu_lost": ("vanished",),
    "row_remap": ("failed", "pending", "uncorrectable"),
    "thermal": ("hw_slowdown",),
    "power": ("power_brake",),
    "nvlink": ("all_down", "down", "errors", "slow"),
    "pcie": ("generation", "replays", "width"),
    "fabric": ("failed", "health", "left", "rdma"),
    "probe_failed": ("failing", "kmsg", "mismatch", "not_loaded", "silent"),
    "fallen_off_bus": (),
    "ecc_dbe": (),
    "ecc_sbe": (),
    "page_retirement": (),
    "gpu_count": (),
    "lines_lost": (),
}
"""Subcodes that the agent reports; a kind that is not here has any text. Telemetry levels add their
names to those of their kind."""
NVLINK_CODE: Final = 74
NVLINK5_CODES: Final = range(144, 151)
RECOVERY_ACTION_CODE: Final = 154
XIDS_WITH_TEXT: Final = frozenset({*NVLINK5_CODES, RECOVERY_ACTION_CODE})
"""XIDs whose subcode is a text of the driver."""

PROGRAM_CODES: Final = frozenset({8, 13, 31, 32, 43, 45, 68, 69})
"""XIDs that a program can cause; the kernel log line names its process."""

IncidentScope = Literal["pool", "job", "rack", "zone", "provider", "driver"]
"""What the nodes of one incident have in common."""

AlertKind = Literal[
    "verdict",
    "lost",
    "operator-needed",
    "node-refused",
    "machine-refused",
    "identity-changed",
    "breaker-opened",
    "quarantine-full",
    "on-demand-short",
    "pool-condition",
    "incident",
    "saga-failed",
    "saga-stuck",
    "saga-overdue",
    "instance-leaked",
    "launch-refused",
    "stopped",
    "lag",
    "unknown-error",
    "service-failure",
    "test",
]
"""The events that alert operators, and the alert that `navarch alerts test` sends."""

# --- nodes and instances -------------------------------------------------------------------------

NodeState = Literal["launching", "registered", "active", "leaving", "terminated"]
"""launching: a launch was decided; registered: its agent registered; active: admitted;
leaving: a saga removes it; terminated: the provider confirmed that it is gone."""

InstanceState = Literal["intended", "running", "terminating", "terminated", "leaked", "orphaned"]
"""intended: recorded before the provider call; leaked: it should be gone and is not."""

HardwareKind = Literal["gpu", "serial", "host"]
"""What identifies hardware: a GPU's UUID, its serial, or the provider's name of the host."""

# --- sagas ---------------------------------------------------------------------------------------

SagaKind = Literal[
    "replace",
    "scale-up",
    "scale-down",
    "promote",
    "drain",
    "cordon",
    "uncordon",
    "reset-gpu",
    "reboot",
    "quarantine",
    "recheck",
    "cordon-gpus",
]

_LAUNCH: Final = frozenset(
    {"provision", "bootstrap", "register", "reserve", "check", "open", "admit"}
)
SAGA_STEPS: Final[dict[SagaKind, frozenset[str]]] = {
    "replace": _LAUNCH | {"cordon", "promote", "vacate", "drain", "terminate"},
    "scale-up": _LAUNCH,
    "scale-down": frozenset({"cordon", "drain", "terminate"}),
    "promote": frozenset({"promote"}),
    "drain": frozenset({"cordon", "drain"}),
    "cordon": frozenset({"cordon"}),
    "uncordon": frozenset({"uncordon"}),
    "reset-gpu": frozenset({"cordon", "drain", "reset", "check", "uncordon"}),
    "reboot": frozenset({"cordon", "drain", "reboot", "return", "check", "uncordon"}),
    "quarantine": frozenset({"cordon"}),
    "recheck": frozenset({"check", "uncordon"}),
    "cordon-gpus": frozenset({"cordon-gpus"}),
}
"""Steps that a saga of each kind may have; its log allows no entry about another one."""

NoticeEffect = Literal["reclaim", "retire", "reboot", "redeploy", "freeze"]
"""What a provider's notice does to a node. reclaim: it is taken away; retire: the same, days ahead;
reboot: it restarts where it is; redeploy: it restarts on another host, without its local disks;
freeze: it pauses for seconds."""
TAKING: Final[frozenset[NoticeEffect]] = frozenset({"reclaim", "retire"})
"""Effects after which the node is not there any more."""

DrainMode = Literal["deadline", "wait", "immediate"]
"""deadline: wait for the work to finish, at most `drain_timeout`; wait: without limit;
immediate: notify the workload system and continue."""

Remediation = Literal["reset-gpu", "reboot", "replace", "inspect", "alert"]
"""Remediation of an unhealthy node: a saga of that name; inspect: cordon it and alert the operator;
alert: only alert the operator."""

REMEDIES: Final = frozenset(get_args(Remediation))

AttemptOutcome = Literal["open", "recovered", "failed", "cancelled"]
"""Outcome of a reset or a reboot; recovered: the node passed its checks and is in service."""


# --- the breaker ---------------------------------------------------------------------------------

BreakerState = Literal["closed", "open", "half-open"]
"""closed: remediation within the budget; open: none starts; half-open: one probe is allowed."""

BreakerCause = Literal[
    "",
    "level",
    "rate",
    "fleet-level",
    "fleet-rate",
    "reset-rate",
    "fleet-reset-rate",
    "wave",
    "launches-fail",
    "workload-system",
    "probe-failed",
    "restored",
    "operator",
]
"""What opened it. level: the limit of nodes out of service is reached; rate: the limit of
disruptions within the window; reset-rate: the limit of GPU resets and reboots; each of the pool or
of the fleet; wave: an incident on many nodes; launches-fail: new nodes fail to start;
workload-system: it does not cordon nodes; probe-failed: the probe failed; restored: the store was
restored from a backup, and what it says may be outdated; operator: an operator opened it."""

# --- providers -----------------------------------------------------------------------------------

ProviderErrorKind = Literal[
    "CAPACITY", "QUOTA", "UNSUPPORTED", "NETWORK", "THROTTLE", "TRANSIENT", "AUTH", "INVALID"
]
"""Error kinds of every provider; each has a scope that it blocks and a retry rule."""

LaunchRefusal = Literal[
    "nothing-offered", "price-unknown", "above-max-price", "above-pool-cap", "above-fleet-cap"
]
"""Why a launch is refused. nothing-offered: no provider of the pool has a matching offering;
price-unknown: the price is unknown and a price limit applies."""
NO_ROOM: Final = frozenset({"CAPACITY", "QUOTA", "above-pool-cap", "above-fleet-cap"})
"""Why there is no room for one more node beside those that exist."""
OVER_CAP: Final = frozenset({"above-pool-cap", "above-fleet-cap"})
"""Refusals that end when another node of the pool or fleet is removed."""

# --- refusals ------------------------------------------------------------------------------------

Refusal = Literal[
    "invalid-request",
    "unknown-verb",
    "unknown-pool",
    "unknown-node",
    "unknown-saga",
    "above-maximum",
    "below-minimum",
    "saga-open",
    "budget-exhausted",
    "not-active",
    "wrong-state",
    "held",
    "observing",
    "superseded",
]
"""Why a request was refused, in the refusal event and its metric. superseded: a later request
about the same thing was carried out first, or the request waited too long for its answer."""

# --- failures of saga steps ----------------------------------------------------------------------

DEADLINE_PASSED: Final = "deadline-passed"
NOT_ADMITTED: Final = "not-admitted"
TEST_FAILED: Final = "test-failed"
"""A test of a node in service found that NVML does not answer for its GPUs."""
DENIED_HARDWARE: Final = "denied-hardware"
"""Not admitted, since its hardware is on the denylist."""
MISPLACED: Final = "misplaced"
"""Not admitted, since it is in another rack than most of its launch."""
STOPPED: Final = "stopped"
"""The saga was stopped during the step; whether the step took effect is unknown."""
NO_AGENT: Final = "no-agent"
"""The node's agent does not reply, and no other participant can perform the step."""
REFUSED: Final = "refused"
"""The agent refused the command for now."""

# --- instances -----------------------------------------------------------------------------------

NOT_LISTED: Final = "not listed by its provider"
"""Error in the record of a running instance that its provider does not list."""
FORGOTTEN: Final = "an operator had it forgotten"
"""Error in the record of an instance that its provider lists and that no sweep adopts by itself."""
