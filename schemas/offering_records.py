"""What the bucket OFFERINGS holds, and how an offering is shown to people."""

from typing import Final, Literal

import msgspec

from schemas.enums import ProviderErrorKind
from schemas.fleet_queries import Query
from schemas.launch_offers import Market
from schemas.messages import Record, UtcTime

BlockScope = Literal["offering", "type", "subnet", "quota", "account", "configuration"]
"""What one failure keeps from being launched, narrow before wide."""


class BlockRecord(Record, frozen=True, kw_only=True):
    """OFFERINGS `blocked.<scope>.…`: what could not be launched, and when that is tried again.

    The parts of an offering that the scope does not speak of are empty.
    """

    scope: BlockScope
    provider: str
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    model: str = ""
    """Quota is counted by the GPU's model."""
    market: str = ""
    pool: str = ""
    """Scope `configuration`: whose."""
    kind: ProviderErrorKind
    reason: str = ""
    since: UtcTime
    """Of the first failure in a row."""
    failed_at: UtcTime
    failures: int = 1
    probe_at: UtcTime
    """Not before this is it tried again, by one launch alone."""
    probe: str = ""
    """`<pool>.<node>` of the launch that tries it now."""
    probe_until: UtcTime | None = None
    """When another may try it, should that one have died."""


class KnownPrice(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider says of one of its offerings."""

    region: str = ""
    zone: str = ""
    instance_type: str
    market: Market = "on-demand"
    dollars_per_hour: float | None = None
    available: bool | None = None
    """Whether it says that there is capacity; None: it does not say. It may be wrong."""


class PricesRecord(Record, frozen=True, kw_only=True):
    """OFFERINGS `prices.<provider>`: what a provider said last of its prices and its capacity."""

    provider: str
    at: UtcTime
    prices: tuple[KnownPrice, ...] = ()
    error: str = ""
    """Why it could not be asked since; empty: it could."""


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars per hour of a launch that was chosen, until its own record counts."""

    dollars_per_hour: float
    at: UtcTime


class SpendRecord(Record, frozen=True, kw_only=True):
    """OFFERINGS `spend`: what launches under a cap have reserved, by instance."""

    reserved: dict[str, Reservation] = {}


SPEND_KEY: Final = "spend"
BLOCKED: Final = "blocked.>"


def prices_key(provider: str) -> str:
    """Key of what a provider says of its prices."""
    return f"prices.{provider}"


class OfferingsQuery(Query, frozen=True, kw_only=True):
    """Which offerings; `pool`: those that it may launch."""

    provider: str = ""
    instance_type: str = ""
    """As the provider calls it, or an abstract one."""
    everything: bool = False
    """Also what no pool names: every type of the catalogue at a provider of the configuration."""


class OfferingUse(msgspec.Struct, frozen=True, kw_only=True):
    """A pool that may launch an offering."""

    pool: str
    instances: int = 0
    """How many of its instances are of it now."""


class OfferingView(msgspec.Struct, frozen=True, kw_only=True):
    """One offering as `navarch offerings` shows it."""

    provider: str
    region: str = ""
    zone: str = ""
    instance_type: str
    market: Market = "on-demand"
    abstract: tuple[str, ...] = ()
    """The abstract types that it is one of."""
    gpus: int = 0
    gpu: str = ""
    dollars_per_hour: float | None = None
    price_from: Literal["", "provider", "catalogue"] = ""
    price_at: UtcTime | None = None
    """When the provider said it."""
    state: Literal["available", "exhausted", "blocked"] = "available"
    """exhausted: no capacity; blocked: it fails of something else."""
    kind: ProviderErrorKind | Literal[""] = ""
    reason: str = ""
    since: UtcTime | None = None
    failures: int = 0
    probe_at: UtcTime | None = None
    probe: str = ""
    """The launch that tries it now."""
    reported_available: bool | None = None
    """What the provider itself says of its capacity."""
    used_by: tuple[OfferingUse, ...] = ()
