"""Unhealthy nodes that share a job with a node that is being taken out of service anyway. Pure.

The job stops with the first of its nodes. To begin the others in the same interruption costs it
nothing more; to let them wait for the budget interrupts it once for each.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from schemas.breaker_state import Breaker
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner.disruption_budget import Allowance
from services.pool_manager.planner.node_counts import Nodes
from services.saga.definitions import DEFINITIONS

CAP_TIMES: Final = 2
"""So many times the pool's own level and rate may be used where nodes share a job. The fleet's
budget is never exceeded."""


def may_join(shut: Breaker) -> bool:
    """Return whether only the pool's budget holds the others: no wave, no operator, no ramp."""
    spent = shut.state == "open" and shut.cause in ("level", "rate")
    return not shut.forced and not shut.ramp and (shut.state == "closed" or spent)


def widened(allowance: Allowance) -> Allowance:
    """Return what may be begun where nodes share a job."""
    return replace(
        allowance,
        level=allowance.level * CAP_TIMES,
        rate=None if allowance.rate is None else allowance.rate * CAP_TIMES,
    )


def interrupted(record: PoolRecord, nodes: Nodes) -> dict[str, str]:
    """Gang -> a node of it that an open saga takes out of service before the work has finished."""
    found: dict[str, str] = {}
    for opened in record.open.values():
        node = nodes.by_name.get(opened.node)
        waits = (opened.drain or record.spec.drain) == "wait"
        if node is not None and DEFINITIONS[opened.kind].disrupts and not waits:
            for gang in node.gangs:
                found.setdefault(gang, node.node)
    return found


def shared_reason(node: NodeRecord, interrupts: dict[str, str]) -> str:
    """Return the job that a node shares and the node it shares it with; empty: none."""
    shared: Iterable[str] = (gang for gang in node.gangs if gang in interrupts)
    gang = next(iter(shared), "")
    return f"with {interrupts[gang]}, which runs the same job {gang}" if gang else ""
