"""Records of OFFERINGS, and the query and view of offerings."""

from typing import Final, Literal

import msgspec

from schemas.enums import ProviderErrorKind
from schemas.fleet_queries import Query
from schemas.launch_offers import Market
from schemas.messages import Record
from schemas.value_limits import Float, Int, UtcTime

BlockScope = Literal["offering", "type", "subnet", "quota", "account", "configuration"]
"""What one failure blocks, narrowest first."""


class BlockRecord(Record, frozen=True, kw_only=True):
    """OFFERINGS `blocked.<scope>.…`: what failed to launch, and when it is retried.

    Parts of an offering outside the scope are empty.
    """

    scope: BlockScope
    provider: str
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    model: str = ""
    """GPU model; quota is counted by it."""
    market: str = ""
    pool: str = ""
    """Scope `configuration`: the pool."""
    kind: ProviderErrorKind
    reason: str = ""
    since: UtcTime
    """Time of the first consecutive failure."""
    failed_at: UtcTime
    failures: Int = 1
    probe_at: UtcTime
    """Earliest time of the next attempt, by a single launch."""
    probe: str = ""
    """`<pool>.<node>` of the launch that retries it now."""
    probe_until: UtcTime | None = None
    """When another launch may retry it if that one does not finish."""


class OfferingPrice(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's price and availability of one offering."""

    region: str = ""
    zone: str = ""
    instance_type: str
    market: Market = "on-demand"
    dollars_per_hour: Float | None = None
    available: bool | None = None
    """Whether the provider reports capacity, which may be wrong; None: it does not report it."""


class PricesRecord(Record, frozen=True, kw_only=True):
    """OFFERINGS `prices.<provider>`: a provider's last prices and capacity."""

    provider: str
    at: UtcTime
    prices: tuple[OfferingPrice, ...] = ()
    error: str = ""
    """Why the last query failed; empty: it succeeded."""


class SpendReservation(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars per hour reserved for a launch until its instance record counts."""

    dollars_per_hour: Float
    at: UtcTime


class SpendRecord(Record, frozen=True, kw_only=True):
    """OFFERINGS `spend`: reservations of launches under a cap, by instance."""

    reserved: dict[str, SpendReservation] = {}


SPEND_KEY: Final = "spend"
BLOCKED: Final = "blocked.>"


def prices_key(provider: str) -> str:
    """Key of a provider's prices."""
    return f"prices.{provider}"


class OfferingsQuery(Query, frozen=True, kw_only=True):
    """Selects offerings; `pool`: those that it may launch."""

    provider: str = ""
    instance_type: str = ""
    """The provider's name, or an abstract one."""
    everything: bool = False
    """Also offerings of no pool: every type of the catalogue at a configured provider."""


class OfferingUse(msgspec.Struct, frozen=True, kw_only=True):
    """A pool that may launch an offering."""

    pool: str
    instances: Int = 0
    """The pool's current instances of this offering."""


class OfferingView(msgspec.Struct, frozen=True, kw_only=True):
    """One offering as `navarch offerings` shows it."""

    provider: str
    plugin: str = ""
    """The provider's type."""
    region: str = ""
    zone: str = ""
    instance_type: str
    market: Market = "on-demand"
    abstract: tuple[str, ...] = ()
    """The abstract types that include it."""
    gpus: Int = 0
    gpu: str = ""
    dollars_per_hour: Float | None = None
    price_from: Literal["", "provider", "catalogue"] = ""
    price_at: UtcTime | None = None
    """When the provider reported it."""
    state: Literal["available", "exhausted", "blocked"] = "available"
    """exhausted: no capacity; blocked: another failure."""
    kind: ProviderErrorKind | Literal[""] = ""
    reason: str = ""
    since: UtcTime | None = None
    failures: Int = 0
    probe_at: UtcTime | None = None
    probe: str = ""
    """The launch that retries it now."""
    reported_available: bool | None = None
    """Capacity as the provider reports it."""
    used_by: tuple[OfferingUse, ...] = ()
