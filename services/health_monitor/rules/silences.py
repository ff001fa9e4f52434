"""Decides on a node whose heartbeats have ended, or came back. Pure."""

from datetime import datetime

import msgspec

from schemas.health_records import HealthRecord
from schemas.node_events import Lost, Returned
from services.health_monitor.rules.health_state import WatchDecision, with_working, working_of


def decide_silent(
    record: HealthRecord, at: datetime, now: datetime, *, credentials_expired: bool = False
) -> WatchDecision:
    """Apply a heartbeat's end, which its moment identifies.

    Where that silence is known and over, as after attempts that the bus refused, this is another
    one, found `now`.
    """
    if record.lost:
        return record, None
    work = working_of(record)
    if work.silence >= epoch_milliseconds(at):
        at = now
    moment = epoch_milliseconds(at)
    lost = Lost(
        id=f"lost-{record.pool}.{record.node}-{moment}",
        time=at,
        pool=record.pool,
        node=record.node,
        instance=work.instance or record.node,
        credentials_expired=credentials_expired,
    )
    silent = with_working(record, msgspec.structs.replace(work, silence=moment))
    return msgspec.structs.replace(silent, lost=True), lost


def decide_heartbeat(record: HealthRecord, at: datetime) -> WatchDecision:
    """Apply a heartbeat: news only where the node was lost.

    Named after the silence that it ends: a replica that repeats it may have seen a later heartbeat.
    """
    if not record.lost:
        return record, None
    work = working_of(record)
    returned = Returned(
        id=f"returned-{record.pool}.{record.node}-{work.silence or epoch_milliseconds(at)}",
        time=at,
        pool=record.pool,
        node=record.node,
        instance=work.instance or record.node,
    )
    return msgspec.structs.replace(record, lost=False), returned


def epoch_milliseconds(at: datetime) -> int:
    """Return a moment as a number, for the IDs that are derived from it."""
    return int(at.timestamp() * 1_000)
