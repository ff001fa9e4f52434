"""The strategies that ship: each scores an offering, higher is better. Pure.

Equal scores are ordered as in the pool.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from schemas.settings import Setting
from services.provisioner.offerings.scheduler import LaunchOption

UNKNOWN_PRICE: Final = 1e9
"""Offerings without a price come last."""


class _WithoutOptions:
    class Options(Setting, frozen=True, kw_only=True):
        """None."""

    def __init__(self, *, options: Options) -> None:
        del options


class Priority(_WithoutOptions):
    """Keeps the pool's own order of providers, types and zones."""

    async def score(self, option: LaunchOption) -> float:
        """Prefer the earlier one."""
        return -float(option.position)


class Cost:
    """Prefers the cheapest, optionally per GPU."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures `strategy: {type: cost, per_gpu: true}`."""

        per_gpu: bool = False

    def __init__(self, *, options: Options) -> None:
        self._per_gpu = options.per_gpu

    async def score(self, option: LaunchOption) -> float:
        """Prefer the cheaper one."""
        if option.dollars_per_hour is None:
            return -UNKNOWN_PRICE
        return -option.dollars_per_hour / (max(option.gpus, 1) if self._per_gpu else 1)


class Availability(_WithoutOptions):
    """Prefers the most likely available: by recent failures, then by the provider's statement."""

    async def score(self, option: LaunchOption) -> float:
        """Failures weigh more than the provider's statement."""
        reported = {True: 0.5, None: 0.0, False: -0.5}[option.reported_available]
        return reported - float(option.failures)


class RoundRobin:
    """Spread: the offering with the fewest of the pool's instances, for its weight, first."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures `strategy: {type: round-robin, weights: {lambda: 3}}`."""

        weights: dict[str, Annotated[float, msgspec.Meta(gt=0, le=1000)]] = {}  # noqa: RUF012
        """Provider -> its share of the instances; 1 for those that are not here."""

    def __init__(self, *, options: Options) -> None:
        self._weights = options.weights

    async def score(self, option: LaunchOption) -> float:
        """Prefer fewer instances."""
        return -option.instances / self._weights.get(option.provider, 1.0)


STRATEGIES: Final[Mapping[str, type[Any]]] = {
    "priority": Priority,
    "cost": Cost,
    "availability": Availability,
    "round-robin": RoundRobin,
}
