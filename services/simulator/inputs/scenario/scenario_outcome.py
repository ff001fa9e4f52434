"""Declares a scenario's result: its events, its assertions, the status of the nodes."""

from dataclasses import dataclass

from schemas.enums import HealthStatus
from schemas.health_records import HealthRecord
from schemas.messages import Message
from schemas.node_records import NodeRecord
from services.simulator.engine.simulated_fleet import Violation
from services.simulator.inputs.scenario.scenario_format import NodeStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedNode:
    """Holds the status and health of a node.

    Its status is what Navarch has decided: unhealthy holds until it is uncordoned or replaced. Its
    health is that of its hardware now, so it may be healthy again while the status is not.
    """

    node: str
    pool: str
    status: NodeStatus
    health: HealthStatus
    reason: str = ""


def observe(record: NodeRecord, judged: HealthRecord | None, *, unfit: bool | None) -> ObservedNode:
    """Observe a node; `unfit`: whether its hardware has failed, None if it has no machine."""
    health: HealthStatus = "unknown"
    if unfit is not None and judged is not None:
        health = judged.status if unfit else "healthy"
    return ObservedNode(
        node=record.node,
        pool=record.pool,
        status=status_of(record),
        health=health,
        reason=(judged.reason if judged else "") or record.reason,
    )


def status_of(record: NodeRecord) -> NodeStatus:
    """Name the most important state of a node."""
    if record.state == "terminated" or record.provider_state == "gone":
        return "terminated"
    if record.state in ("launching", "registered"):
        return "provisioning"
    if record.health == "unhealthy":
        return "unhealthy"
    if record.lost:
        return "lost"
    if record.state == "leaving" or record.drained or record.saga.startswith("drain-"):
        return "draining"
    if record.spare:
        return "spare"
    return "cordoned" if record.cordoned else "active"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEvent:
    """Describes an event of the scenario, and its result."""

    at: float
    """Virtual seconds since the beginning."""
    text: str
    seconds: float = 0.0
    """How long it took, if it waited."""
    ok: bool = True
    detail: str = ""
    """Its result, or why it failed."""
    request: str = ""
    """The ID of its request; empty: it made none."""
    refused: bool = False
    """Whether a refusal is expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertionResult:
    """An assertion, and whether it holds."""

    text: str
    ok: bool
    found: str = ""
    at: float | None = None
    """When it was evaluated; None: at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResult:
    """Holds the result of a scenario."""

    name: str
    seed: str
    seconds: float
    """Virtual."""
    digest: str
    """Hash of the history: equal for the same seed and file."""
    steps: tuple[PlayedEvent, ...] = ()
    checks: tuple[AssertionResult, ...] = ()
    nodes: tuple[ObservedNode, ...] = ()
    story: tuple[tuple[float, Message], ...] = ()
    defects: tuple[str, ...] = ()
    """Services that ended by themselves."""
    violation: Violation | None = None
    """The invariant that did not hold."""

    @property
    def ok(self) -> bool:
        """Return whether every event and assertion held."""
        held = all(each.ok for each in self.steps) and all(each.ok for each in self.checks)
        return held and not self.defects and self.violation is None
