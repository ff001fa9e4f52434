"""Finds capacity that ends as a whole, so that no node is replaced into what ends with it. Pure.

All nodes of a capacity block or a dated reservation have one end, and so has what is launched into
it. A node that the cloud retires alone looks the same: its successor shows the difference. Of two
or more reserved nodes that all end at once none is replaced to find out.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from schemas.node_records import CloudNotice, NodeRecord
from schemas.pool_records import CapacityEnd, PoolRecord
from services.pool_manager.planner.cloud_notices import current_notice, retires_at
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
        (node, at)
        for node in nodes.needs_attention
        if node.notices and (at := retires_at(node)) is not None
    ]
    if not announced and not record.capacity_ends:
        return record
    ends = [each for each in record.capacity_ends if each.at > now]
    room = len(ends) + ENDS_MAX
    for node, at in sorted(announced, key=lambda each: each[1]):
        if len(ends) < room and _end_of(ends, node, at) is None:
            ends.append(CapacityEnd(place=place_of(node), at=at, since=now))
    for number, end in enumerate(ends):
        ending = [node for node, at in announced if _end_of([end], node, at)]
        if not end.shared and _is_shared(nodes, end, ending):
            ends[number] = replace(end, shared=True)
    kept = tuple(sorted(ends, key=lambda each: each.at)[:ENDS_MAX])
    return record if kept == record.capacity_ends else replace(record, capacity_ends=kept)


def _end_of(ends: Iterable[CapacityEnd], node: NodeRecord, at: datetime) -> CapacityEnd | None:
    """Return the end of a node's place that is at that time."""
    place = place_of(node)
    return next(
        (each for each in ends if each.place == place and abs(each.at - at) <= SAME_END), None
    )


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
    at = retires_at(node) if node.notices and record.capacity_ends else None
    end = _end_of(record.capacity_ends, node, at) if at is not None else None
    if end is None or not end.shared:
        return None
    came_after = node.admitted_at is not None and node.admitted_at > end.since
    return current_notice(node) if came_after or not _has_other_places(record) else None


def _has_other_places(record: PoolRecord) -> bool:
    """Whether the pool may launch where no shared end is known."""
    ended = shared_places(record)
    return any(
        _place(offer.market, zone) not in ended
        for offer in choice_of(record.spec).offers
        for zone in offer.zones or ("",)
    )


def shared_places(record: PoolRecord) -> set[str]:
    """Return the places where everything ends."""
    return {each.place for each in record.capacity_ends if each.shared}
