"""Follows what autoscalers ask of their pools, and what came of it, while a stress run goes on."""

from collections import Counter
from dataclasses import dataclass, field

from schemas.pool_records import PoolRecord


@dataclass(slots=True)
class Scaling:
    """One pool's size over time."""

    pool: str
    least: int | None = None
    most: int = 0
    ups: int = 0
    downs: int = 0
    kept_seconds: Counter[str] = field(default_factory=Counter)
    """What kept its autoscaler from being followed -> for how long."""

    def sample(self, record: PoolRecord, passed: float) -> None:
        """Sample the pool; so many seconds have passed since the last sample."""
        self.least = record.desired if self.least is None else min(self.least, record.desired)
        self.most = max(self.most, record.desired)
        if record.advice is not None:
            self.kept_seconds[record.advice.limited_by] += passed  # type: ignore[assignment]

    def scaled(self, was: int, nodes: int) -> None:
        """Its size was changed."""
        self.ups += nodes > was
        self.downs += nodes < was
