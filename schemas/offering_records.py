"""Declares the records of OFFERINGS, and the query and view of offerings."""

from typing import Final, Literal

import msgspec

from schemas.enums import ProviderErrorKind
from schemas.fleet_queries import Query
from schemas.launch_offers import Market, Offering
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
    """Records a provider's price and availability of one offering."""

    region: str = ""
    zone: str = ""
    instance_type: str
    market: Market = "on-demand"
    dollars_per_hour: Float | None = None
    available: bool | None = None
    """Whether the provider reports capacity, which may be wrong; None: it does not report it."""


class OfferingQuota(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's quota that leaves the least room for an instance type."""

    region: str = ""
    instance_type: str
    market: Market = "on-demand"
    quota: str
    """Its name there, and where it applies: `NVIDIA_A100_GPUS in us-central1`."""
    limit: Float
    used: Float
    takes: Int = 1
    """How much of it one instance takes."""


class PricesRecord(Record, frozen=True, kw_only=True):
    """OFFERINGS `prices.<provider>`: a provider's last prices, capacity and quotas."""

    provider: str
    at: UtcTime
    prices: tuple[OfferingPrice, ...] = ()
    quotas: tuple[OfferingQuota, ...] = ()
    """Of the offerings of pools, where the provider reports any."""
    quotas_at: UtcTime | None = None
    """When they were requested."""
    error: str = ""
    """Why the last query failed; empty: it succeeded."""


class SpendReservation(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars per hour reserved for a launch until its instance record counts."""

    dollars_per_hour: Float
    offering: Offering | None = None
    """Whose price it is: another one's refusal does not release it."""
    at: UtcTime


class SpendRecord(Record, frozen=True, kw_only=True):
    """OFFERINGS `spend`: reservations of launches under a cap, by instance."""

    reserved: dict[str, SpendReservation] = {}


class Interruption(msgspec.Struct, frozen=True, kw_only=True):
    """A spot instance that the cloud took away."""

    offering: Offering
    instance: str
    at: UtcTime
    """When its successor was launched, or was to be."""


class InterruptionsRecord(Record, frozen=True, kw_only=True):
    """OFFERINGS `interruptions`: the last of them, oldest first."""

    recent: tuple[Interruption, ...] = ()


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Names where the nodes of a pool are together."""

    provider: str
    region: str = ""
    zone: str = ""
    """Empty: they are in one region."""

    def __str__(self) -> str:
        """Display form."""
        return " ".join(each for each in (self.provider, self.zone or self.region) if each)


class TriedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Records a place that had no room for a gang."""

    place: Place
    at: UtcTime


class PlacementRecord(Record, frozen=True, kw_only=True):
    """OFFERINGS `placement.<pool>`: where a pool's nodes are launched that must be together.

    Replicas agree by it on one place, and on whether a gang was launched whole.
    """

    place: Place
    owner: str
    """The gang that chose the place, or the node that was launched alone."""
    size: Int = 1
    """Nodes of the gang."""
    state: Literal["forming", "placed", "failed"] = "forming"
    reason: str = ""
    """Of `failed`: why it was not whole."""
    error: str = ""
    """Of `failed`: the kind of error."""
    tried: tuple[TriedPlace, ...] = ()
    """Places that had no room for a gang since the last that had, the last one tried at the end."""


SPEND_KEY: Final = "spend"
INTERRUPTIONS_KEY: Final = "interruptions"
BLOCKED: Final = "blocked.>"


def placement_key(pool: str) -> str:
    """Return the key of a pool's placement."""
    return f"placement.{pool}"


def prices_key(provider: str) -> str:
    """Return the key of a provider's prices."""
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
    fixed_capacity: bool = False
    """The provider has so many machines: one that leaves is room for the next."""
    interruptions: Int = 0
    """Spot instances that the cloud took away within a week, where pools remember it."""
    interrupted_at: UtcTime | None = None
    """The last time."""
    used_by: tuple[OfferingUse, ...] = ()
