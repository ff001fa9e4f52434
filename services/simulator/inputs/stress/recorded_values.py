"""What a stress run's recording is made of: repairs, samples, and how budgets were used. Values."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Repair:
    """One node's way out of service and its successor's way in."""

    saga: str
    kind: str
    pool: str
    node: str
    new_node: str
    fault_signature: str
    reason: str
    failed_at: float | None
    """When its machine was struck; None: it was not."""
    noticed_at: float | None
    began_at: float
    ended_at: float | None = None
    outcome: str = ""
    steps: list[tuple[float, str, str]] = field(default_factory=list)
    """Moment, step, status."""

    @property
    def unhealthy_since(self) -> float:
        """From when on its place was empty, or its node unhealthy."""
        known = [each for each in (self.failed_at, self.noticed_at) if each is not None]
        return min((*known, self.began_at))

    @property
    def seconds(self) -> float | None:
        """From the failure until its place was filled again; None: it is not."""
        if self.ended_at is None or self.outcome != "done":
            return None
        return self.ended_at - self.unhealthy_since


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How the fleet stood at a moment."""

    at: float
    healthy: int
    degraded: int
    out: int
    starting: int
    wanted: int
    machines: int
    failures: int
    """Since the sample before, as what follows."""
    recoveries: int
    repaired: int
    repairing: int
    """Sagas under way now."""
    waiting: int = 0
    """Jobs, where there is a workload."""
    running: int = 0


@dataclass(slots=True)
class BudgetUse:
    """How near a pool came to what it may have out of service."""

    pool: str
    nodes: int = 0
    limit: int = 0
    most: int = 0
    full_seconds: float = 0.0
    """How long nothing more could be taken out."""
    begun: int = 0
    opened: Counter[str] = field(default_factory=Counter)
    """How often the breaker opened, by its cause."""
    open_seconds: float = 0.0
    opened_at: float | None = None
