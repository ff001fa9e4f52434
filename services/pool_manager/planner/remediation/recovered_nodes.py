"""Remediations that are no longer needed: of nodes that were silent and have returned. Pure.

Silence was all that was held against them. What was seen of a node itself, what a person asked for
and what the cloud announced are not taken back by a heartbeat. A remediation that has not begun is
not needed either where the verdict that it is for was followed by a healthy one.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from schemas.enums import SagaKind
from schemas.fault_signature import RACK, RENEWALS, SILENCE, called
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from schemas.saga_params import SagaTraits
from services.pool_manager.planner import cloud_notices
from services.pool_manager.planner.node_counts import automatic, is_for_silence, is_left_by_repair
from services.pool_manager.planner.remediator import lacks_driver
from services.saga.definitions import DEFINITIONS

HEARD: Final = "the node is heard again"
HEALTHY: Final = "the node is healthy again"
WORKS: Final = "its repair has failed, and a degraded node may work"
SETTLED: Final = timedelta(seconds=60)
"""So long after a failed repair of a degraded node what the repair has broken would be reported."""


def recovered(
    record: PoolRecord, nodes: Mapping[str, NodeRecord]
) -> Iterable[tuple[str, NodeRecord]]:
    """The sagas that were begun for silence alone and whose node is heard and well, with it."""
    for saga, opened in record.open.items():
        if not is_for_silence(opened.kind, opened) or not automatic(opened):
            continue
        node = nodes.get(opened.node)
        if node is not None and not node.lost and not has_other_reason(node):
            yield saga, node


def unfounded(kind: SagaKind, saga: SagaTraits, node: NodeRecord) -> str:
    """Return why our own saga, not begun, need not begin; empty: its reason is still there.

    `node` beats where the saga is for its silence. Between decision and beginning minutes may pass
    in which the server stores nothing. A node that leaves with its rack may be healthy.
    """
    if not DEFINITIONS[kind].remediates or saga.by or has_other_reason(node):
        return ""
    if saga.fault_signature == RACK:
        return ""
    if is_for_silence(kind, saga):
        return HEARD
    verdict = bool(saga.fault) and not saga.notice
    return HEALTHY if verdict and node.health == "healthy" and not node.lost else ""


def is_well_after_repair(node: NodeRecord, now: datetime) -> bool:
    """Return whether a node that a failed repair has left cordoned may work.

    A host may come up after the deadline of its reboot. Silence is over with a heartbeat, any other
    fault with a verdict that came later, and a renewal is for no fault. A degraded node is no worse
    than it was in service before. An operator's cordon stays.
    """
    if not node.cordoned or node.lost or not is_left_by_repair(node):
        return False
    last = node.attempts[-1]
    if last.ended_at is None:
        return False
    if last.for_silence or last.fault_signature in {SILENCE, *RENEWALS}:
        return not has_other_reason(node)
    if (at := works_at(node)) is not None:
        return now >= at
    judged = node.health_at is not None and node.health_at > last.ended_at
    return bool(last.fault_signature) and judged and node.health == "healthy"


def works_at(node: NodeRecord) -> datetime | None:
    """Return when a degraded node whose repair in place failed may work again; None: it is none.

    The repair was for what it still has, and its boot has passed its checks. One with a faulty GPU,
    or that failed its check after the repair, is replaced; one without its driver waits for people.
    """
    kept = node.faulty_gpus or lacks_driver(node)
    if node.health != "degraded" or kept or not is_left_by_repair(node):
        return None
    last = node.attempts[-1]
    same = last.fault_signature == called(node.health_kind, node.health_code)
    if last.ended_at is None or not same or not DEFINITIONS[last.kind].in_place:
        return None
    checked = bool(node.boot_checked) and node.boot_checked_id == node.boot_id
    return last.ended_at + SETTLED if checked and not last.unfit else None


def is_unfit(node: NodeRecord) -> bool:
    """Return whether a node is cordoned because it failed its check after a repair."""
    return is_left_by_repair(node) and node.attempts[-1].unfit


def has_other_reason(node: NodeRecord) -> bool:
    """Return whether a node that is heard again must leave all the same."""
    return node.health == "unhealthy" or cloud_notices.current_notice(node) is not None
