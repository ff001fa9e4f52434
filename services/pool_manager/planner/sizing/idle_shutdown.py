"""Decides which nodes leave because they have had no work for `idle_after`. Pure.

Two sources must agree that a node has none: its agent, whose heartbeat says since when its GPUs
rest, and the workload system, which is asked what runs there. A node of which either says nothing
is not idle, and its time begins again. The pool becomes smaller by the nodes that leave, down to
min_nodes, and each of them is drained for as long as work that comes in between needs.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.duration import format_duration
from schemas.node_records import NodeRecord
from schemas.pool_events import Scaled
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import cloud_notices
from services.pool_manager.planner.gates import gate_table
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.node_counts import busy
from services.pool_manager.planner.pool_snapshot import NodeUse, PoolPlan, PoolSnapshot, Rest
from services.pool_manager.planner.sizing import on_demand_floor
from services.pool_manager.planner.sizing.open_sagas import begin, room_for_sagas, with_open

FRESH: Final = timedelta(minutes=1)
"""What was found before that, by a process that stalled since, is not acted on."""


def candidates(record: PoolRecord, nodes: Collection[NodeRecord], now: datetime) -> list[str]:
    """Nodes whose work is asked about, as they could leave.

    A cordon, a hold and a freeze window are an operator's word, and what is unhealthy or leaves for
    another reason is decided on elsewhere. In a pool that is as small as may be, none.
    """
    if not record.spec.idle_after or record.removing or record.desired <= record.spec.min_nodes:
        return []
    taken, whole = busy(record), timedelta(seconds=record.spec.idle_after)
    return [
        node.node
        for node in nodes
        if node.state == "active"
        and node.node not in taken
        and node.health in ("healthy", "degraded")
        and not (node.lost or node.cordoned or node.spare)
        and not (node.workload is not None and node.workload.cordoned)
        and not cloud_notices.taken_reason(node)
        and node.admitted_at is not None
        and now - node.admitted_at >= whole
        and gate_table.first(Proposal("idle-shutdown", record, now, node)) is None
    ]


def rests(
    before: Mapping[str, Rest],
    use: Mapping[str, NodeUse],
    idle: Collection[str],
    now: datetime,
) -> dict[str, Rest]:
    """Return since when each node asked about has no work; `idle`: none by the workload system.

    The workload system says what is now, so its part begins when it is first asked.
    """
    found: dict[str, Rest] = {}
    for name, used in use.items():
        if name in idle and used.gpus is not None and not used.gpus.busy:
            known = before[name].since if name in before else now
            found[name] = Rest(max(known, used.gpus.since), now, used.dollars_per_hour)
    return found


def due(record: PoolRecord, known: Mapping[str, Rest], now: datetime) -> dict[str, Rest]:
    """Return the nodes that have had no work for `idle_after`."""
    whole = timedelta(seconds=record.spec.idle_after)
    return {name: each for name, each in known.items() if now - each.since >= whole}


def shut_down(snapshot: PoolSnapshot, begun: PoolPlan, now: datetime) -> PoolPlan:
    """Make the pool smaller by the idle nodes, the most expensive first."""
    record, start = begun.record, dict(begun.start)
    if not snapshot.idle:
        return begun
    fresh = {name for name, each in snapshot.idle.items() if now - each.seen_at <= FRESH}
    fresh &= set(candidates(record, tuple(snapshot.nodes), now))
    names = sorted(fresh, key=lambda name: _order(snapshot.idle[name], name))
    for name in names:
        node = snapshot.nodes.by_name[name]
        less = msgspec.structs.replace(record, desired=record.desired - 1)
        if less.desired < record.spec.min_nodes or not room_for_sagas(record):
            break
        if not on_demand_floor.kept(less, snapshot.nodes, [node], 1):
            continue
        saga, opened, less = begin(snapshot.fleet, less, "scale-down", now, node=node)
        reason = _reason(record, snapshot.idle[name])
        start[saga] = msgspec.structs.replace(opened, reason=reason, drain="wait")
        record = with_open(less, saga, start[saga])
    if record is begun.record:
        return begun
    gone = begun.record.desired - record.desired
    event = Scaled(
        id=f"idle-{record.name}-{snapshot.revision}",
        time=now,
        pool=record.name,
        previous=begun.record.desired,
        nodes=record.desired,
        reason=f"{gone} {'node has' if gone == 1 else 'nodes have'} had no work for "
        f"{format_duration(record.spec.idle_after)} (idle_after)",
    )
    record = msgspec.structs.replace(record, scaled_at=now, gangs=())
    return replace(begun, record=record, start=start, events=(*begun.events, event))


def _order(rest: Rest, name: str) -> tuple[float, datetime, str]:
    return -rest.dollars_per_hour, rest.since, name


def _reason(record: PoolRecord, rest: Rest) -> str:
    return (
        f"no work since {rest.since:%Y-%m-%d %H:%M} UTC, and idle_after is "
        f"{format_duration(record.spec.idle_after)}"
    )
