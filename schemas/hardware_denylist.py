"""HARDWARE: GPUs and hosts that are not admitted any more."""

from typing import Annotated

import msgspec

from schemas.enums import HardwareKind
from schemas.messages import Record, UtcTime


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


class HardwareAdd(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks the pool-manager to refuse a GPU or a host from now on (`query.hardware-add`)."""

    kind: HardwareKind
    value: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    node: str = ""
    by: str = ""


class HardwareForget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks the pool-manager to admit it again (`query.hardware-forget`)."""

    kind: HardwareKind
    value: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    by: str = ""
