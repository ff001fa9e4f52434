"""Reads notices of restarts and pauses: when a node is drained, how long it is silent. Pure.

The cloud reboots or moves a node and gives it back. So the node is drained before, it is not
replaced, and its silence is expected for a time. Then it goes into service again, or is given up as
any silent node.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from schemas.enums import NoticeEffect
from schemas.node_events import ProviderNotice
from schemas.node_records import CloudNotice, NodeRecord
from schemas.settings import PoolSpec

RESTARTING: Final[frozenset[NoticeEffect]] = frozenset({"reboot", "redeploy"})
SILENCING: Final[frozenset[NoticeEffect]] = RESTARTING | {"freeze"}
CORDON_AHEAD_SECONDS: Final = 60.0
"""The drain begins so much earlier than its time alone calls for."""
WINDOW_SECONDS_MAX: Final = 21_600.0
"""A restart's window is believed for so long: until its end the node may be silent."""
RETURN_SECONDS_MAX: Final = 1_800.0
"""After the window a node that does not return is lost, and one that did not restart goes on."""
FREEZE_SECONDS_MAX: Final = 300.0
"""A pause takes seconds; its node may be silent for so long after it was to begin."""
EARLY_SECONDS: Final = 60.0
"""Clocks differ: what begins so much earlier is what was announced."""


def starts_at(notice: CloudNotice) -> datetime:
    """Return when its action begins; an action with no deadline begins when it is announced."""
    return notice.deadline or notice.at


def first_notice(
    node: NodeRecord, is_meant: Callable[[CloudNotice], bool]
) -> tuple[str, CloudNotice] | None:
    """The notice in force of those that are meant whose action begins first, if any."""
    if not node.notices:
        return None  # nearly always, and asked of every node in every decision
    found = [
        (name, each) for name, each in node.notices.items() if not each.withdrawn and is_meant(each)
    ]
    return min(found, key=lambda each: (starts_at(each[1]), each[0]), default=None)


def restart_notice(node: NodeRecord) -> tuple[str, CloudNotice] | None:
    """The notice in force of the node's next restart, if any; it is over once the node has."""
    return first_notice(
        node, lambda each: each.effect in RESTARTING and not _has_restarted(node, each)
    )


def is_over_for(known: CloudNotice, event: ProviderNotice) -> bool:
    """Return whether an agent repeats a notice after the restart that it announced.

    The clouds list a restart until a while after it. One that an operator asked for earlier leaves
    the notice in force.
    """
    other = bool(known.boot_id) and event.boot_id != known.boot_id
    early = starts_at(known) - timedelta(seconds=EARLY_SECONDS)
    return known.effect in RESTARTING and other and event.time >= early


def drain_at(notice: CloudNotice, spec: PoolSpec) -> datetime:
    """Return when a drain must begin to be done before the restart."""
    return starts_at(notice) - timedelta(seconds=spec.drain_timeout + CORDON_AHEAD_SECONDS)


def awaited_restart(node: NodeRecord, now: datetime) -> tuple[str, CloudNotice] | None:
    """The notice of a restart that is still waited for; one that did not come is not, at last."""
    found = restart_notice(node)
    return found if found is not None and now < _over_at(found[1]) else None


def is_back(node: NodeRecord, notice: CloudNotice | None) -> bool:
    """Return whether a node that has restarted has passed the boot checks of its new boot."""
    if notice is None or notice.effect not in RESTARTING or not _has_restarted(node, notice):
        return True
    return bool(node.boot_checked) and node.boot_checked_id == node.boot_id


def silent_until(node: NodeRecord) -> datetime | None:
    """Return until when a lost node's silence is what was announced; None: it is not."""
    if node.lost_at is None or not node.notices:
        return None
    early = timedelta(seconds=EARLY_SECONDS)
    ends = [
        _over_at(each)
        for each in node.notices.values()
        if each.effect in SILENCING
        and not each.withdrawn
        and not _has_restarted(node, each)
        and starts_at(each) - early <= node.lost_at <= _over_at(each)
    ]
    return max(ends, default=None)


def restart_moments(node: NodeRecord, spec: PoolSpec) -> list[datetime]:
    """Return when a node's restart next changes what is to be done."""
    found = restart_notice(node)
    return [] if found is None else [drain_at(found[1], spec), _over_at(found[1])]


def _over_at(notice: CloudNotice) -> datetime:
    start = starts_at(notice)
    if notice.effect == "freeze":
        return start + timedelta(seconds=FREEZE_SECONDS_MAX)
    last = start + timedelta(seconds=WINDOW_SECONDS_MAX)
    end = min(max(notice.window_end or start, start), last)
    return end + timedelta(seconds=RETURN_SECONDS_MAX)


def _has_restarted(node: NodeRecord, notice: CloudNotice) -> bool:
    return bool(notice.boot_id) and node.boot_id not in ("", notice.boot_id)
