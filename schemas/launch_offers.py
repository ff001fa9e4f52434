"""An offering, and what a launch may choose from."""

from typing import Any, Literal

import msgspec

from schemas.value_limits import Float, Seconds

OpenMarket = Literal["on-demand", "spot"]
"""spot: cheaper; the cloud may reclaim it at short notice."""
Market = Literal["on-demand", "spot", "reserved"]
"""reserved: capacity that the account has reserved, as the provider's options name it."""
Markets = Market | Literal[""] | tuple[Market, ...]
"""One, or several in order of preference; empty: as in the provider's options."""
Together = Literal["", "zone", "region"]
"""What a pool's nodes should have in common where possible; empty: nothing."""


class Offering(msgspec.Struct, frozen=True, kw_only=True):
    """A provider, region, zone, instance type and market that can be launched."""

    provider: str
    """The provider's name in the configuration."""
    region: str = ""
    """Empty: the provider has none, or only one."""
    zone: str = ""
    """Empty: the provider chooses."""
    instance_type: str
    market: Market = "on-demand"

    def __str__(self) -> str:
        """Display form."""
        place = self.zone or self.region
        words = (self.provider, place, self.instance_type)
        return " ".join(each for each in (*words, self.market) if each)


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a pool's `providers`: the offerings it allows."""

    provider: str
    instance_type: str
    """The provider's name, or an abstract one (`h100-8x`)."""
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    market: Market | Literal[""] = ""
    """Empty: as in the provider's options."""
    max_price: Float = 0.0
    """Dollars per hour of one instance; 0: any."""
    options: dict[str, Any] = {}
    """Options of the provider that differ for these nodes: image, disk, networks."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Offers of a launch in order of preference, and the strategy that selects one."""

    offers: tuple[Offer, ...]
    strategy: str = "priority"
    """`priority`, `cost`, `availability`, `round-robin`, or a plugin."""
    strategy_options: dict[str, Any] = {}
    fallback_seconds: Seconds = 0.0
    """After this time a launch waiting for spot capacity also takes on-demand; 0: never."""
    spend_cap: Float = 0.0
    """Dollars per hour of all the pool's instances; 0: no limit."""
    placement_group: str = ""
    """The provider's group of instances that are close to each other."""
    together: Together = ""
    """Prefer the zone or region of most of the pool's nodes."""
    required: bool = False
    """No other zone or region."""
    max_dollars: Float = 0.0
    """Dollars per hour of one instance, to save something; it is no limit that a cloud is given.
    0: as the offers say."""
    interruption_seconds: Seconds = 0.0
    """Half-life of an interruption, by which spot offerings come later; 0: they do not."""

    def options_at(self, provider: str) -> dict[str, Any]:
        """The options of a provider that differ for these nodes: the same in all of its offers."""
        return next((each.options for each in self.offers if each.provider == provider), {})


def is_zone_of(zone: str, region: str) -> bool:
    """Return whether a zone's name begins with its region's: `us-east-1a`, `europe-west1-b`.

    `europe-west10-b` is no zone of `europe-west1`.
    """
    rest = zone.removeprefix(region)
    return bool(region) and rest != zone and not rest[:1].isdigit()
