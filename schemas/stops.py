"""Declares stops: operators' orders that nothing automatic begins in a fleet, or a part of it."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from schemas.messages import Record
from schemas.operator_requests import GivenReason, Reason
from schemas.stream_specs import BucketSpec
from schemas.topology import LEASES, POOLS
from schemas.value_limits import Float, Int, Name, OptionalToken, UtcTime

STOPS_MAX: Final = 64
"""In force at once."""
FLEET: Final = "fleet"
"""Scope of a stop of everything."""
PLACES: Final[tuple[tuple[BucketSpec, str], ...]] = (
    (POOLS, "stops"),
    (LEASES, "pool-manager.stops"),
)
"""Bucket and key of each copy of the record; any one of them stops."""
STOPS_QUERY: Final = "stops"


class Stop(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Nothing automatic begins where this is in force."""

    pool: OptionalToken = ""
    """Empty: every pool, also those that are applied later."""
    provider: Name = ""
    """Only what would call this provider; empty: everything."""
    running: bool = False
    """Open sagas wait, too, before what cannot be taken back."""
    until: UtcTime | None = None
    """None: until an operator resumes."""
    reason: str = ""
    by: str = ""
    since: UtcTime

    @property
    def scope(self) -> str:
        """Return `fleet`, `pool.<pool>` or `provider.<provider>`."""
        return scope_of(self.pool, self.provider)

    def lasts(self, now: datetime) -> bool:
        """Return whether it has not ended by itself."""
        return self.until is None or now < self.until

    def __str__(self) -> str:
        """Write `by ada since 11-29 21:04 UTC: a wrong image`."""
        end = f" until {self.until:%m-%d %H:%M} UTC" if self.until is not None else ""
        return (
            f"by {self.by or 'an operator'} since {self.since:%m-%d %H:%M} UTC{end}: {self.reason}"
        )


class StopsRecord(Record, frozen=True, kw_only=True):
    """POOLS `stops` and LEASES `pool-manager.stops`: every stop, by its scope."""

    number: Int = 0
    """Of the writes; of two copies the one with the higher number counts."""
    stops: dict[str, Stop] = {}


class StopState(NamedTuple):
    """Every stop that a process knows of."""

    stops: Mapping[str, Stop] = {}
    known: bool = True
    """False: no copy of the record was ever read, and so nothing automatic begins."""

    def at(self, now: datetime) -> dict[str, Stop]:
        """Return those in force, by scope."""
        if not self.known:
            return {FLEET: UNKNOWN}
        return {scope: each for scope, each in self.stops.items() if each.lasts(now)}

    def without(self, scope: str) -> "StopState":
        """Return the same without one of them."""
        return self._replace(stops={key: each for key, each in self.stops.items() if key != scope})

    def find(self, scopes: Iterable[str], now: datetime, *, running: bool = False) -> Stop | None:
        """Return the first stop in force of these scopes.

        `running`: only what makes open sagas wait.
        """
        if not self.known:
            return UNKNOWN
        found = (self.stops[scope] for scope in scopes if scope in self.stops)
        return next((e for e in found if e.lasts(now) and (e.running or not running)), None)


NOT_STOPPED: Final = StopState()
UNKNOWN: Final = Stop(
    running=True,
    reason="whether a stop is in force is not known: neither POOLS nor LEASES can be read",
    by="the pool-manager",
    since=datetime.fromisoformat("1970-01-01T00:00:00+00:00"),
)
"""In force until it is known."""


def scope_of(pool: str, provider: str) -> str:
    """Return the scope of a stop."""
    if pool:
        return f"pool.{pool}"
    return f"provider.{provider}" if provider else FLEET


class _ScopeRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Names a part of the fleet."""

    pool: OptionalToken = ""
    """Only this pool; empty, and no provider: the whole fleet."""
    provider: Name = ""
    """Only what calls this provider."""
    by: Name = ""
    """The gateway's caller; it counts in an order of the gateway alone."""

    def __post_init__(self) -> None:
        """Refuse two scopes at once."""
        if self.pool and self.provider:
            raise ValueError("name a pool or a provider, not both")


class StopRequest(_ScopeRequest, frozen=True, kw_only=True):
    """Requests that nothing automatic begins."""

    running: bool = False
    """Open sagas wait, too, before their pivot and each step that has no undo."""
    until: UtcTime | None = None
    """When it ends by itself; empty: `resume` ends it."""
    reason: GivenReason


class ResumeRequest(_ScopeRequest, frozen=True, kw_only=True):
    """Requests that a stop ends; of a part of the fleet, where it is that part's own stop."""

    reason: Reason = ""


class WaitingStart(msgspec.Struct, frozen=True, kw_only=True):
    """Says what would begin if a stop ended now."""

    pool: str
    kind: str
    node: str = ""
    """Empty: a launch."""
    reason: str = ""
    dollars_per_hour: Float = 0.0
    """Of the node, as its provider sells it; 0: not known."""


class StopsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Every stop in force, and what waits for it."""

    stops: tuple[Stop, ...] = ()
    waiting: tuple[WaitingStart, ...] = ()
    """The first of them."""
    waiting_total: Int = 0
    """-1: it is not known, as the pool-manager does not answer."""
    dollars_per_hour: Float = 0.0
    """Of all nodes that wait to be repaired or removed."""
