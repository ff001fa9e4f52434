"""Decides which healthy nodes are replaced at leisure: too old, drifted, or too dear. Pure.

Nothing is wrong with them, so everything else goes first: they leave in a service window or, in a
pool without any, once they have no work, within a budget of their own. From
nine tenths of `expire_after` on a node may leave, at a moment of its own, so that nodes that were
launched together do not leave together; when all of it is over its work is waited for no longer
than any drain does. A drifted node was launched with other settings than its pool has now. None
leaves before its successor comes while none could come.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from zlib import crc32

import msgspec

from schemas.duration import format_duration
from schemas.fault_signature import CONSOLIDATED, DRIFTED, EXPIRED, RENEWALS
from schemas.node_records import NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from services.pool_manager.planner import cloud_notices, rack_units
from services.pool_manager.planner.disruption_budget import Allowance, allowance
from services.pool_manager.planner.gates import gate_table
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.idle_nodes import is_idle
from services.pool_manager.planner.node_counts import Nodes, busy
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot, earlier, to_come
from services.pool_manager.planner.remediation import (
    consolidation,
    drift,
    launch_room,
    remedy_selection,
)
from services.pool_manager.planner.remediator import RemedyChoice
from services.pool_manager.planner.retirements import USES_READ_MAX

JITTER: Final = 0.1
"""Share of `expire_after` over which nodes of one age leave."""
ASKED_FOR: Final = timedelta(minutes=1)
"""So long the same nodes are asked for their use, where there are more than may be asked."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """Say why a healthy node is to be replaced."""

    what: str
    """`expired`, `drifted` or `consolidated`."""
    reason: str
    since: datetime
    latest: datetime | None = None
    """When it leaves with its work, in a pool without service windows; None: never."""


Candidate = tuple[NodeRecord, RemedyChoice, str]
"""A node that may leave, and for what."""


def renewal(node: NodeRecord, record: PoolRecord, now: datetime) -> Renewal | None:
    """Return why a node is to be replaced although it is well; None: it is not.

    A cordoned node is an operator's business, and a notice of the cloud has its own time.
    """
    if not is_configured(record) or record.removing:
        return None
    if node.state != "active" or node.health == "unhealthy" or node.lost:
        return None
    if (node.cordoned and not node.spare) or cloud_notices.taken_reason(node):
        return None
    found = _expired(node, record, now) or _drifted(node, record, now)
    return found or _dear(node, record, now)


def is_configured(record: PoolRecord) -> bool:
    """Return whether a pool replaces healthy nodes."""
    spec = record.spec
    return bool(spec.expire_after or spec.consolidation.min_saving) or spec.drift == "replace"


def candidates(snapshot: PoolSnapshot, record: PoolRecord, now: datetime) -> list[Candidate]:
    """Nodes that may leave now, and for what: those that are late, a spare, those without work.

    Of spares one at a time is renewed, since they count against no level. They count in the rate:
    were they always the first, a small rate would never come to the others.
    """
    reserve_leaves = any(each.spare and each.node for each in record.open.values())
    found: list[tuple[bool, bool, bool, bool, datetime, str, NodeRecord, Renewal]] = []
    for node, due in _due(snapshot, record, now):
        if node.spare and reserve_leaves:
            continue
        reserve_leaves |= node.spare
        rests = is_idle(node, snapshot.use, now)
        late_since = due.latest if due.latest is not None and now >= due.latest else None
        at_last = late_since is not None
        if rests or node.spare or at_last or remedy_selection.is_served(record):
            since = late_since or due.since
            if node.spare and at_last:  # an old one would take the place of a node of its age
                since -= timedelta(seconds=record.spec.expire_after) * JITTER
            first = (node.no_room_since is None, not at_last, not (at_last or node.spare))
            found.append((*first, not (at_last or rests), since, node.node, node, due))
    found.sort(key=lambda each: each[:6])
    return [
        (node, RemedyChoice(remedy="replace", reason=due.reason), due.what)
        for *_, node, due in found
    ]


def needs_room(found: PoolPlan) -> bool:
    """Return whether a healthy node would leave before its successor comes."""
    spec = found.record.spec
    return spec.nodes == "launched" and any(
        each.fault_signature in RENEWALS and (each.order or spec.replace_order) == "terminate_first"
        for each in found.start.values()
    )


def with_room(
    snapshot: PoolSnapshot, record: PoolRecord, now: datetime
) -> tuple[PoolRecord, list[Candidate]]:
    """Return the candidates that may leave first; where none may, the record says until when."""
    found, spec = candidates(snapshot, record, now), record.spec
    first = spec.replace_order == "terminate_first" and spec.nodes == "launched"
    if snapshot.offered is None or not first:
        return record, found
    may = launch_room.allowed(record, snapshot.offered)
    left = [
        (node, choice, what)
        for node, choice, what in found
        if what == CONSOLIDATED or not launch_room.leaves_gap(node, may, now)
    ]
    if found and not left:
        again = now + launch_room.LOOK_AGAIN
        record = msgspec.structs.replace(record, renew_at=again, renew_wait=launch_room.NO_ROOM)
    return record, left


def asked_about(snapshot: PoolSnapshot, now: datetime) -> list[str]:
    """Return those whose use decides when they leave: of very many, others each minute."""
    if not may_begin(snapshot.record, now):
        return []
    left = allowance(snapshot.record, snapshot.nodes, snapshot.others, now).for_no_fault()
    if left.refusal(cordoned=False):
        return []
    due = [node.node for node, _ in _due(snapshot, snapshot.record, now) if not node.spare]
    if len(due) <= USES_READ_MAX:
        return due
    begin = int(now.timestamp() / ASKED_FOR.total_seconds()) * USES_READ_MAX % len(due)
    return (due[begin:] + due[:begin])[:USES_READ_MAX]


def may_begin(record: PoolRecord, now: datetime) -> bool:
    """Return whether nothing else in the pool is in need of attention."""
    return is_configured(record) and gate_table.first(Proposal("renewal", record, now)) is None


def rack_waits(record: PoolRecord, nodes: Nodes, node: NodeRecord, left: Allowance) -> bool:
    """Return whether as many racks are out as may be for renewals, and the node's is none of them.

    A rack that is out already, for a broken node, is not emptied at leisure because of that.
    """
    if node.spare or not rack_units.is_by_rack(record) or not left.refusal(cordoned=False):
        return False
    renewed = (each for each in record.open.values() if each.fault_signature in RENEWALS)
    units = {rack_units.unit_of_saga(record, each, nodes.racks) for each in renewed}
    return rack_units.unit_of(record, node, nodes.racks) not in units


def opening(
    opened: OpenSaga, node: NodeRecord, record: PoolRecord, reason: str, what: str
) -> OpenSaga:
    """The saga that replaces it: for no fault, and a node in service returns if it fails."""
    if what == CONSOLIDATED:
        opened = consolidation.opening(opened, record)
    return msgspec.structs.replace(
        opened,
        reason=reason,
        fault="",
        action="none",
        fault_signature=what,
        restores_service=not (node.spare or opened.promotes),
    )


def next_moment(snapshot: PoolSnapshot, record: PoolRecord, now: datetime) -> datetime | None:
    """When the next node expires, or is to leave at last."""
    if not is_configured(record):
        return None
    found = to_come(record.renew_at, now)
    for node in snapshot.nodes if record.spec.expire_after else ():
        for moment in _times(node, record) or ():
            found = earlier(found, to_come(moment, now))
    return found


def _due(
    snapshot: PoolSnapshot, record: PoolRecord, now: datetime
) -> list[tuple[NodeRecord, Renewal]]:
    """Nodes that are due and that nothing keeps in service, the first one first."""
    if not is_configured(record):
        return []
    taken = busy(record)
    found = [
        (node, due)
        for node in snapshot.nodes
        if (due := renewal(node, record, now)) is not None
        and node.node not in taken
        and gate_table.first(Proposal("renewal", record, now, node)) is None
    ]
    found.sort(key=lambda each: (each[1].since, each[0].node))
    return found


def _expired(node: NodeRecord, record: PoolRecord, now: datetime) -> Renewal | None:
    times = _times(node, record)
    if times is None or node.admitted_at is None or now < times[0]:
        return None
    reason = (
        f"expired: in service since {node.admitted_at:%Y-%m-%d %H:%M} UTC, and expire_after is "
        f"{format_duration(record.spec.expire_after)}"
    )
    return Renewal(EXPIRED, reason, *times)


def _drifted(node: NodeRecord, record: PoolRecord, now: datetime) -> Renewal | None:
    if record.spec.drift != "replace":
        return None
    found = drift.differences(node, record)
    if not found:
        return None
    return Renewal(DRIFTED, drift.sentence(found), record.configured_at or now)


def _dear(node: NodeRecord, record: PoolRecord, now: datetime) -> Renewal | None:
    found = consolidation.current(node, record, now)
    if found is None:
        return None
    return Renewal(CONSOLIDATED, consolidation.sentence(found), found.since)


def _times(node: NodeRecord, record: PoolRecord) -> tuple[datetime, datetime] | None:
    """From when a node may leave for its age, and when it leaves at last; None: never."""
    if not record.spec.expire_after or node.admitted_at is None:
        return None
    share = JITTER * crc32(node.node.encode()) / 2**32
    whole = timedelta(seconds=record.spec.expire_after)
    return node.admitted_at + whole * (1 - share), node.admitted_at + whole
