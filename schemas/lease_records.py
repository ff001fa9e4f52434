"""Leases and rate limits that replicas share: bucket LEASES."""

from schemas.messages import Record, UtcTime


class LeaseRecord(Record, frozen=True, kw_only=True):
    """LEASES `<name>`: who does what only one may do."""

    holder: str
    since: UtcTime


class RateLimitRecord(Record, frozen=True, kw_only=True):
    """LEASES `pace-<name>`: whose turn it is at something that may be asked only so often.

    The turn begins when this was stored, or at `not_before`, whichever is later.
    """

    not_before: UtcTime | None = None
    kind: str = ""
    """Of a turn of which there may be fewer still: `launch`."""
    slower: dict[str, UtcTime] = {}
    """Kind -> from when on the next of it may be; that of this very turn is counted anew."""
