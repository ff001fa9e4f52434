"""Finds that fewer nodes are in service than a pool's minimum, and nothing fills it. Pure.

What would fill it counts while it is young: a launch, a replacement, a spare's promotion, or the
repair of a node in its place. After a launch has failed they count once, from the beginning.
"""

from datetime import datetime, timedelta
from typing import Final

from schemas.pool_records import OpenSaga, PoolRecord
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.sizing.found_condition import FoundCondition
from services.saga.definitions import DEFINITIONS

NAME: Final = "below-minimum"
AFTER_SECONDS: Final = 30.0
"""A node that is taken out of service and given back within this time is no matter for a person."""


def below_minimum(
    snapshot: PoolSnapshot, record: PoolRecord, now: datetime
) -> FoundCondition | None:
    """Return what is published of a pool below its minimum; None: it is not below."""
    least = record.spec.min_nodes
    if not least or record.spec.mode == "observe":
        return None
    out = {each.node for each in snapshot.nodes.needs_attention if each.cordoned or each.lost}
    # A node that is replaced at leisure is leaving, and serves until its successor does.
    serving = sum(n.state in ("active", "leaving") and n.node not in out for n in snapshot.nodes)
    if serving >= least:
        return None
    known = record.conditions.get(NAME)
    return FoundCondition(
        reason=f"{serving} nodes are in service, and min_nodes is {least}",
        remedy=f"navarch why {record.name} says what is missing, and what keeps it from coming",
        after_seconds=AFTER_SECONDS,
        until=_filled_at(record, least - serving, known.since if known else now),
    )


def _filled_at(record: PoolRecord, missing: int, since: datetime) -> datetime | None:
    """Until when what is under way may fill the gap; None: it cannot."""
    moments = [_late_at(record, each) for each in record.open.values() if _fills(each)]
    limit = timedelta(seconds=float(record.spec.launch_timeout))
    moments += [each.since + limit for each in record.awaited.values() if not each.overdue]
    if len(moments) < missing:
        return None
    at = sorted(moments, reverse=True)[missing - 1]
    return min(at, since + limit) if record.failures else at


def _fills(opened: OpenSaga) -> bool:
    definition = DEFINITIONS[opened.kind]
    brings = bool(opened.promotes) or (bool(opened.new_node) and not opened.spare)
    return not opened.called_off and (brings or definition.in_place)


def _late_at(record: PoolRecord, opened: OpenSaga) -> datetime:
    drains = opened.kind != "scale-up" and opened.order != "provision_first"
    seconds = float(record.spec.launch_timeout) + drains * float(record.spec.drain_timeout)
    return opened.since + timedelta(seconds=seconds)
