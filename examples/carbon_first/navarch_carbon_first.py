"""The scheduler carbon-first of Navarch: the cleanest region first, the price where they are equal.

    pools:
      training:
        strategy:
          type: carbon-first
          grams: {eu-north: 20, us-west: 120, us-west-2: 95}

Figures are of the options, not of a service that is asked: a launch waits for every score, and
replicas must rank alike.
"""

from typing import Annotated

import msgspec
from navarch.schemas.settings import Setting
from navarch.services.provisioner.offerings.scheduler import LaunchOption

Grams = Annotated[int, msgspec.Meta(ge=0, le=5_000)]
"""Of carbon dioxide for a kilowatt hour."""


class CarbonFirst:
    """Scores offerings; the highest score is launched."""

    class Options(Setting, frozen=True, kw_only=True):
        """Holds what a configuration sets."""

        grams: Annotated[dict[str, Grams], msgspec.Meta(min_length=1, max_length=1_000)]
        """A region, or how the names of several begin -> grams; the longest that fits counts."""
        unknown: Grams = 1_000
        """The grams of a region that the table lacks."""

    def __init__(self, *, options: Options) -> None:
        """Keep the options."""
        self._options = options

    async def score(self, option: LaunchOption) -> float:
        """Return how much this offering is preferred: the same for the same offering."""
        return -(self._grams(option.region) + _dearness(option))

    def _grams(self, region: str) -> int:
        table = self._options.grams
        fitting = [each for each in table if region.startswith(each)]
        return table[max(fitting, key=len)] if fitting else self._options.unknown


def _dearness(option: LaunchOption) -> float:
    """Return 0 for free GPUs and 1 where the price is not known, so that a gram counts for more."""
    if option.dollars_per_hour is None:
        return 1.0
    dollars = option.dollars_per_hour / max(1, option.gpus)
    return dollars / (1.0 + dollars)
