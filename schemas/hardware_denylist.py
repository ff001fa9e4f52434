"""HARDWARE: GPUs and hosts that are not admitted any more."""

from schemas.messages import Record, UtcTime
from schemas.reasons import HardwareKind


class HardwareRecord(Record, frozen=True, kw_only=True):
    """HARDWARE `<kind>.<identity>`: a GPU or a host that is not admitted any more."""

    kind: HardwareKind
    value: str
    reason: str
    since: UtcTime
    pool: str = ""
    node: str = ""
    """The node that it was bad in."""
    saga: str = ""
    by: str = ""
    """Who listed it; empty: a replacement did."""
