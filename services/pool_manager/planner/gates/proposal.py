"""Declares what would begin by itself, as the gates look at it. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, get_args

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord

Kind = Literal[
    "repair",
    "degraded",
    "renewal",
    "surplus",
    "idle-shutdown",
    "restart-drain",
    "promotion",
    "rack",
    "quarantine",
    "recheck",
    "reserve",
    "release",
]
"""What is proposed: `repair` of an unhealthy or silent node, `degraded` of one that works, `rack`
as a whole; `reserve` cordons a spare again, `release` gives a node, or its GPUs, back to work."""
ALL: Final[frozenset[Kind]] = frozenset(get_args(Kind))


@dataclass(frozen=True, slots=True)
class Proposal:
    """Something that would begin by itself in a pool."""

    kind: Kind
    record: PoolRecord
    now: datetime
    node: NodeRecord | None = None
    """None: of no node in particular."""
