"""Leases and rate limits that replicas share: bucket LEASES."""

from schemas.messages import Record
from schemas.value_limits import Int, UtcTime


class LeaseRecord(Record, frozen=True, kw_only=True):
    """LEASES `<name>`: the replica that holds a lease."""

    holder: str
    since: UtcTime


class OpeningsRecord(Record, frozen=True, kw_only=True):
    """LEASES `pool-manager.openings.<pool>`: the highest `openings` of a pool whose sagas began.

    A pool's record with fewer was rolled back.
    """

    openings: Int = 0


class RateLimitRecord(Record, frozen=True, kw_only=True):
    """LEASES `provisioner.pace-<name>`: the next slot of a rate limit that replicas share.

    The slot begins when this was stored, or at `not_before`, whichever is later.
    """

    not_before: UtcTime | None = None
    kind: str = ""
    """Kind of call with a lower rate of its own: `launch`."""
    slower: dict[str, UtcTime] = {}
    """Kind -> earliest time of its next slot; recomputed for this slot's own kind."""
