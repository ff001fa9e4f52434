"""Decides whether a new node is with its pool, in its launch's rack, or in a gap. Pure.

A rack is launched as a whole, and the provider chooses where. The launch's rack is the one in which
most of its nodes are; until that is known none of them is admitted, because the first might be the
one elsewhere. Any other launch fills a gap: it belongs in a rack with nodes in service. In another
no job reaches it over NVLink, and the gap would stay. What a node's GPUs report of their NVLink
domain counts, whatever its rack is called.

Where a pool's nodes must be together the provisioner launches where INSTANCES has them; that may
have been set back.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from schemas.launch_offers import Together
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.operator_text.quantities import first_of
from services.pool_manager.planner import rack_units
from services.pool_manager.planner.node_counts import is_gone

RACKS_NAMED_MAX: Final = 3


def is_of_rack_launch(node: NodeRecord, rack_nodes: int) -> bool:
    """Return whether a node was launched as a part of a whole rack."""
    launch = node.launch
    return launch is not None and bool(launch.gang) and launch.gang_size >= rack_nodes > 1


def place(node: NodeRecord) -> str:
    """The rack of a node, as its hardware reports it or else as it is called."""
    return node.nvlink_domain or node.rack


def misplaced(node: NodeRecord, others: Iterable[NodeRecord]) -> str | None:
    """Return why a node is not in its launch's rack; None: not known before others are checked.

    `others`: the pool's nodes, those that are gone as well. One that has left its launch, or
    reports no rack, is not waited for.
    """
    assert node.launch is not None
    own, gang = place(node), node.launch.gang
    if not own or node.boot_checked is None:
        return ""
    launched = [node, *(each for each in others if each.node != node.node and _is_of(each, gang))]
    stay = [each for each in launched if each.state not in ("leaving", "terminated")]
    checked = [each for each in stay if each.boot_checked is not None]
    size = node.launch.gang_size
    # One that has no record yet is on its way, too.
    missing = size - len(checked) - (len(launched) - len(stay))
    racks: Counter[str] = Counter()
    for each in checked:
        # What is in service already decides, whatever has left since.
        racks[place(each)] += size if each.state == "active" else 1
    del racks[""]
    if 2 * max(racks.values()) <= size and missing > 0:
        return None
    rack = _largest(racks)
    if own == rack:
        return ""
    return (
        f"it is in rack {own}, and most of the nodes launched with it are in {rack}: they must be "
        "in one rack"
    )


def why_misplaced(node: NodeRecord, others: Iterable[NodeRecord], record: PoolRecord) -> str | None:
    """Return why a node is not where it belongs; empty: it is; None: not known yet."""
    known, rack_nodes, placement = list(others), record.spec.rack.nodes, record.spec.placement
    if placement.required and (apart := elsewhere(node, known, placement.together)):
        return apart
    if rack_nodes <= 1:
        return ""
    if is_of_rack_launch(node, rack_nodes):
        return misplaced(node, known)
    # Where a whole rack is missing it may be the first of one.
    is_gap = rack_units.wanted(record) - len(_serving(node, known)) < rack_nodes
    return outside(node, known) if record.spec.placement.required and is_gap else ""


def elsewhere(node: NodeRecord, others: Iterable[NodeRecord], together: Together) -> str:
    """Return why a node is not with those that it must be with; empty: it is, or not known."""
    own, some = _area(node, together), list(others)
    # The provisioner counts nodes that are about to leave: a successor may be launched beside one.
    leaving = {_area(each, together) for each in some if each.state == "leaving"}
    known = {_area(each, together) for each in _serving(node, some)}
    if not own or not known or own in leaving or known & {own, ""}:
        return ""
    areas = first_of(sorted(known), RACKS_NAMED_MAX)
    return f"it is in {own}, and the pool's nodes are in {areas}: they must be together"


def _area(node: NodeRecord, together: Together) -> str:
    return node.zone if together == "zone" else node.region


def outside(node: NodeRecord, others: Iterable[NodeRecord]) -> str:
    """Return why a node that fills a gap is in no rack of its pool; empty: it is, or not known.

    Racks are compared by what all nodes report: the domain, or else the name.
    """
    serving = _serving(node, others)
    for own, known in (
        (node.nvlink_domain, {each.nvlink_domain for each in serving}),
        (node.rack, {each.rack for each in serving}),
    ):
        if own and known and "" not in known:
            racks = first_of(sorted(known), RACKS_NAMED_MAX)
            why = f"it is in rack {own}, and the pool's nodes are in {racks}"
            return "" if own in known else f"{why}: what fills a gap must be in one of their racks"
    return ""


def _serving(node: NodeRecord, others: Iterable[NodeRecord]) -> list[NodeRecord]:
    """The other nodes in service; where launches fail, those whose instances are gone stay so."""
    return [
        each
        for each in others
        if each.node != node.node and each.state == "active" and not is_gone(each)
    ]


def _is_of(node: NodeRecord, gang: str) -> bool:
    return node.launch is not None and node.launch.gang == gang


def _largest(racks: Mapping[str, int]) -> str:
    return max(sorted(racks), key=lambda each: racks[each])
