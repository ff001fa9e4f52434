"""The contract of a scheduler plugin: it ranks the offerings of a launch.

A plugin is a class with an inner msgspec struct `Options`, constructed with `options=`, and found
by entry point (`navarch.schedulers`) or as `module:Class` under a pool's `strategy`. It
returns a score for each offering that the pool allows; the highest that is not exhausted is taken,
and of equal ones the first in the pool's own order. It is called before every launch, so it must be
fast: a score that takes longer than its kind allows, raises or is not a number counts as 0.
"""

from typing import Protocol

import msgspec

from schemas.launch_offers import Market


class LaunchOption(msgspec.Struct, frozen=True, kw_only=True):
    """An offering that a launch may take, with its details."""

    pool: str
    provider: str
    kind: str = ""
    """The provider's plugin: `aws`."""
    region: str = ""
    zone: str = ""
    instance_type: str
    market: Market = "on-demand"
    position: int = 0
    """In the pool's own order, from 0."""
    gpus: int = 0
    gpu: str = ""
    dollars_per_hour: float | None = None
    """None: not known."""
    price_age_seconds: float | None = None
    """Since the provider quoted it; None: it is the catalogue's."""
    instances: int = 0
    """How many of the pool's instances are of it."""
    failures: int = 0
    """Failed launches in a row; 0: nothing blocks it."""
    reported_available: bool | None = None
    """The provider's own statement about capacity; it may be wrong."""


class Scheduler(Protocol):
    """Scores offerings; the higher the better."""

    async def score(self, option: LaunchOption) -> float:
        """Return how much this offering is preferred."""
