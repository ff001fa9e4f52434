"""Finds the nodes that cost much more than what could be launched now in their place. Pure.

The provisioner says what its offerings cost and which of them are available. What a node costs is
what its own offering costs now, else what it was launched for. Its successor may cost so much less
at most, whatever is chosen when it is launched, and it is in service before the old node leaves: a
launch that fails changes nothing. So each replacement is cheaper by `min_saving` than the one
before, and where prices stay none is made twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.launch_offers import Offering
from schemas.node_records import NodeRecord
from schemas.offering_records import OfferingView
from schemas.pool_records import DearNode, OpenSaga, PoolRecord
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_snapshot import NodeUse
from services.pool_manager.planner.remediation import launch_room
from services.pool_manager.planner.sizing import on_demand_floor
from services.settings.provider_choices import choice_of

DEAR_MAX: Final = 50
"""Nodes that a pool's record names: those that save most."""
FRESH: Final = timedelta(minutes=15)
"""So long what is known of prices and capacity is acted on."""


def is_old_enough(node: NodeRecord, record: PoolRecord, now: datetime) -> bool:
    """Return whether a node's price matters: long enough in service, not reserved and no spare."""
    least = timedelta(seconds=record.spec.consolidation.min_age)
    return (
        node.state == "active"
        and node.market != "reserved"
        and not node.spare
        and node.admitted_at is not None
        and now - node.admitted_at >= least
    )


def limit(dollars: float, record: PoolRecord) -> float:
    """Return what the successor of a node of this price may cost."""
    return dollars * (1 - record.spec.consolidation.min_saving / 100)


def dear_nodes(
    record: PoolRecord,
    nodes: Nodes,
    use: Mapping[str, NodeUse],
    offered: Sequence[OfferingView],
    now: datetime,
) -> dict[str, DearNode]:
    """The nodes that save most, each with what it would be replaced by.

    What must be on demand is compared with that alone; a reserved node is paid for anyway.
    """
    prices = {_offering(each): each.dollars_per_hour for each in offered}
    free = [each for each in offered if _is_free(each, record, now)]
    cheapest = {firm: _cheapest(free, record, not_spot=firm) for firm in (False, True)}
    surplus = on_demand_floor.expected(record, nodes) - on_demand_floor.required(record)
    found: dict[str, DearNode] = {}
    for node in nodes:
        used = use.get(node.node)
        if used is None or used.offering is None or not is_old_enough(node, record, now):
            continue
        firm = bool(record.spec.on_demand_min) and node.market != "spot" and surplus <= 0
        best = cheapest[firm]
        dollars = prices.get(used.offering) or used.dollars_per_hour
        if best is None or best.dollars_per_hour is None:
            continue
        if not dollars or best.dollars_per_hour > limit(dollars, record):
            continue
        surplus -= not firm and node.market != "spot"
        before = record.dear.get(node.node)
        found[node.node] = DearNode(
            dollars_per_hour=dollars,
            cheaper=best.dollars_per_hour,
            offering=str(_offering(best)),
            since=before.since if before is not None else now,
            at=now,
        )
    most = sorted(
        found, key=lambda name: (found[name].cheaper - found[name].dollars_per_hour, name)
    )
    return {name: found[name] for name in most[:DEAR_MAX]}


def current(node: NodeRecord, record: PoolRecord, now: datetime) -> DearNode | None:
    """Return what is known of a node that costs too much, if that may be acted on."""
    if not record.spec.consolidation.min_saving or not is_old_enough(node, record, now):
        return None
    found = record.dear.get(node.node)
    return found if found is not None and now - found.at <= FRESH else None


def sentence(found: DearNode) -> str:
    """Return what a node costs, and what would cost less, in words."""
    return (
        f"dear: ${found.dollars_per_hour:g} an hour, and {found.offering} costs ${found.cheaper:g}"
    )


def opening(opened: OpenSaga, record: PoolRecord) -> OpenSaga:
    """The saga that replaces it: what it launches saves enough, and comes first."""
    dollars = record.dear[opened.node].dollars_per_hour
    return msgspec.structs.replace(
        opened, order="provision_first", max_dollars=limit(dollars, record)
    )


def _offering(view: OfferingView) -> Offering:
    return Offering(
        provider=view.provider,
        region=view.region,
        zone=view.zone,
        instance_type=view.instance_type,
        market=view.market,
    )


def _is_free(view: OfferingView, record: PoolRecord, now: datetime) -> bool:
    """Whether nothing is known against an offering that the pool may launch."""
    penalty = timedelta(seconds=record.spec.interruption_penalty)
    at = view.interrupted_at
    return (
        launch_room.is_open(view, now)
        and view.market != "reserved"
        and not (at is not None and now - at < penalty)
        and any(each.pool == record.name for each in view.used_by)
    )


def _cheapest(
    free: Iterable[OfferingView], record: PoolRecord, *, not_spot: bool
) -> OfferingView | None:
    """The cheapest that the next launch may take at once."""
    markets = {each.market for each in choice_of(record.spec, not_spot=not_spot).offers}
    some = [
        each
        for each in free
        if each.dollars_per_hour is not None and (each.market in markets or "" in markets)
    ]
    return min(some, key=lambda each: each.dollars_per_hour or 0.0, default=None)
