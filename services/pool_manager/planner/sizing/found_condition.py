"""Declares what a rule says of a condition of a pool."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCondition:
    """A condition that holds now, in words for a person."""

    reason: str
    remedy: str
    after_seconds: float = 0.0
    """So long it must hold before it is published."""
    until: datetime | None = None
    """What may end it by itself has until then."""
