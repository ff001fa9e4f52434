"""A stress run's report, as JSON, independent of the machine it ran on.

The same seed and file give the same report, to the byte; so it has no wall-clock time.
"""

from typing import Any, Final

import msgspec

from services.simulator.engine.simulated_fleet import Violation

FORMAT: Final = 2
"""Incremented when a field changes its meaning."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and percentiles of so many times, in seconds."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """Says how often something happened."""

    name: str
    count: int
    text: str = ""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Sums up the run in a few figures."""

    nodes_wanted: int
    """With autoscalers: the most at one time."""
    nodes_at_end: int
    """In service and healthy."""
    healthy_least: int
    """Once the fleet was up."""
    healthy_mean: float
    availability: float
    """Share of the wanted node time in service, once the fleet was up."""
    up_at: float | None
    """When 95 % of the wanted nodes were first in service; None: never."""
    failures: int
    recoveries: int
    """Failures that passed by themselves."""
    repairs: int
    """Nodes replaced, reset or rebooted, and in service again."""
    repairs_failed: int
    repairs_open: int
    replacements: int
    """Repairs with another machine."""
    machines_made: int
    lost: int
    """Nodes that became silent."""
    returned: int
    dollars: float
    dollars_out_of_service: float
    """Paid for machines while they were not in service."""


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the failures of the fleet."""

    by_type: dict[str, int]
    by_xid: dict[str, int]
    by_cause: dict[str, int]
    """chance, cascade, correlated, outage."""
    recovered_by_type: dict[str, int]
    missed: dict[str, int]
    """By cause: scheduled, but the slot had no machine to hit."""
    top_xids: list[Named]


class Cascades(msgspec.Struct, frozen=True, kw_only=True):
    """The failures that others caused."""

    chains: int
    """Failures that caused at least one more."""
    nodes: int
    """Failures that another caused."""
    depth_max: int
    size_max: int
    """Failures of the largest chain, the first included."""


class OutageReport(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduled outage, and how many nodes it hit."""

    name: str
    scope: str
    target: str
    type: str
    at: float
    seconds: float
    struck: int


class PoolBudget(msgspec.Struct, kw_only=True):
    """Says what a pool's budget allowed, and how much of it was used."""

    pool: str
    nodes: int
    limit: int = 0
    most: int = 0
    """Nodes that sagas had out of service at once."""
    begun: int = 0
    full_seconds: float = 0.0
    """How long no further node could be taken out of service."""
    breaker_opened: dict[str, int] = {}
    """Its cause -> how often."""
    breaker_open_seconds: float = 0.0


class Repairs(msgspec.Struct, frozen=True, kw_only=True):
    """Counts repairs of one kind."""

    done: int = 0
    unwound: int = 0
    """Failed and unwound."""
    open: int = 0
    """At the end of the run."""


class TimelineMoment(msgspec.Struct, frozen=True, kw_only=True):
    """Holds one line of a repair's timeline."""

    at: float
    text: str


class RepairStage(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one stage of a repair."""

    name: str
    at: float
    seconds: float


class RepairStory(msgspec.Struct, frozen=True, kw_only=True):
    """One repair, from the failure until its place is filled."""

    saga: str
    node: str
    new_node: str
    pool: str
    fault_signature: str
    reason: str
    at: float
    seconds: float
    outcome: str
    """done or unwound; empty: open at the end."""
    stages: list[RepairStage]
    moments: list[TimelineMoment]


class PoolScaling(msgspec.Struct, kw_only=True):
    """Says how a pool's autoscaler changed its size."""

    pool: str
    nodes_min: int
    nodes_max: int
    """Its bounds; `least` and `most` are the sizes it had."""
    least: int
    most: int
    ups: int = 0
    downs: int = 0
    kept_seconds: dict[str, float] = {}
    """Why its advice was not followed (cooldown, limits, source, failed) -> for how long."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs, and how long they waited."""

    arrived: int
    finished: int
    running: int
    """At the end, as is `waiting`."""
    waiting: int
    waiting_seconds_max: float
    """The longest wait of a job that never ran."""
    interrupted: int
    """Started again because their node broke or was removed."""
    wait_seconds: Spread
    """Of jobs that ran, from arrival to start."""
    idle_share: float
    """Share of the node time in service without a job."""
    dollars_idle: float


class TimelinePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the fleet at the moment of a sample."""

    at: float
    healthy: int
    degraded: int
    out: int
    starting: int
    wanted: int = 0
    machines: int = 0
    failures: int
    """Since the sample before, as are `recoveries` and `repaired`."""
    recoveries: int
    repaired: int
    repairing: int = 0
    """Repairs under way."""
    waiting: int = 0
    """Jobs, where there is a workload."""
    running: int = 0


class NodeStory(msgspec.Struct, frozen=True, kw_only=True):
    """A node, and what happened to it."""

    node: str
    pool: str
    provider: str = ""
    region: str = ""
    zone: str = ""
    rack: str = ""
    """Empty: it never had a machine."""
    state: str
    """At the end: healthy, degraded, out, starting or gone."""
    failures: int = 0
    repairs: int = 0
    states: list[tuple[float, str]]
    """Since when it counts as what."""
    moments: list[TimelineMoment]
    moments_left_out: int = 0


class PlaceNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the nodes of a zone or region."""

    name: str
    places: int
    """Nodes that it is to have, at most."""
    healthy: int
    """At the end, as are the next three."""
    degraded: int
    out: int
    starting: int
    serving_least: int
    """Fewest in service once the fleet was up."""
    failures: int
    repairs: int


class RegionStory(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a region, its zones, and its nodes by state at each sample."""

    whole: PlaceNodes
    zones: list[PlaceNodes]
    timeline: dict[str, list[int]] = {}
    """State -> nodes at each moment of the report's `timeline`; of the largest regions alone."""


class StressReport(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the whole report of a stress run."""

    format: int = FORMAT
    name: str
    description: str
    seed: int
    history: str
    """Hash of the history: runs with equal hashes are equal."""
    seconds: float
    """Virtual."""
    notes: list[str] = []
    """What changed the outcome, or has no effect, in sentences."""
    summary: RunSummary
    failures: Failures
    cascades: Cascades
    outages: list[OutageReport]
    scaling: list[PoolScaling] = []
    """Of pools with an autoscaler."""
    demand: Demand | None = None
    """Where there is a workload."""
    repairs: dict[str, Repairs]
    """replace, reset-gpu, reboot -> how many."""
    repair_seconds: Spread
    """From the failure until the place was filled again."""
    stage_seconds: dict[str, Spread]
    rules: list[Named]
    """Rules of the health policy, and how many faults each decided."""
    verdicts: dict[str, int]
    budget: list[PoolBudget]
    slowest: list[RepairStory]
    timeline: list[TimelinePoint]
    regions: list[RegionStory] = []
    """The largest first."""
    nodes: list[NodeStory] = []
    """Those with the most failures and repairs first."""
    nodes_left_out: int = 0
    """Beyond those that are listed."""
    defects: list[str]
    """Why services ended by themselves; empty unless there is a defect."""
    violation: Violation | None = None
    """The violated invariant; it ended the run."""
    configuration: dict[str, Any]


def encode(report: StressReport) -> bytes:
    """Encode the report as JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
