"""Remediations that are no longer needed: of nodes that were silent and have returned. Pure.

Silence was all that was held against them. What was seen of a node itself, what a person asked for
and what the cloud announced are not taken back by a heartbeat.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from schemas.fault_signature import SILENCE
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import cloud_notices
from services.pool_manager.planner.node_counts import automatic
from services.pool_manager.sagas import DEFINITIONS

HEARD: Final = "the node is heard again"


def recovered(
    record: PoolRecord, nodes: Mapping[str, NodeRecord]
) -> Iterable[tuple[str, NodeRecord]]:
    """The sagas that were begun for silence alone and whose node is heard and well, with it."""
    for saga, opened in record.open.items():
        if (
            not DEFINITIONS[opened.kind].disrupts
            or opened.fault_signature != SILENCE
            or not automatic(opened)
        ):
            continue
        node = nodes.get(opened.node)
        if node is None or node.lost or node.health == "unhealthy":
            continue
        if cloud_notices.current_notice(node) is None:
            yield saga, node
