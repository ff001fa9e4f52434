"""Finds capacity that ends as a whole, so that no node is replaced into what ends with it. Pure.

All nodes of a capacity block or a dated reservation have one end, and so has what is launched into
it. A node that the cloud retires alone looks the same: its successor shows the difference. Of two
or more reserved nodes that all end at once none is replaced to find out.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.node_records import CloudNotice, NodeRecord
from schemas.pool_records import CapacityEnd, PoolRecord
from schemas.settings import PoolSpec
from services.pool_manager.planner.cloud_notices import current_notice, retirement
from services.pool_manager.planner.node_counts import Nodes
from services.settings.provider_choices import choice_of

ENDS_MAX: Final = 16
"""Ends that a pool's record keeps, the nearest."""
BLOCK_NODES_MIN: Final = 2
"""Reserved nodes of one place that all end at once, for which that is no chance."""
SAME_END: Final = timedelta(minutes=1)
"""Clouds round an end to the minute; nodes hear of it at different moments."""


def place_of(node: NodeRecord) -> str:
    """Return the market and the zone of a node, as operators read it."""
    return _place(node.market, node.zone)


def _place(market: str, zone: str) -> str:
    return f"{market or 'any market'} in {zone or 'any zone'}"


def observed(record: PoolRecord, nodes: Nodes, now: datetime) -> PoolRecord:
    """Return the pool's record with the ends that are announced, and whether others share them."""
    announced = [
        (node, notice.deadline)
        for node in nodes.needs_attention
        if node.notices
        if (notice := retirement(node)) is not None and notice.deadline is not None
    ]
    if not announced and not record.capacity_ends:
        return record
    ends = {key: each for key, each in record.capacity_ends.items() if each.at > now}
    members: dict[str, list[NodeRecord]] = {}
    for node, at in announced:
        place = place_of(node)
        key = _key(ends, place, at)
        ends.setdefault(key, CapacityEnd(place=place, at=at, since=now))
        members.setdefault(key, []).append(node)
    for key, ending in members.items():
        if not ends[key].shared and _is_shared(nodes, ends[key], ending):
            ends[key] = msgspec.structs.replace(ends[key], shared=True)
    kept = dict(sorted(ends.items(), key=lambda each: each[1].at)[:ENDS_MAX])
    if kept == record.capacity_ends:
        return record
    return msgspec.structs.replace(record, capacity_ends=kept)


def _key(ends: dict[str, CapacityEnd], place: str, at: datetime) -> str:
    same = (
        key for key, each in ends.items() if each.place == place and abs(each.at - at) <= SAME_END
    )
    return next(same, f"{place} {at:%Y-%m-%dT%H:%M}")


def _is_shared(nodes: Nodes, end: CapacityEnd, ending: list[NodeRecord]) -> bool:
    """Whether a node has the end that was launched after it was known, or a whole block has it."""
    if any(node.admitted_at is not None and node.admitted_at > end.since for node in ending):
        return True
    if len(ending) < BLOCK_NODES_MIN or ending[0].market != "reserved":
        return False
    there = [
        node
        for node in nodes
        if node.state in ("active", "draining") and place_of(node) == end.place
    ]
    return len(ending) == len(there)


def stays_until(node: NodeRecord, record: PoolRecord) -> tuple[str, CloudNotice] | None:
    """Return the notice of a node that is not replaced for it; None: it has none, or is replaced.

    Where the pool may launch elsewhere each node is replaced once: what was launched after the end
    was known had no other place.
    """
    notice = retirement(node) if node.notices and record.capacity_ends else None
    found = current_notice(node) if notice is not None else None
    if found is None or found[1].deadline is None:
        return None
    end = record.capacity_ends.get(
        _key(record.capacity_ends, place_of(node), found[1].deadline), None
    )
    if end is None or not end.shared:
        return None
    came_after = node.admitted_at is not None and node.admitted_at > end.since
    return found if came_after or not has_other_places(record.spec, record) else None


def has_other_places(spec: PoolSpec, record: PoolRecord) -> bool:
    """Return whether the pool may launch where no shared end is known."""
    ended = {each.place for each in record.capacity_ends.values() if each.shared}
    return any(
        _place(offer.market, zone) not in ended
        for offer in choice_of(spec).offers
        for zone in offer.zones or ("",)
    )
