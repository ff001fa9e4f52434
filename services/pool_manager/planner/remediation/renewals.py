"""Which healthy nodes are replaced at leisure, since their pool's `expire_after` is over. Pure.

Nothing is wrong with them, so everything else goes first: they leave in a service window or, in a
pool without any, once they have no work, and half of the budget is kept for unhealthy nodes. From
nine tenths of `expire_after` on a node may leave, at a moment of its own, so that nodes that were
launched together do not leave together; when all of it is over its work is waited for no longer
than any drain does.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from zlib import crc32

import msgspec

from schemas.duration import format_duration
from schemas.fault_signature import EXPIRED
from schemas.node_records import NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from services.pool_manager.planner import cloud_notices
from services.pool_manager.planner.node_counts import busy, cordons_wait
from services.pool_manager.planner.pool_snapshot import PoolSnapshot, earlier, to_come
from services.pool_manager.planner.remediation import obstacles, remedy_selection
from services.pool_manager.planner.remediator import RemedyChoice
from services.pool_manager.planner.retirements import USES_READ_MAX, is_idle
from services.pool_manager.planner.safety import eligibility

JITTER: Final = 0.1
"""Share of `expire_after` over which nodes of one age leave."""
ASKED_FOR: Final = timedelta(minutes=1)
"""So long the same nodes are asked for their use, where there are more than may be asked."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """Why a healthy node is to be replaced."""

    what: str
    """As sagas of one cause are grouped: `expired`."""
    reason: str
    since: datetime
    latest: datetime
    """When it leaves with its work, in a pool without service windows."""


def renewal(node: NodeRecord, record: PoolRecord, now: datetime) -> Renewal | None:
    """Why a node is to be replaced although it is well; None: it may stay, or leaves otherwise.

    A cordoned node is an operator's business, and a notice of the cloud has its own time.
    """
    if node.state != "active" or node.health == "unhealthy" or node.lost or record.removing:
        return None
    if (node.cordoned and not node.spare) or cloud_notices.taken_reason(node):
        return None
    times = _times(node, record)
    if times is None or now < times[0]:
        return None
    assert node.admitted_at is not None
    reason = (
        f"expired: in service since {node.admitted_at:%Y-%m-%d %H:%M} UTC, and expire_after is "
        f"{format_duration(record.spec.expire_after)}"
    )
    return Renewal(EXPIRED, reason, *times)


def candidates(
    snapshot: PoolSnapshot, record: PoolRecord, now: datetime
) -> list[tuple[NodeRecord, RemedyChoice]]:
    """Nodes that may leave now: a spare first, then those without work, the oldest first.

    Of spares one at a time is renewed, since they count against no budget.
    """
    use = snapshot.use or {}
    reserve_leaves = any(each.spare and each.node for each in record.open.values())
    found: list[tuple[bool, bool, datetime, str, NodeRecord, Renewal]] = []
    for node, due in _due(snapshot, record, now):
        if node.spare and reserve_leaves:
            continue
        reserve_leaves |= node.spare
        rests = node.node in use and is_idle(use[node.node].gpus, now)
        if rests or node.spare or now >= due.latest or remedy_selection.is_served(record):
            found.append((not node.spare, not rests, due.since, node.node, node, due))
    found.sort(key=lambda each: each[:4])
    return [(node, RemedyChoice(remedy="replace", reason=due.reason)) for *_, node, due in found]


def asked_about(snapshot: PoolSnapshot, now: datetime) -> list[str]:
    """Those whose use decides whether, or when, they leave: of very many, others each minute."""
    if not may_begin(snapshot.record, now):
        return []
    due = [node.node for node, _ in _due(snapshot, snapshot.record, now) if not node.spare]
    if len(due) <= USES_READ_MAX:
        return due
    begin = int(now.timestamp() / ASKED_FOR.total_seconds()) * USES_READ_MAX % len(due)
    return (due[begin:] + due[:begin])[:USES_READ_MAX]


def may_begin(record: PoolRecord, now: datetime) -> bool:
    """Whether nothing else in the pool is in need of attention."""
    spec, breaker = record.spec, record.breaker
    if not spec.health.auto_replace or breaker.state != "closed" or breaker.ramp:
        return False
    if record.renew_at is not None and now < record.renew_at:
        return False
    return not (cordons_wait(record, now) or obstacles.launches_fail(record, now))


def opening(opened: OpenSaga, node: NodeRecord, choice: RemedyChoice) -> OpenSaga:
    """The saga that replaces it: for no fault, and a node in service returns if it fails."""
    return msgspec.structs.replace(
        opened,
        reason=choice.reason,
        fault="",
        action="none",
        fault_signature=EXPIRED,
        restores_service=not (node.spare or opened.promotes),
    )


def next_moment(snapshot: PoolSnapshot, record: PoolRecord, now: datetime) -> datetime | None:
    """When the next node expires, or is to leave at last."""
    if not record.spec.expire_after:
        return None
    found = to_come(record.renew_at, now)
    for node in snapshot.nodes:
        for moment in _times(node, record) or ():
            found = earlier(found, to_come(moment, now))
    return found


def _due(
    snapshot: PoolSnapshot, record: PoolRecord, now: datetime
) -> list[tuple[NodeRecord, Renewal]]:
    """Nodes that are due and that nothing keeps in service, the first one first."""
    if not record.spec.expire_after:
        return []
    taken = busy(record)
    found = [
        (node, due)
        for node in snapshot.nodes
        if (due := renewal(node, record, now)) is not None
        and node.node not in taken
        and not eligibility.blocked_reason(node, record, now, can_wait=True)
    ]
    found.sort(key=lambda each: (each[1].since, each[0].node))
    return found


def _times(node: NodeRecord, record: PoolRecord) -> tuple[datetime, datetime] | None:
    """From when a node may leave for its age, and when it leaves at last; None: never."""
    if not record.spec.expire_after or node.admitted_at is None:
        return None
    share = JITTER * crc32(node.node.encode()) / 2**32
    whole = timedelta(seconds=record.spec.expire_after)
    return node.admitted_at + whole * (1 - share), node.admitted_at + whole
