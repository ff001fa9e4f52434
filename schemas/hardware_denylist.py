"""The denylist: GPUs and hosts that must not be admitted, bucket HARDWARE."""

from typing import Annotated

import msgspec

from schemas.enums import HardwareKind
from schemas.messages import Record
from schemas.value_limits import Name, UtcTime


class HardwareRecord(Record, frozen=True, kw_only=True):
    """HARDWARE `<kind>.<identity>`: a GPU or a host that must not be admitted."""

    kind: HardwareKind
    value: str
    reason: str
    since: UtcTime
    until: UtcTime | None = None
    """When it is forgotten; None: after 180 days."""
    pool: str = ""
    node: str = ""
    """The node that it failed in."""
    saga: str = ""
    by: str = ""
    """The operator who listed it; empty: a replacement did."""

    @property
    def reporter(self) -> str:
        """Return the node from whose agent's report it comes; empty: an operator listed it."""
        return "" if self.by else self.node


class HardwareAdd(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Add a GPU or a host to the denylist (`order.hardware-add.<user>`)."""

    kind: HardwareKind
    value: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    node: str = ""
    by: Name = ""
    """The gateway's caller; it counts in an order of the gateway alone."""


class HardwareForget(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Remove a GPU or a host from the denylist (`order.hardware-forget.<user>`)."""

    kind: HardwareKind
    value: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    by: Name = ""
    """The gateway's caller; it counts in an order of the gateway alone."""
