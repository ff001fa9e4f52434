"""What an offering is, and what a launch takes with it of where its pool may have capacity from."""

from typing import Any, Literal

import msgspec

Market = Literal["on-demand", "spot"]
"""spot: cheaper, and the cloud may take it back with little notice."""
Together = Literal["", "zone", "region"]
"""What a pool's nodes are to have in common where that can be had; empty: nothing."""


class Offering(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be launched: a type of instance, at a place, on a market."""

    provider: str
    """Its name in the configuration."""
    region: str = ""
    """Empty: the provider has none, or only one."""
    zone: str = ""
    """Empty: the provider chooses."""
    instance_type: str
    market: Market = "on-demand"

    def __str__(self) -> str:
        """Name it as people read it."""
        place = self.zone or self.region
        words = (self.provider, place, self.instance_type)
        return " ".join(each for each in (*words, self.market) if each)


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a pool's `providers`: the offerings that it allows."""

    provider: str
    instance_type: str
    """As the provider calls it, or an abstract one (`h100-8x`)."""
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    market: Market | Literal[""] = ""
    """Empty: as the provider's own options say."""
    max_price: float = 0.0
    """Dollars per hour of one instance; 0: any."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Where a launch may go, in the order of preference, and by what that is chosen."""

    offers: tuple[Offer, ...]
    strategy: str = "priority"
    """`priority`, `cost`, `availability`, `round-robin`, or a plugin."""
    strategy_options: dict[str, Any] = {}
    fallback_seconds: float = 0.0
    """After this a launch that waits for spot capacity takes on-demand as well; 0: never."""
    spend_cap: float = 0.0
    """Dollars per hour that the pool's instances may cost together; 0: any."""
    placement_group: str = ""
    """Of the provider, where instances stand near each other."""
    together: Together = ""
    """Prefer where most of the pool's nodes are."""
