"""The strategies that ship: each scores an offering, the higher the better. Pure.

What they leave equal stands in the pool's own order.
"""

from collections.abc import Mapping
from typing import Any, Final

from schemas.settings import Setting
from services.provisioner.offerings.scheduler import LaunchOption

UNKNOWN_PRICE: Final = 1e9
"""What is not known to cost less comes last."""


class Priority:
    """The pool's own order: providers, types and zones as they stand."""

    class Options(Setting, frozen=True, kw_only=True):
        """None."""

    def __init__(self, *, options: Options) -> None:
        """Take no options."""
        del options

    async def score(self, option: LaunchOption) -> float:
        """The earlier the better."""
        return -float(option.position)


class Cost:
    """The cheapest first; by the GPU where the types differ in size."""

    class Options(Setting, frozen=True, kw_only=True):
        """`strategy: {type: cost, per_gpu: true}`."""

        per_gpu: bool = False

    def __init__(self, *, options: Options) -> None:
        """Compare as the options say."""
        self._per_gpu = options.per_gpu

    async def score(self, option: LaunchOption) -> float:
        """The cheaper the better."""
        if option.dollars_per_hour is None:
            return -UNKNOWN_PRICE
        return -option.dollars_per_hour / (max(option.gpus, 1) if self._per_gpu else 1)


class Availability:
    """What can most likely be had: what the provider says, then how often it failed of late."""

    class Options(Setting, frozen=True, kw_only=True):
        """None."""

    def __init__(self, *, options: Options) -> None:
        """Take no options."""
        del options

    async def score(self, option: LaunchOption) -> float:
        """Failures weigh more than what a provider says."""
        says = {True: 0.5, None: 0.0, False: -0.5}[option.reported_available]
        return says - float(option.failures)


class RoundRobin:
    """Spread evenly: where the pool has the fewest instances."""

    class Options(Setting, frozen=True, kw_only=True):
        """None."""

    def __init__(self, *, options: Options) -> None:
        """Take no options."""
        del options

    async def score(self, option: LaunchOption) -> float:
        """The fewer the better."""
        return -float(option.instances)


STRATEGIES: Final[Mapping[str, type[Any]]] = {
    "priority": Priority,
    "cost": Cost,
    "availability": Availability,
    "round-robin": RoundRobin,
}
