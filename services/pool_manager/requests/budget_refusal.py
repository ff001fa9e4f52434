"""Refuses to take one more node out of service than the budget allows, and names the ways on. Pure.

The level is a count and no window, so no time can be named: it has room once a node is back. Only a
request that disrupts is limited. A cordon disrupts no work, is answered and kept like any other
request, and its node counts as out of service from then on: so an operator goes beyond the budget
by two requests, of which the first says who wanted that and why.
"""

from datetime import datetime
from typing import Final

from schemas.node_records import NodeRecord
from services.operator_text.quantities import first_of
from services.pool_manager.planner.disruption_budget import allowance
from services.pool_manager.planner.node_counts import (
    is_gone,
    takes_out_no_more,
    units_out,
)
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.safety.breaker_messages import spent_words
from services.pool_manager.requests.request_replies import RefusedError
from services.saga.definitions import ON_REQUEST

NAMED_MAX: Final = 3


def check_budget(verb: str, node: NodeRecord, snapshot: PoolSnapshot, now: datetime) -> None:
    """Refuse what would take one node more out of service than may be."""
    record, nodes = snapshot.record, snapshot.nodes
    if not ON_REQUEST[verb].disrupts or is_gone(node) or takes_out_no_more(record, nodes, node):
        return
    allowed = allowance(record, nodes, None, now)
    if allowed.unavailable < allowed.level:
        return
    out = sorted(units_out(record, nodes))
    named = f": {first_of(out, NAMED_MAX)}" if out else ""
    raise RefusedError(
        "budget-exhausted",
        f"{spent_words(record, allowed, 'level', now)}{named}; wait until one is back, or, to go "
        f"beyond the budget: navarch cordon {node.node} --reason TEXT --wait, and ask again",
    )
