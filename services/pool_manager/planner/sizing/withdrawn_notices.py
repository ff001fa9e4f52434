"""Gives nodes back that were taken out of service ahead of the cloud, which then let them be. Pure.

That is, it withdrew its notice, or it restarted the node and gave it back.

While a saga is open the withdrawal of its notice unwinds it. One that had failed by then has left
its node cordoned, which was right as long as the notice was in force.
"""

from dataclasses import replace
from datetime import datetime
from typing import Final

import msgspec

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import announced_restarts, cloud_notices
from services.pool_manager.planner.node_counts import Nodes, busy
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.sizing.open_sagas import begin, with_open

WITHDRAWN: Final = "the cloud has withdrawn its notice"
RESTARTED: Final = "the restart that the cloud had announced is over"


def returning(record: PoolRecord, nodes: Nodes, now: datetime) -> list[NodeRecord]:
    """Nodes that are out of service only for a notice that is no longer in force."""
    taken = busy(record)
    return [
        node
        for node in nodes.needs_attention
        if node.sole_notice
        and node.cordoned
        and node.health != "unhealthy"
        and not node.lost
        and node.node not in taken
        and cloud_notices.current_notice(node) is None
        and announced_restarts.awaited_restart(node, now) is None
        and announced_restarts.is_back(node, node.notices.get(node.sole_notice))
    ]


def give_back(snapshot: PoolSnapshot, begun: PoolPlan, now: datetime) -> PoolPlan:
    """Begin to put them into service again."""
    for node in returning(begun.record, snapshot.nodes, now):
        saga, opened, record = begin(snapshot.fleet, begun.record, "uncordon", now, node=node)
        note = node.notices.get(node.sole_notice)
        reason = RESTARTED if note is not None and not note.withdrawn else WITHDRAWN
        opened = msgspec.structs.replace(opened, reason=reason)
        begun = replace(
            begun, record=with_open(record, saga, opened), start={**begun.start, saga: opened}
        )
    return begun
