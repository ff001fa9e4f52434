"""Bounds how many of a pool's nodes are cordoned for faults: a share of it stays schedulable. Pure.

A cordon ends no work, so it waits for no budget and no breaker. What the kernel or NVML calls fatal
may cordon a whole pool: work that is placed there is lost. Any other verdict comes from a rule that
may be wrong, and leaves half of the pool schedulable.
"""

import math
from typing import Final

from schemas.fault_signature import is_fatal
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner.node_counts import Nodes
from services.saga.definitions import DEFINITIONS

FLOOR: Final = "50%"
"""The share that stays schedulable where a verdict is no fatal fault of the kernel or of NVML."""


def floor_of(record: PoolRecord, node: NodeRecord) -> int:
    """Return how many nodes stay schedulable when this one is cordoned for its fault."""
    stated = record.spec.budget.cordon_floor
    if stated is None:
        stated = 0 if is_fatal(node.health_kind, node.health_code) else FLOOR
    if isinstance(stated, int):
        return stated
    return math.floor(record.desired * float(stated.removesuffix("%")) / 100 + 1e-9)


def refuses(record: PoolRecord, nodes: Nodes, node: NodeRecord) -> bool:
    """Return whether too few nodes would stay schedulable."""
    least = floor_of(record, node)
    return least > 0 and _schedulable(record, nodes) <= least


def _schedulable(record: PoolRecord, nodes: Nodes) -> int:
    out = {each.node for each in nodes.needs_attention if each.cordoned or each.spare or each.lost}
    out |= {each.node for each in record.open.values() if DEFINITIONS[each.kind].cordons}
    return len(nodes.active) - len(nodes.active & out)
