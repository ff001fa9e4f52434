"""The `stress:` section of a scenario file: the fleet to generate, and how it fails.

Only values: `stress_validation` reports their problems with file, line and key; `stress_fleet` and
`failure_schedule` draw a fleet and its failures from them.
"""

from typing import Annotated, Any, Final, Literal

import msgspec

from schemas.duration import Duration
from schemas.settings import Setting
from services.simulator.engine.fault_kinds import HardwareFault

NODES_MAX: Final = 20_000
RATE_MAX: Final = 10_000.0
DEPTH_MAX: Final = 10
XID_MAX: Final = 1_000
LIST_MAX: Final = 1_000
PERCENT: Final = 100.0

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Weight = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
Percent = Annotated[float, msgspec.Meta(ge=0, le=PERCENT)]
Weights = Annotated[dict[str, Weight], msgspec.Meta(max_length=LIST_MAX)]

FailureType = HardwareFault | Literal["nvml_failure"]
"""`nvml_failure` is the older word for `backend_error`."""
OLDER_WORDS: Final[dict[str, FailureType]] = {"nvml_failure": "backend_error"}

Pattern = Literal["instant", "linear", "exponential", "wave"]
STARTUP_SECONDS: Final[dict[Pattern, float]] = {
    "instant": 0.0,
    "linear": 30.0,
    "exponential": 120.0,
    "wave": 300.0,
}
"""How long a fleet takes to start, unless the file says otherwise."""
BATCH_SIZE: Final = 100
AUTOSCALING: Final = ("autoscaling", "autoscaler")
"""Two spellings of a pool's key."""
CascadeScope = Literal["rack", "zone", "region", "provider", "random"]
OutageScope = Literal["rack", "zone", "region", "provider", "percentage"]
CorrelationScope = Literal[
    "same_node", "same_rack", "same_zone", "same_region", "same_provider", "random"
]


class TemplateSpec(Setting, frozen=True, kw_only=True):
    """A kind of node; each is one pool at each provider."""

    name: str
    weight: Weight = 1.0
    gpu_count: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    gpu_type: str = ""
    instance_type: str = ""
    """Empty: the template's name."""
    price_per_hour: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Of one node; the report has the dollars paid."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class StartupSpec(Setting, frozen=True, kw_only=True):
    """When the nodes are wanted, and how long a machine boots."""

    pattern: Pattern = "instant"
    """linear: evenly; exponential: 1, 2, 4, 8 …; wave: `batch_size` at a time."""
    duration: Duration | None = None
    """None: as STARTUP_SECONDS."""
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=NODES_MAX)] | None = None
    """None: BATCH_SIZE."""
    jitter_percent: Percent = 0.0
    """Of the time between two batches, or two nodes."""
    cold_start_min: Duration | None = None
    """Drawn evenly between the two; with a mean, they are its bounds."""
    cold_start_max: Duration | None = None
    cold_start_mean: Duration | None = None
    cold_start_stddev: Duration = Duration(0)


class FleetSpec(Setting, frozen=True, kw_only=True):
    """The fleet that is generated."""

    total_nodes: Annotated[int, msgspec.Meta(ge=1, le=NODES_MAX)]
    templates: Annotated[tuple[TemplateSpec, ...], msgspec.Meta(min_length=1, max_length=100)]
    providers: Weights = msgspec.field(default_factory=lambda: {"simulated": 1.0})
    """Provider -> its weight."""
    regions: Weights = msgspec.field(default_factory=lambda: {"region-1": 1.0})
    zones: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Region -> its zones; any other region has one, `<region>-a`."""
    nodes_per_rack: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 16
    """Of one provider and zone; they fail together at scope `rack`."""
    startup: StartupSpec = StartupSpec()
    pool: dict[str, Any] = msgspec.field(default_factory=dict)
    """Further settings of every pool, as in the configuration: `budget`, `health` …"""


class DemandSpec(Setting, frozen=True, kw_only=True):
    """The rate at which jobs arrive from a moment on."""

    at: Duration
    jobs_per_minute: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
    """For all pools together."""


class WorkloadSpec(Setting, frozen=True, kw_only=True):
    """Jobs that arrive, wait for a place on a node, and run."""

    demand: Annotated[tuple[DemandSpec, ...], msgspec.Meta(min_length=1, max_length=LIST_MAX)]
    jobs_per_node: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1
    """Places per node."""
    job_mean: Duration = Duration(300)
    job_stddev: Duration = Duration(0)


class FailureTypeSpec(Setting, frozen=True, kw_only=True):
    """Says how often a failure is of a type."""

    type: FailureType
    weight: Weight = 1.0


class CascadingSpec(Setting, frozen=True, kw_only=True):
    """A failure can cause others nearby."""

    enabled: bool = True
    probability: Share = 0.0
    """Of each failure."""
    max_depth: Annotated[int, msgspec.Meta(ge=0, le=DEPTH_MAX)] = 3
    """0: no failure causes another; 1: a caused failure causes no further one."""
    min_delay: Duration = Duration(1)
    max_delay: Duration = Duration(10)
    scope: CascadeScope = "zone"
    max_affected_percent: Percent = 0.1
    """Of the nodes within the scope, for the whole chain; up to 1 it is a share: 0.1 is 10 %."""


class RecoverySpec(Setting, frozen=True, kw_only=True):
    """Says which failures pass by themselves, and whether fatal ones are replaced."""

    enabled: bool = True
    probability: Share = 1.0
    """Of a failure that is not fatal."""
    mean_time: Duration = Duration(300)
    std_dev: Duration = Duration(0)
    min_time: Duration = Duration(1)
    replace_fatal: bool = True
    """False: an unhealthy node stays cordoned."""
    replace_cold_start: Duration | None = None
    """How long a replacement boots; None: as at the start."""


class OutageSpec(Setting, frozen=True, kw_only=True):
    """Describes an outage in which all nodes of one place fail at once, for a while."""

    name: str
    start_time: Duration
    duration: Duration
    scope: OutageScope
    target: str
    """A rack, zone, region or provider; for `percentage`, how many percent of all nodes."""
    failure_type: FailureType = "network"
    xid: Annotated[int, msgspec.Meta(ge=0, le=XID_MAX)] = 0
    """Of `xid_error`; 0: drawn for each node."""


class CorrelationSpec(Setting, frozen=True, kw_only=True):
    """One kind of failure causes another."""

    name: str
    trigger: str
    """An XID code, or a failure type."""
    response: FailureType
    probability: Share = 1.0
    delay: Duration = Duration(0)
    scope: CorrelationScope = "same_node"


class ChaosSpec(Setting, frozen=True, kw_only=True):
    """Says which parts of the fleet fail."""

    enabled: bool = True
    failure_rate: Annotated[float, msgspec.Meta(ge=0, le=RATE_MAX)] = 0.0
    """Failures a minute for each 1,000 nodes."""
    xid_distribution: Weights = msgspec.field(default_factory=dict)
    """XID -> weight; empty: 79 alone."""
    failure_types: Annotated[tuple[FailureTypeSpec, ...], msgspec.Meta(max_length=LIST_MAX)] = ()
    """Empty: `xid_error` alone."""
    lasting: bool = True
    """Whether a fatal failure lasts until a remedy fixes it. False: an XID is over once it is
    reported, and every other failure passes as `recovery` says."""
    hot_celsius: Annotated[int, msgspec.Meta(ge=0, le=200)] = 92
    """Of a `temperature` failure."""
    cascading: CascadingSpec = CascadingSpec()
    recovery: RecoverySpec = RecoverySpec()
    scheduled_outages: Annotated[tuple[OutageSpec, ...], msgspec.Meta(max_length=LIST_MAX)] = ()
    correlated_failures: Annotated[
        tuple[CorrelationSpec, ...], msgspec.Meta(max_length=LIST_MAX)
    ] = ()


class StressSpec(Setting, frozen=True, kw_only=True):
    """A whole stress run."""

    duration: Duration
    """Virtual time."""
    clock: Literal["first_node", "after_startup"] = "first_node"
    """When failures, events and `duration` begin to count."""
    metrics_interval: Duration = Duration(10)
    seed: int = 0
    """The same seed and file give the same run, to the byte."""
    report_file: str = ""
    """JSON; relative to the working directory. Empty: none."""
    html_report_file: str = ""
    log_file: str = ""
    """The history and the services' log lines, in virtual time."""
    fleet_gen: FleetSpec
    workload: WorkloadSpec | None = None
    """None: no jobs; GPUs are at a constant utilization."""
    chaos: ChaosSpec = ChaosSpec()


def autoscaling_of(fleet: FleetSpec) -> Any:
    """Every pool's autoscaler; None: pools have the sizes of `startup`."""
    return next((fleet.pool[key] for key in AUTOSCALING if key in fleet.pool), None)


def zones_of(fleet: FleetSpec, region: str) -> tuple[str, ...]:
    """Return a region's zones."""
    return fleet.zones.get(region) or (f"{region}-a",)


def affected_share(spec: CascadingSpec) -> float:
    """`max_affected_percent` as a share: 0.1 and 10 are both a tenth."""
    most = spec.max_affected_percent
    return most if most <= 1 else most / PERCENT
