"""Decides whether a drill may begin on a node, and what is published of it. Pure.

A drill that would change nothing, or hide a real fault, is refused with its remedy.
"""

from collections.abc import Iterator
from datetime import datetime

from schemas.drill_orders import CODED, DrillOrder, DrillStarted
from schemas.enums import SUBCODES
from schemas.node_records import NodeRecord, node_key
from services.operator_text.quantities import first_of
from services.pool_manager.planner.disruption_budget import allowance
from services.pool_manager.planner.drills import end_of
from services.pool_manager.planner.gates import gate_table
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.safety import stop_gate


class DrillRefusedError(ValueError):
    """A drill may not begin."""


def drill(
    asked: DrillOrder, by: str, snapshot: PoolSnapshot | None, begun: str, now: datetime
) -> DrillStarted:
    """Return the event with which a drill begins; raise DrillRefusedError where it may not.

    `begun`: the node of the pool whose drill began just now, and may not show in the records yet.
    """
    node = snapshot.nodes.by_name.get(asked.node) if snapshot is not None else None
    if snapshot is None or node is None or node.state == "terminated":
        raise DrillRefusedError(f"there is no node {asked.pool}/{asked.node}; see navarch list")
    for reason in _refusals(asked, node, snapshot, begun, now):
        raise DrillRefusedError(reason)
    return DrillStarted(
        id=f"drill-{node_key(node.pool, node.node)}-{now.timestamp():.6f}",
        time=now,
        pool=node.pool,
        node=node.node,
        kind=asked.kind,
        code=asked.code,
        subcode=asked.subcode,
        gpu_index=asked.gpu if node.gpus else -1,
        reach="act" if asked.act else "drain",
        by=by,
        remedy="" if asked.act else end_of(node),
    )


def _refusals(
    asked: DrillOrder, node: NodeRecord, snapshot: PoolSnapshot, begun: str, now: datetime
) -> Iterator[str]:
    """Yield why a drill may not begin, the first reason first."""
    yield from _of_fault(asked, node)
    if not node.drills:
        yield (
            f"the agent of {node.node} allows no drills: set `drills: allowed` in its file "
            "(NAVARCH_DRILLS=allowed) and restart it; simulated nodes allow them"
        )
    yield from _of_node(node)
    others = {each.node for each in snapshot.nodes.needs_attention if each.health_drill}
    if found := sorted({*others, begun} - {"", node.node}):
        yield (
            f"pool {node.pool} has a drill on {found[0]}, and one at a time is enough; first: "
            f"navarch uncordon {found[0]}"
        )
    yield from _of_gates(node, snapshot, now)


def _of_fault(asked: DrillOrder, node: NodeRecord) -> Iterator[str]:
    """Yield what is wrong with the fault that is asked for."""
    if asked.kind in CODED and not asked.code:
        yield f"a drill of kind {asked.kind} needs a code: navarch drill {node.node} xid 79"
    if asked.kind not in CODED and asked.code:
        yield f"a fault of kind {asked.kind} has no code"
    known = SUBCODES.get(asked.kind, ())
    if asked.subcode and asked.kind != "xid" and asked.subcode not in known:
        listed = f"it is one of {first_of(known, len(known))}" if known else "it has none"
        yield f"a fault of kind {asked.kind} has no subcode {asked.subcode!r}: {listed}"
    if node.gpus and asked.gpu not in {gpu.index for gpu in node.gpus}:
        yield f"{node.node} has no GPU {asked.gpu}: it has {len(node.gpus)}, from 0 on"


def _of_node(node: NodeRecord) -> Iterator[str]:
    """Yield what keeps a drill on this node from showing anything, or would hide a real fault."""
    if node.state != "active":
        yield f"{node.node} is {node.state}, and a drill is for a node in service"
    if node.spare:
        yield f"{node.node} is a spare: it has no work that could leave"
    if node.health_drill:
        yield f"{node.node} has a drill already; {end_of(node)}"
    if node.lost:
        yield f"{node.node} is silent: see navarch why {node.node}"
    if node.health != "healthy":
        yield (
            f"{node.node} is {node.health} ({node.health_reason or 'no reason is known'}), and a "
            "drill must not hide a real fault"
        )
    if node.saga:
        yield f"{node.saga} is at work on {node.node}: see navarch saga show {node.saga}"
    if node.cordoned:
        yield f"{node.node} is cordoned already; first: navarch uncordon {node.node}"


def _of_gates(node: NodeRecord, snapshot: PoolSnapshot, now: datetime) -> Iterator[str]:
    """Yield what would hold the drill back, as it does the repair of a real fault."""
    record = snapshot.record
    proposed = Proposal(
        "repair",
        record,
        now,
        node,
        allowed=allowance(record, snapshot.nodes, snapshot.others, now),
        stop=stop_gate.any_of(snapshot.stops, record.name, record.spec, now),
    )
    for block in gate_table.every(proposed):
        yield f"the drill would wait: {block.text}"
