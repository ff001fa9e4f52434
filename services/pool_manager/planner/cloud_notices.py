"""Reads the cloud's notices: which nodes it takes, how urgently, and how they leave. Pure.

Notices of restarts and pauses, after which a node is back, are in `announced_restarts.py`.

A notice is no fault of the node: the hardware is sound, and the cloud takes it whatever we decide.
So its replacement passes the budget and counts in that of nodes without a fault, for which no fault
waits, and no incident holds it back.
The new node is launched at once and the work is notified at once; the drain ends before the cloud
does. A node whose notices come and go is no longer taken at its word: its next ones wait for the
budget as a fault does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from schemas.enums import TAKING
from schemas.node_events import ProviderNotice
from schemas.node_records import DRAINED_BEFORE_SECONDS, CloudNotice, NodeRecord
from schemas.pool_records import PoolRecord
from schemas.settings import PoolSpec
from services.pool_manager.planner.announced_restarts import (
    first_notice,
    is_over_for,
    restart_moments,
    restart_notice,
)
from services.pool_manager.planner.node_counts import is_down, is_gone

AHEAD_SECONDS_MIN: Final = 15.0
"""With less time than this left there is nothing to launch ahead of."""
NOTICES_MAX: Final = 16
"""Remembered of one node; the newest."""
WITHDRAWALS_MAX: Final = 2
"""Withdrawn notices within the window after which a node's notices pass the budget no more."""
WITHDRAWALS_WINDOW: Final = timedelta(hours=1)
REASON_CHARS_MAX: Final = 1_000
LAUNCH_AHEAD: Final = "launch_ahead"
AHEAD: Final = ("replace", "drain")
"""Kinds of the sagas that are opened for a notice."""
ANNOUNCED: Final = ("preemption", "maintenance")
"""Kinds of faults that are the cloud's word, and nothing that the hardware did."""


@dataclass(frozen=True, slots=True)
class Hurry:
    """A drain of a saga that is not to last beyond a moment."""

    node: str
    saga: str
    at: datetime
    reason: str
    notice: str = ""
    """The cloud's, where that is why."""


def record_notice(record: NodeRecord, event: ProviderNotice, stored_at: datetime) -> NodeRecord:
    """Take an announcement, or its withdrawal, into a node's record; an older event is stale.

    Withdrawals are counted by the server's time: the event's is what the agent wrote. A restart
    that is over is not withdrawn where the cloud lists it no more.
    """
    known = record.notices.get(event.notice)
    if (known is not None and event.time < known.at) or _is_of_earlier_machine(record, event):
        return record
    if event.withdrawn and known is not None:
        note = msgspec.structs.replace(known, at=event.time, withdrawn=True)
        if not known.withdrawn and not is_over_for(known, event):
            times = (*record.withdrawals, stored_at)[-WITHDRAWALS_MAX:]
            record = msgspec.structs.replace(record, withdrawals=times)
    else:
        note = CloudNotice(
            kind=event.kind,
            action=event.action,
            reason=event.message[:REASON_CHARS_MAX],
            effect=event.effect,
            deadline=event.deadline,
            window_end=event.window_end,
            at=event.time,
            withdrawn=event.withdrawn,
            boot_id=event.boot_id,
        )
        if known is not None and is_over_for(known, event):
            note = msgspec.structs.replace(known, at=event.time, withdrawn=False)
    newest = sorted({**record.notices, event.notice: note}.items(), key=lambda each: each[1].at)
    return msgspec.structs.replace(record, notices=dict(newest[-NOTICES_MAX:]))


def _is_of_earlier_machine(record: NodeRecord, event: ProviderNotice) -> bool:
    """Whether it was about a machine that had the node's name before, and comes late.

    An agent announces what is in force again after each boot.
    """
    if not event.boot_id or event.boot_id == record.boot_id or record.registered_at is None:
        return False
    return event.time < record.registered_at


def current_notice(node: NodeRecord) -> tuple[str, CloudNotice] | None:
    """The notice in force that takes the node first, if any."""
    return first_notice(node, lambda each: each.effect in TAKING)


def retires_at(node: NodeRecord) -> datetime | None:
    """Return when the cloud takes a node that only a retirement takes; None: none, or not known."""
    found = current_notice(node)
    well = node.health != "unhealthy" or node.health_kind in ANNOUNCED
    if found is None or found[1].effect != "retire" or not well or node.lost or node.spare:
        return None
    return found[1].deadline


def taken_reason(node: NodeRecord) -> str:
    """Return why the cloud takes a node; empty where it does not."""
    found = current_notice(node)
    if found is None:
        return ""
    reason = found[1].reason or f"the cloud takes it back ({found[1].kind})"
    if len(node.withdrawals) == WITHDRAWALS_MAX:
        reason += f" (after {WITHDRAWALS_MAX} notices that were withdrawn)"
    return reason


def is_interrupted(node: NodeRecord | None) -> bool:
    """Return whether the cloud takes back a spot node, or it is gone."""
    if node is None or node.market != "spot":
        return False
    found = current_notice(node)
    return is_gone(node) or (found is not None and found[1].effect == "reclaim")


def urgent(node: NodeRecord, spec: PoolSpec, now: datetime) -> bool:
    """Return whether there is no time to wait for the budget: the cloud will not."""
    found = current_notice(node)
    if found is None or (doubted_until(node) or now) > now:
        return False
    return found[1].deadline is None or now >= found[1].deadline - needed(spec)


def is_only_taken(node: NodeRecord) -> bool:
    """Return whether a node has no fault, and leaves because the cloud takes it."""
    well = node.health != "unhealthy" or node.health_kind in ANNOUNCED
    return well and current_notice(node) is not None


def urgency(node: NodeRecord, otherwise: datetime) -> tuple[bool, datetime, str]:
    """Return the order in which nodes leave: those that still run first, by when they are taken.

    `otherwise`: in place of the moment of one that no notice takes, or that is taken at any moment.
    """
    found = current_notice(node)
    if found is None:
        return False, otherwise, node.node
    return is_gone(node), found[1].deadline or otherwise, node.node


def needed(spec: PoolSpec) -> timedelta:
    """Return how long before the deadline a replacement must begin to be done by then."""
    return timedelta(seconds=spec.drain_timeout + spec.launch_timeout + DRAINED_BEFORE_SECONDS)


def doubted_until(node: NodeRecord) -> datetime | None:
    """Return until when the node's notices wait for the budget; None: they do not."""
    if len(node.withdrawals) < WITHDRAWALS_MAX:
        return None
    return node.withdrawals[0] + WITHDRAWALS_WINDOW


def gone(node: NodeRecord, now: datetime) -> bool:
    """Return whether there is nothing left on a node that could be waited for."""
    if is_gone(node) or is_down(node):
        return True
    found = current_notice(node)
    return found is not None and found[1].deadline is not None and now >= found[1].deadline


def departure(node: NodeRecord, spec: PoolSpec, now: datetime) -> dict[str, Any]:
    """Return how a node leaves, as fields of the saga's opening; empty: as the pool says.

    Its drain has the pool's time, whatever the notice says: a notice may be withdrawn after the
    node has become unhealthy, and then the saga goes on without it. While one is in force,
    `hurries` ends the drain when the moment comes.
    """
    found = current_notice(node)
    fields: dict[str, Any] = {}
    if found is not None:
        fields["notice"] = found[0]
        if not node.cordoned or node.sole_notice:
            fields["sole_notice"] = found[0]
        if node.health != "unhealthy" or node.health_kind in ANNOUNCED:
            # It is for no fault of its hardware, which must not be remembered as bad.
            fields["action"] = "none"
    if gone(node, now):
        return {**fields, "drain": "immediate"}
    if found is None:
        return {}
    _, notice = found
    left = notice.deadline - now if notice.deadline is not None else None
    if urgent(node, spec, now) and (left is None or left.total_seconds() >= AHEAD_SECONDS_MIN):
        fields["order"] = LAUNCH_AHEAD
    return fields


def hurries(record: PoolRecord, nodes: Iterable[NodeRecord]) -> list[Hurry]:
    """Drains that are to end at a moment, because the node is gone or the cloud takes it then."""
    about = {each.node: saga for saga, each in record.open.items() if each.node}
    found: list[Hurry] = []
    for node in nodes:
        saga = about.get(node.node)
        if saga is None or node.drained:
            continue
        if (is_gone(node) or is_down(node)) and node.lost_at is not None:
            reason = node.down_reason or "its instance is gone"
            found.append(Hurry(node.node, saga, node.lost_at, reason))
        elif (notice := current_notice(node)) and (at := _drained_by(notice[1])):
            reason = f"the cloud takes it: {taken_reason(node)}"
            found.append(Hurry(node.node, saga, at, reason, notice[0]))
        elif (restart := restart_notice(node)) and (at := _drained_by(restart[1])):
            reason = f"the cloud restarts it: {restart[1].reason}"
            found.append(Hurry(node.node, saga, at, reason, restart[0]))
    return found


def withdrawn(record: PoolRecord, nodes: Iterable[NodeRecord]) -> list[tuple[str, NodeRecord]]:
    """Sagas whose notice has been withdrawn, with their nodes; nothing else takes those away.

    Nor did anybody ask for it, or the pool's new size.
    """
    by_name = {node.node: node for node in nodes}
    found: list[tuple[str, NodeRecord]] = []
    for saga, opened in record.open.items():
        node = by_name.get(opened.node)
        if not opened.notice or node is None or opened.cause or opened.kind not in AHEAD:
            continue
        note = node.notices.get(opened.notice)
        is_unhealthy = node.health == "unhealthy" or node.lost
        if (
            note is not None
            and note.withdrawn
            and current_notice(node) is None
            and not (opened.kind == "drain" and restart_notice(node))
            and not is_unhealthy
        ):
            found.append((saga, node))
    return found


def next_moment(record: PoolRecord, nodes: Iterable[NodeRecord], now: datetime) -> datetime | None:
    """When a notice next changes what is to be done: it turns urgent, or a drain must end."""
    nodes = tuple(nodes)
    moments = [each.at for each in hurries(record, nodes)]
    for node in nodes:
        moments.extend(restart_moments(node, record.spec))
        found = current_notice(node)
        if found is not None and found[1].deadline is not None:
            moments.append(found[1].deadline - needed(record.spec))
        if node.notices and (doubted := doubted_until(node)):
            moments.append(doubted)
    return min((each for each in moments if each > now), default=None)


# --- parts ---------------------------------------------------------------------------------------


def _drained_by(notice: CloudNotice) -> datetime | None:
    if notice.deadline is None:
        return None
    return notice.deadline - timedelta(seconds=DRAINED_BEFORE_SECONDS)
