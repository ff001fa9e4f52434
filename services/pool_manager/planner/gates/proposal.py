"""Declares what would begin by itself, as the gates look at it. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, get_args

import msgspec

from schemas.health_records import HealthRecord
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from schemas.stops import Stop
from services.pool_manager.planner.disruption_budget import Allowance
from services.pool_manager.planner.pool_snapshot import NodeUse

Kind = Literal[
    "launch",
    "promotion",
    "repair",
    "degraded",
    "renewal",
    "surplus",
    "idle-shutdown",
    "restart-drain",
    "spare",
    "rack",
    "quarantine",
    "recheck",
    "reserve",
    "release",
]
"""What is proposed: `repair` of an unhealthy or silent node, `degraded` of one that works, `rack`
as a whole; a `spare` takes a place, `reserve` cordons it again, `release` gives a node, or its
GPUs, back to work."""
ALL: Final[frozenset[Kind]] = frozenset(get_args(Kind))


class Proposal(msgspec.Struct, frozen=True):
    """Something that would begin by itself in a pool; passes make one for every node."""

    kind: Kind
    record: PoolRecord
    now: datetime
    node: NodeRecord | None = None
    """None: of no node in particular."""
    use: Mapping[str, NodeUse] | None = None
    """Of the nodes that may leave; None: not read."""
    retiring: Sequence[datetime] = ()
    """When the cloud takes the pool's nodes that it retires, earliest first."""
    health: HealthRecord | None = None
    """Of the node, with what is known beside its verdict."""
    allowed: Allowance | None = None
    """By the budget; None: not counted."""
    full: str = ""
    """Why no saga more may begin in the pool; empty: one may, or they were not counted."""
    stop: Stop | None = None
    """The stop in force that holds something of the pool, where that is to be named."""
