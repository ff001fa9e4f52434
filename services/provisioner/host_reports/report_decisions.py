"""Decides which notices and failing checks follow from a provider's report of its hosts. Pure.

A node's agent reads most of the same events on its host and publishes them itself. What its record
has of an event by then is not announced a second time; the provider's word counts where no agent
reads it, and when its host fails.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.node_events import ProviderNotice
from schemas.node_records import CloudNotice, NodeRecord
from services.provisioner.provider_client.provider import HostReport, ScheduledEvent

SAME_TIME: Final = timedelta(minutes=1)
NOTICES_MAX: Final = 8
"""Events of one instance that are in force at once."""
ID_CHARS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportChange:
    """Holds what follows for one instance: its record, and events.

    The events are published before the record is written.
    """

    key: str
    record: InstanceRecord
    events: tuple[ProviderNotice, ...] = ()


def changes(
    records: Mapping[str, InstanceRecord],
    nodes: Mapping[str, NodeRecord],
    report: HostReport,
    now: datetime,
) -> list[ReportChange]:
    """Return what a whole report changes of its provider's running instances, by their keys."""
    scheduled: dict[str, list[ScheduledEvent]] = {}
    for event in report.events:
        scheduled.setdefault(event.provider_id, []).append(event)
    found = (
        _changed(
            *(key, record, nodes.get(key), scheduled.get(record.provider_id, [])),
            *(report.impaired.get(record.provider_id, ""), now),
        )
        for key, record in records.items()
    )
    return [each for each in found if each is not None]


def queued(
    record: InstanceRecord, node: NodeRecord, event: ScheduledEvent, at: datetime
) -> ProviderNotice | None:
    """The notice of a message, the same each time; None: it is known, or the node leaves."""
    if node.state in ("leaving", "terminated") or _is_known(event, node.notices):
        return None
    return _announced(record, node, _notice_id(event), event, at)


def _changed(
    key: str,
    record: InstanceRecord,
    node: NodeRecord | None,
    scheduled: list[ScheduledEvent],
    impaired: str,
    now: datetime,
) -> ReportChange | None:
    known = node.notices if node is not None else {}
    wanted = {_notice_id(each): each for each in scheduled[:NOTICES_MAX]}
    events: list[ProviderNotice] = []
    kept: list[str] = [each for each in record.reported_notices if each in wanted]
    for name, event in wanted.items():
        if node is not None and name not in kept and not _is_known(event, known):
            kept.append(name)
            events.append(_announced(record, node, name, event, now))
    over = (name for name in record.reported_notices if name not in wanted)
    events.extend(_over(record, name, known.get(name), now) for name in over)
    after = replace(record, reported_notices=tuple(kept), impaired_reason=impaired)
    if after == record:
        return None
    return ReportChange(key=key, record=after, events=tuple(events))


def _notice_id(event: ScheduledEvent) -> str:
    starts = event.starts_at.isoformat() if event.starts_at else ""
    about = f"{event.provider_id}/{event.event}/{event.action}/{starts}"
    return f"api-{hashlib.sha256(about.encode()).hexdigest()[:ID_CHARS]}"


def _is_known(event: ScheduledEvent, known: Mapping[str, CloudNotice]) -> bool:
    """Whether an agent has announced an event: the same action, for the same time."""
    return any(
        each.action == event.action and not each.withdrawn and _is_same(each.deadline, event)
        for each in known.values()
    )


def _is_same(deadline: datetime | None, event: ScheduledEvent) -> bool:
    if deadline is None or event.starts_at is None:
        return deadline is event.starts_at
    return abs(deadline - event.starts_at) <= SAME_TIME


def _announced(
    record: InstanceRecord, node: NodeRecord, name: str, event: ScheduledEvent, now: datetime
) -> ProviderNotice:
    return ProviderNotice(
        id=f"reported-{name}-{now.timestamp():.0f}",
        time=now,
        pool=record.pool,
        node=record.instance,
        notice=name,
        kind="preemption" if event.effect == "reclaim" else "maintenance",
        action=event.action,
        message=event.text,
        effect=event.effect,
        deadline=event.starts_at,
        window_end=event.ends_at,
        boot_id=node.boot_id,
    )


def _over(
    record: InstanceRecord, name: str, known: CloudNotice | None, now: datetime
) -> ProviderNotice:
    about = CloudNotice(at=now, kind="maintenance") if known is None else known
    return ProviderNotice(
        id=f"reported-{name}-over-{now.timestamp():.0f}",
        time=now,
        pool=record.pool,
        node=record.instance,
        notice=name,
        kind=about.kind,
        action=about.action,
        message=about.reason,
        effect=about.effect,
        deadline=about.deadline,
        window_end=about.window_end,
        boot_id=about.boot_id,
        withdrawn=True,
    )
