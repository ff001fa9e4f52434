"""Words that events, records, metrics and messages share: each is declared here, once."""

from typing import Final, Literal, get_args

# --- health --------------------------------------------------------------------------------------

HealthStatus = Literal["healthy", "degraded", "unhealthy", "unknown"]
"""What the policy makes of a node; `unknown` until it has registered."""

Action = Literal["none", "restart_app", "reset_gpu", "reboot", "replace", "inspect"]
"""What a verdict asks for."""

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
"""One observed hardware event's kind; `event.event_type` of a health policy."""

PROGRAM_CODES: Final = frozenset({8, 13, 31, 32, 43, 45, 68, 69})
"""XIDs that a program can bring about; the kernel's line names its process."""

IncidentScope = Literal["pool", "job", "rack", "zone", "provider", "driver"]
"""What the nodes of one incident have in common; narrow before wide."""

# --- nodes and instances -------------------------------------------------------------------------

NodeState = Literal["launching", "registered", "active", "leaving", "terminated"]
"""launching: an instance is intended; registered: its agent has spoken; active: admitted;
leaving: a saga takes it away; terminated: the provider confirmed that it is gone."""

InstanceState = Literal["intended", "running", "terminating", "terminated", "leaked"]
"""intended: recorded before the provider is asked; leaked: it should be gone and is not."""

HardwareKind = Literal["gpu", "serial", "host"]
"""What hardware is recognised by: a GPU's UUID, its serial, the host as its provider names it."""

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
]

DrainMode = Literal["deadline", "wait", "immediate"]
"""deadline: wait for the work to leave, at most `drain_timeout`; wait: for as long as it takes;
immediate: tell the workload system, and go on."""

Remedy = Literal["reset-gpu", "reboot", "replace", "inspect", "alert"]
"""What is done about a sick node: sagas of that name; inspect: it is cordoned and people are told;
alert: people are told, and nothing is touched."""

REMEDIES: Final = frozenset(get_args(Remedy))

AttemptOutcome = Literal["open", "recovered", "failed", "cancelled"]
"""The outcome of a reset or a reboot; recovered: the node passed its checks and serves again."""


# --- the breaker ---------------------------------------------------------------------------------

BreakerState = Literal["closed", "open", "half-open"]
"""closed: sick nodes are repaired within the budget; open: none is begun; half-open: one is being
repaired to see whether it goes well."""

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
    "probe-failed",
    "operator",
]
"""What opened it. level: as many nodes are out of service as may be; rate: as many repairs were
begun within the window as may be; reset-rate: as many GPU resets and reboots; each of the pool or
of the fleet; wave: many nodes have one trouble; launches-fail: new nodes do not come up;
probe-failed: the one repair after it half-opened failed; operator: an operator opened it."""

# --- providers -----------------------------------------------------------------------------------

ProviderErrorKind = Literal[
    "CAPACITY", "QUOTA", "UNSUPPORTED", "NETWORK", "THROTTLE", "TRANSIENT", "AUTH", "INVALID"
]
"""One taxonomy for every provider's errors; each has a scope it blocks and a retry it allows."""

LaunchRefusal = Literal[
    "nothing-offered", "price-unknown", "above-max-price", "above-pool-cap", "above-fleet-cap"
]
"""Why nothing is launched though it could be. nothing-offered: no provider of the pool has what it
asks for; price-unknown: its price is not known, and what it costs is limited."""
OVER_CAP: Final = frozenset({"above-pool-cap", "above-fleet-cap"})
"""Of these, what another node that leaves makes room for."""

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
"""Why a request was refused; stands in the refusal event and in its metric. superseded: a later one
about the same thing was carried out first."""

# --- failures of saga steps ----------------------------------------------------------------------

DEADLINE_PASSED: Final = "deadline-passed"
NOT_ADMITTED: Final = "not-admitted"
STOPPED: Final = "stopped"
"""The saga was called off under way; whether the step has taken effect is not known."""
NO_AGENT: Final = "no-agent"
"""Nobody answers for the node, and nobody else can do what is asked."""
REFUSED: Final = "refused"
"""The agent says that it must not be done now."""

# --- instances -----------------------------------------------------------------------------------

NOT_LISTED: Final = "not listed by its provider"
"""Stands as error in the record of a running instance that its provider does not show."""
