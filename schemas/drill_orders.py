"""An operator's order of a drill, a fault that a node's hardware does not have, and its event."""

from typing import Annotated, Final

import msgspec

from schemas.enums import DrillKind, DrillReach, FaultKind
from schemas.messages import POOL_MANAGER
from schemas.node_event import NodeEvent
from schemas.value_limits import Int, Name, Token

DRILL_CODE_MAX: Final = 100_000
"""Above every XID and SXID of the driver."""
GPU_INDEX_MAX: Final = 255
CODED: Final[tuple[DrillKind, ...]] = ("xid", "sxid")
"""Kinds of faults that have a code."""
DrillCode = Annotated[int, msgspec.Meta(ge=0, le=DRILL_CODE_MAX)]
GpuIndex = Annotated[int, msgspec.Meta(ge=0, le=GPU_INDEX_MAX)]


class DrillOrder(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Begin a drill on a node (`order.drill.<user>`)."""

    pool: Token
    node: Token
    kind: DrillKind
    code: DrillCode = 0
    """XID or SXID; 0 for the other kinds."""
    subcode: Name = ""
    gpu: GpuIndex = 0
    act: bool = False
    """Do all that the health policy demands; else the node is cordoned and drained."""
    by: Name = ""
    """The gateway's caller; it counts in an order of the gateway alone."""


class DrillStarted(NodeEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """An operator began a drill: a fault is reported that the hardware does not have."""

    kind: FaultKind
    code: Int = 0
    subcode: Name = ""
    gpu_index: Int = -1
    reach: DrillReach = "drain"
    by: Name = ""
    remedy: str = ""
    """How the drill is ended."""
