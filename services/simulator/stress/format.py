"""The `stress:` section of a scenario file: what fleet to make, and how it is to fail.

Only values and what is wrong with them; `planning` makes a fleet and a list of failures of it. A
scenario's reader decodes `StressSpec` with the rest of its file and hands it to `check`, so that
every error names file, line and key.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import msgspec

from schemas.duration import Duration
from schemas.names import InvalidNameError, pool_name
from schemas.settings import PoolSpec, Setting
from services.runtime.configuration import Document, Path_, convert

NODES_MAX: Final = 20_000
DURATION_SECONDS_MAX: Final = 24 * 3_600.0
SAMPLES_MAX: Final = 20_000
"""Of `metrics_interval` within `duration`."""
RATE_MAX: Final = 10_000.0
DEPTH_MAX: Final = 10
LIST_MAX: Final = 1_000
XID_MAX: Final = 1_000
PERCENT: Final = 100.0

POOL_OWN: Final = frozenset(
    {"provider", "instance_type", "min_nodes", "max_nodes", "gpu_count", "labels", "autoscaling"}
)
"""Of a pool's configuration, what a stress run makes by itself."""

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Weight = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
Percent = Annotated[float, msgspec.Meta(ge=0, le=PERCENT)]
Weights = Annotated[dict[str, Weight], msgspec.Meta(max_length=LIST_MAX)]

FailureType = Literal[
    "xid_error",
    "temperature",
    "memory_error",
    "nvlink_error",
    "backend_error",
    "nvml_failure",
    "boot_failure",
    "network",
]
"""`nvml_failure` is the older word for `backend_error`."""
OLDER_WORDS: Final[dict[str, FailureType]] = {"nvml_failure": "backend_error"}

Pattern = Literal["instant", "linear", "exponential", "wave"]
CascadeScope = Literal["rack", "zone", "region", "provider", "random"]
OutageScope = Literal["rack", "zone", "region", "provider", "percentage"]
CorrelationScope = Literal[
    "same_node", "same_rack", "same_zone", "same_region", "same_provider", "random"
]


class TemplateSpec(Setting, frozen=True, kw_only=True):
    """A kind of node; each becomes one pool at each provider."""

    name: str
    weight: Weight = 1.0
    gpu_count: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    gpu_type: str = ""
    instance_type: str = ""
    """Empty: the template's name."""
    price_per_hour: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Of one node; the report says what was paid, and for what."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class StartupSpec(Setting, frozen=True, kw_only=True):
    """When the nodes are wanted, and how long a machine takes until its agent speaks."""

    pattern: Pattern = "instant"
    """linear: evenly; exponential: 1, 2, 4, 8 …; wave: `batch_size` at a time."""
    duration: Duration = Duration(0)
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=NODES_MAX)] = 100
    jitter_percent: Percent = 0.0
    """Of the time between two batches, or two nodes."""
    cold_start_min: Duration | None = None
    """Drawn evenly between the two, unless a mean is given; then they are its bounds."""
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
    """Region -> its zones; a region that is not named has one, `<region>-a`."""
    nodes_per_rack: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 16
    """Of one provider and zone: what fails together at scope `rack`."""
    startup: StartupSpec = StartupSpec()
    pool: dict[str, Any] = msgspec.field(default_factory=dict)
    """What every pool is like besides, as in the configuration: `budget`, `health` …"""


class FailureTypeSpec(Setting, frozen=True, kw_only=True):
    """How often a failure is of a type."""

    type: FailureType
    weight: Weight = 1.0


class CascadingSpec(Setting, frozen=True, kw_only=True):
    """A failure may bring about others nearby."""

    enabled: bool = True
    probability: Share = 0.0
    """Of each failure."""
    max_depth: Annotated[int, msgspec.Meta(ge=0, le=DEPTH_MAX)] = 3
    """0: nothing follows; 1: what follows brings about nothing further."""
    min_delay: Duration = Duration(1)
    max_delay: Duration = Duration(10)
    scope: CascadeScope = "zone"
    max_affected_percent: Percent = 0.1
    """Of the nodes within the scope, over the whole chain; up to 1 it is a share: 0.1 is 10 %."""


class RecoverySpec(Setting, frozen=True, kw_only=True):
    """What passes by itself, and whether what does not is replaced."""

    enabled: bool = True
    probability: Share = 1.0
    """Of a failure that is not fatal."""
    mean_time: Duration = Duration(300)
    std_dev: Duration = Duration(0)
    replace_fatal: bool = True
    """False: a node that is unfit stays, cordoned."""
    replace_cold_start: Duration | None = None
    """How long a replacement takes until its agent speaks; None: as at the start."""


class OutageSpec(Setting, frozen=True, kw_only=True):
    """Everything of one place fails at once, for a while."""

    name: str
    start_time: Duration
    duration: Duration
    scope: OutageScope
    target: str
    """A rack, zone, region or provider; for `percentage`, how many percent of all nodes."""
    failure_type: FailureType = "network"


class CorrelationSpec(Setting, frozen=True, kw_only=True):
    """One kind of failure brings about another."""

    name: str
    trigger: str
    """An XID code, or a failure type."""
    response: FailureType
    probability: Share = 1.0
    delay: Duration = Duration(0)
    scope: CorrelationScope = "same_node"


class ChaosSpec(Setting, frozen=True, kw_only=True):
    """What fails."""

    enabled: bool = True
    failure_rate: Annotated[float, msgspec.Meta(ge=0, le=RATE_MAX)] = 0.0
    """Failures a minute for each 1,000 nodes."""
    xid_distribution: Weights = msgspec.field(default_factory=dict)
    """XID -> weight; empty: 79 alone."""
    failure_types: Annotated[tuple[FailureTypeSpec, ...], msgspec.Meta(max_length=LIST_MAX)] = ()
    """Empty: `xid_error` alone."""
    cascading: CascadingSpec = CascadingSpec()
    recovery: RecoverySpec = RecoverySpec()
    scheduled_outages: Annotated[tuple[OutageSpec, ...], msgspec.Meta(max_length=LIST_MAX)] = ()
    correlated_failures: Annotated[
        tuple[CorrelationSpec, ...], msgspec.Meta(max_length=LIST_MAX)
    ] = ()


class StressSpec(Setting, frozen=True, kw_only=True):
    """A whole stress run."""

    duration: Duration
    """Of virtual time, from the first node on."""
    metrics_interval: Duration = Duration(10)
    seed: int = 0
    """The same seed and file: the same run, to the byte."""
    report_file: str = ""
    """JSON; relative to where the command is run. Empty: none."""
    html_report_file: str = ""
    log_file: str = ""
    """What the services said, and what happened, line by line in virtual time."""
    fleet_gen: FleetSpec
    chaos: ChaosSpec = ChaosSpec()


def read(document: Document, value: Any, path: Path_ = ()) -> StressSpec:
    """Read a `stress:` section that stands at `path`; ConfigurationError says what is wrong."""
    spec: StressSpec = convert(document, value, StressSpec, path)
    check(document, spec, path)
    return spec


def check(document: Document, spec: StressSpec, path: Path_) -> None:
    """Refuse what no decoder sees: references to what is not there, times that do not fit."""
    for place, problem in problems(spec):
        raise document.error((*path, *place), problem)
    pool = spec.fleet_gen.pool
    for key in POOL_OWN & set(pool):
        problem = "is made of the templates; it cannot be set for all pools"
        raise document.error((*path, "fleet_gen", "pool", key), problem)
    needed = {"provider": "any", "instance_type": "any", "min_nodes": 0, "max_nodes": 0}
    convert(document, needed | pool, PoolSpec, (*path, "fleet_gen", "pool"))


def problems(spec: StressSpec) -> Iterator[tuple[Path_, str]]:
    """What is wrong, each with its place in the section."""
    if not 0 < spec.duration <= DURATION_SECONDS_MAX:
        yield ("duration",), "must be more than 0s, and 24h at most"
    if spec.metrics_interval <= 0:
        yield ("metrics_interval",), "must be more than 0s"
    elif spec.duration / spec.metrics_interval > SAMPLES_MAX:
        yield ("metrics_interval",), f"makes more than {SAMPLES_MAX:,} samples; make it longer"
    yield from ((("fleet_gen", *place), text) for place, text in _of_fleet(spec.fleet_gen))
    yield from ((("chaos", *place), text) for place, text in _of_chaos(spec))


def _of_fleet(fleet: FleetSpec) -> Iterator[tuple[Path_, str]]:
    seen: set[str] = set()
    for number, template in enumerate(fleet.templates):
        if template.name in seen:
            yield ("templates", number, "name"), f"{template.name!r} stands twice"
        seen.add(template.name)
        for provider in fleet.providers:
            try:
                pool_name(f"{template.name}-{provider}")
            except InvalidNameError as error:
                yield ("templates", number, "name"), f"with provider {provider!r}: {error}"
    if not sum(each.weight for each in fleet.templates):
        yield ("templates",), "all weights are 0; give one of them more"
    for key, weights in (("providers", fleet.providers), ("regions", fleet.regions)):
        if not sum(weights.values()):
            yield (key,), "must name at least one, with a weight of more than 0"
    for region, zones in fleet.zones.items():
        if region not in fleet.regions:
            yield ("zones", region), f"no such region; there are {', '.join(fleet.regions)}"
        if not zones:
            yield ("zones", region), "must name at least one zone; or leave the region out"
    yield from ((("startup", *place), text) for place, text in _of_startup(fleet.startup))


def _of_startup(startup: StartupSpec) -> Iterator[tuple[Path_, str]]:
    low, high, mean = startup.cold_start_min, startup.cold_start_max, startup.cold_start_mean
    if low is not None and high is not None and low > high:
        yield ("cold_start_max",), "is less than cold_start_min"
    if mean is None and startup.cold_start_stddev:
        yield ("cold_start_stddev",), "means nothing without cold_start_mean; add it"
    if mean is None and (low is None) != (high is None):
        key = "cold_start_max" if high is None else "cold_start_min"
        yield (key,), "is missing beside its twin; add it"


def _of_chaos(spec: StressSpec) -> Iterator[tuple[Path_, str]]:
    chaos, fleet = spec.chaos, spec.fleet_gen
    for code in chaos.xid_distribution:
        if not _is_xid(code):
            yield ("xid_distribution", code), f"is not an XID code: a number up to {XID_MAX}"
    if chaos.xid_distribution and not sum(chaos.xid_distribution.values()):
        yield ("xid_distribution",), "all weights are 0; give one of them more"
    if chaos.failure_types and not sum(each.weight for each in chaos.failure_types):
        yield ("failure_types",), "all weights are 0; give one of them more"
    if chaos.cascading.min_delay > chaos.cascading.max_delay:
        yield ("cascading", "max_delay"), "is less than min_delay"
    for number, outage in enumerate(chaos.scheduled_outages):
        if problem := _of_outage(outage, fleet):
            yield ("scheduled_outages", number, "target"), problem
        if outage.start_time >= spec.duration:
            yield ("scheduled_outages", number, "start_time"), "is after the run's end"
    for number, each in enumerate(chaos.correlated_failures):
        if each.trigger not in _TYPES and not _is_xid(each.trigger):
            words = ", ".join(sorted(_TYPES))
            yield (
                ("correlated_failures", number, "trigger"),
                f"{each.trigger!r} is neither an XID code nor one of {words}",
            )


_TYPES: Final = frozenset(FailureType.__args__)  # type: ignore[attr-defined]


def _is_xid(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) <= XID_MAX


def _of_outage(outage: OutageSpec, fleet: FleetSpec) -> str:
    """Why its target is none; empty where it is one."""
    if outage.scope == "percentage":
        try:
            number = float(outage.target.removesuffix("%"))
        except ValueError:
            number = -1.0
        fits = 0 < number <= PERCENT
        return "" if fits else f"{outage.target!r} is no percentage: write 10"
    known = {
        "provider": set(fleet.providers),
        "region": set(fleet.regions),
        "zone": {zone for region in fleet.regions for zone in zones_of(fleet, region)},
    }.get(outage.scope)
    if known is None or outage.target in known:
        return ""  # racks are numbered as they fill: `planning` says which there are
    return f"no such {outage.scope}: there are {', '.join(sorted(known))}"


def zones_of(fleet: FleetSpec, region: str) -> tuple[str, ...]:
    """A region's zones."""
    return fleet.zones.get(region) or (f"{region}-a",)


def affected_share(spec: CascadingSpec) -> float:
    """`max_affected_percent` as a share: 0.1 and 10 are both a tenth."""
    most = spec.max_affected_percent
    return most if most <= 1 else most / PERCENT
