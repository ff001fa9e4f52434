"""Decides how long an instance that was refused for its hardware is kept. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.termination_orders import Authority
from services.provisioner.instances.instance_decisions import mark_terminating

KEPT_FOR: Final = timedelta(minutes=20)
"""It costs money meanwhile; and it is removed well before it would count as a leak."""
KEPT_MAX: Final = 3
"""Of one pool: as many as are refused in a row before an operator is asked, by default."""
REASON: Final = "refused for its hardware; kept until another node of its pool is admitted"


def keep(
    record: InstanceRecord, of_its_pool: Iterable[InstanceRecord], now: datetime, by: Authority
) -> InstanceRecord | None:
    """The record of a refused instance that is kept for now; None: it must go at once.

    Many clouds hand out the host first that was freed last: given back at once, a machine whose
    hardware is on the denylist would be the next launch's, too. It is removed once another node of
    its pool has been admitted, and after a while in any case.
    """
    kept = sum(is_kept(each, now) for each in of_its_pool if each.instance != record.instance)
    if record.state != "running" or kept >= KEPT_MAX:
        return None
    return replace(mark_terminating(record, now, by, REASON), kept_until=now + KEPT_FOR)


def is_kept(record: InstanceRecord, now: datetime) -> bool:
    """Return whether an instance that must go is kept."""
    until = record.kept_until
    return record.state == "terminating" and until is not None and now < until


def kept_seconds(record: InstanceRecord, admitted_at: datetime | None, now: datetime) -> float:
    """Return how much longer it is kept; `admitted_at`: when its pool last admitted a node."""
    if record.kept_until is None or not is_kept(record, now):
        return 0.0
    since = record.terminating_at or record.intended_at
    if admitted_at is not None and admitted_at > since:
        return 0.0
    return (record.kept_until - now).total_seconds()
