"""Decides which requests about a node are refused: by holds, observe mode, and what it is. Pure."""

from datetime import datetime
from typing import Final

from schemas.enums import Refusal
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner.gates import node_gates, pool_gates
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.node_counts import is_lasting
from services.saga.definitions import ON_REQUEST

SPARES_REFUSE: Final = ("uncordon", "drain", "reset-gpu", "reboot", "terminate")
"""Requests that make no sense of a spare."""


def node_refusal(
    verb: str, node: NodeRecord, record: PoolRecord, now: datetime
) -> tuple[Refusal, str] | None:
    """Return why what an operator asks of a node is refused; None where it is not."""
    requested = ON_REQUEST.get(verb)
    proposed = Proposal("repair", record, now, node)
    if requested is not None and pool_gates.observe(proposed) is not None:
        return "observing", (
            f"pool {record.name} has mode: observe, in which nothing is touched; set mode: act for "
            "the pool and the fleet, restart the pool-manager, and ask again"
        )
    disrupts = requested is not None and (requested.disrupts or requested.removes_node)
    if disrupts and node_gates.hold(proposed) is not None:
        return "held", (
            f"{node.node} is held {_described(node)}; first: navarch release {node.node}"
        )
    if verb == "replace" and is_lasting(node, record):
        out = f"take it out (navarch leave {node.node})"
        if record.spec.nodes == "adopted":
            out = f"take it out of its partition, and after its repair navarch uncordon {node.node}"
        return "wrong-state", (
            f"nothing makes another machine in place of {node.node}, which was there before the "
            f"fleet: drain it (navarch drain {node.node}), or {out}"
        )
    if node.spare and verb in SPARES_REFUSE:
        return "wrong-state", (
            f"{node.node} is a spare, cordoned in reserve: it goes into service when a node is "
            f"replaced or the pool grows (navarch scale {record.name}); navarch replace "
            f"{node.node} renews it"
        )
    return None


def _described(node: NodeRecord) -> str:
    assert node.held_until is not None
    by = f" by {node.held_by}" if node.held_by else ""
    return f"until {node.held_until:%m-%d %H:%M} UTC{by}: {node.held_reason}"
