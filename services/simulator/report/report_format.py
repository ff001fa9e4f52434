"""A stress run's report, as JSON: values in which nothing depends on the machine it ran on.

The same seed and file make the same report, to the byte; so it has no wall-clock time in it.
"""

from typing import Any, Final

import msgspec

from services.simulator.engine.simulated_fleet import Violation

FORMAT: Final = 2
"""Of the report; it grows when a field changes its meaning."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, of so many."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """How often something happened."""

    name: str
    count: int
    text: str = ""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The run in a few figures."""

    nodes_wanted: int
    """With autoscalers: the most at once."""
    nodes_at_end: int
    """In service and well."""
    healthy_least: int
    """Once the fleet had come up."""
    healthy_mean: float
    availability: float
    """Share of the wanted nodes' time in which they were in service, once the fleet had come up."""
    up_at: float | None
    """When 95 % of what was wanted was in service first; None: never."""
    failures: int
    recoveries: int
    """Failures that passed by themselves."""
    repairs: int
    """Nodes replaced, reset or rebooted, and in service again; `repairs` tells them apart."""
    repairs_failed: int
    repairs_open: int
    replacements: int
    """Of the repairs, those with another machine."""
    machines_made: int
    lost: int
    """Nodes that fell silent."""
    returned: int
    dollars: float
    dollars_out_of_service: float
    """Paid for machines while they were not in service."""


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """What befell the fleet."""

    by_type: dict[str, int]
    by_xid: dict[str, int]
    by_cause: dict[str, int]
    """chance, cascade, correlated, outage."""
    recovered_by_type: dict[str, int]
    missed: dict[str, int]
    """By cause: planned, but nothing stood there that could fail."""
    top_xids: list[Named]


class Cascades(msgspec.Struct, frozen=True, kw_only=True):
    """What failures brought about."""

    chains: int
    """Failures that brought about at least one more."""
    nodes: int
    """Failures that another brought about."""
    depth_max: int
    size_max: int
    """Failures of the largest chain, the first included."""


class OutageReport(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduled outage, and whom it struck."""

    name: str
    scope: str
    target: str
    type: str
    at: float
    seconds: float
    struck: int


class PoolBudget(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool's budget allowed, and what was taken of it."""

    pool: str
    nodes: int
    limit: int
    most: int
    """Out of service at once by Navarch's own doing."""
    begun: int
    full_seconds: float
    breaker_opened: dict[str, int]
    """Its cause -> how often."""
    breaker_open_seconds: float


class Repairs(msgspec.Struct, frozen=True, kw_only=True):
    """Repairs of one kind."""

    done: int = 0
    unwound: int = 0
    """They failed, and what they had done was taken back as far as it could be."""
    open: int = 0
    """At the end of the run."""


class TimelineMoment(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a repair's story."""

    at: float
    text: str


class RepairStage(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a repair."""

    name: str
    at: float
    seconds: float


class RepairStory(msgspec.Struct, frozen=True, kw_only=True):
    """One repair, from the failure to the node that took the place."""

    saga: str
    node: str
    new_node: str
    pool: str
    fault_signature: str
    reason: str
    at: float
    seconds: float
    outcome: str
    """done, unwound; empty: it is under way at the end."""
    stages: list[RepairStage]
    moments: list[TimelineMoment]


class PoolScaling(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool's autoscaler made of its size."""

    pool: str
    nodes_min: int
    nodes_max: int
    """As its bounds are; the next two as it was."""
    least: int
    most: int
    ups: int
    downs: int
    kept_seconds: dict[str, float]
    """What kept it from being followed (cooldown, limits, source, failed) -> for how long."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that came, and how long they waited."""

    arrived: int
    finished: int
    running: int
    """At the end, as what follows."""
    waiting: int
    waiting_seconds_max: float
    """Of those that never ran, the one that waits longest."""
    interrupted: int
    """Started again because their node broke or was removed."""
    wait_seconds: Spread
    """Of those that ran, from their coming until they first did."""
    idle_share: float
    """Of the nodes' time in service, without a job."""
    dollars_idle: float


class StressReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report."""

    format: int = FORMAT
    name: str
    description: str
    seed: int
    history: str
    """Hash of everything that was stored: two runs of which it is the same are the same."""
    seconds: float
    """Virtual."""
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
    timeline: list[dict[str, float]]
    defects: list[str]
    """Why services ended by themselves; always empty."""
    violation: Violation | None = None
    """The invariant that did not hold: the run ended there."""
    configuration: dict[str, Any]


def encode(report: StressReport) -> bytes:
    """Write it as JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
