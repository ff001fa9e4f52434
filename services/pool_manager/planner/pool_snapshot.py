"""Defines what a decision about a pool looks at, and what comes of it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from schemas.fleet_budget import FleetBudgetRecord
from schemas.health_records import HealthRecord
from schemas.launch_offers import Offering
from schemas.node_records import GpuUse, NodeRecord
from schemas.offering_records import OfferingView
from schemas.pool_events import PoolEvent
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.stops import NOT_STOPPED, StopState
from services.pool_manager.planner.disruption_budget import Others
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.remediator import REPLACE, Remediator

Work = Literal["none", "runs", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """The use of each of several nodes decides which of them leaves."""

    gpus: GpuUse | None = None
    """None: not known."""
    work: Work = "unknown"
    """What the workload system says; it is asked where the GPUs rest."""
    dollars_per_hour: float = 0.0
    """0: not known."""
    offering: Offering | None = None
    """From which it was launched."""


@dataclass(frozen=True, slots=True)
class Rest:
    """A rest says since when a node is known to have no work."""

    since: datetime
    seen_at: datetime
    """When that was last found."""
    dollars_per_hour: float = 0.0
    """0: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSnapshot:
    """Everything a decision about one pool may look at."""

    fleet: str
    record: PoolRecord
    nodes: Nodes
    others: Others | None = None
    """The other pools' share of the fleet's budget; None: it cannot bind."""
    claims: FleetBudgetRecord = field(default_factory=FleetBudgetRecord)
    """Of all pools, as written."""
    claims_revision: int = 0
    revision: int = 0
    """Of the record: names the events of a decision. Of those on one revision one at most is
    written, and only that one is published."""
    health: Mapping[str, HealthRecord] = field(default_factory=dict)
    """Node -> its health, of the nodes that need attention."""
    remediator: Remediator = REPLACE
    """Chooses what is done about an unhealthy node."""
    use: Mapping[str, NodeUse] | None = None
    """By node, of those that may leave; None: not read, as it need not be while none has to."""

    offered: Sequence[OfferingView] | None = None
    """The pool's offerings; None: not read, as nothing would leave before its successor comes."""
    idle: Mapping[str, Rest] = field(default_factory=dict)
    """Nodes that have had no work for the pool's `idle_after`."""

    stops: StopState = NOT_STOPPED
    """What operators have stopped."""

    @property
    def fleet_window(self) -> float:
        """Seconds over which the fleet's budget counts; 0: it cannot bind."""
        return float(self.others.spec.window) if self.others is not None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """A plan says what to do about one pool."""

    record: PoolRecord
    start: Mapping[str, OpenSaga] = field(default_factory=dict)
    """Sagas to begin, by id; the record holds them already."""
    events: tuple[PoolEvent, ...] = ()
    wake_at: datetime | None = None
    """When to look again though nothing happens."""
    released: tuple[NodeRecord, ...] = ()
    """Nodes whose hold has come to its end."""


def earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    """The earlier of two moments, where there is one."""
    if one is None or other is None:
        return one or other
    return min(one, other)


def to_come(moment: datetime | None, now: datetime) -> datetime | None:
    """A moment that is still to come; a timer for one that has passed would fire for ever."""
    return moment if moment is not None and moment > now else None
