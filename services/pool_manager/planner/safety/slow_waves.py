"""Finds nodes that fall unhealthy of one cause one after the other: a slow wave. Pure.

A bad agent or driver that is rolled out node by node reports each of them a while after the last.
Each looks like a fault of its own, and once it is replaced nothing of it is left to compare. So a
pool's record keeps which nodes were remediated on the word of one fault alone.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.health_records import HealthRecord
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner.safety.fault_evidence import is_confirmed
from services.pool_manager.planner.safety.fault_waves import (
    FaultWave,
    UnhealthyNode,
    fault_signature,
    is_explained,
    unhealthy_since,
)
from services.primitives.common_causes import share_of

NODES_MAX: Final = 50
"""Kept of one fault signature: as many are a wave in a pool of any size, unless `incident.nodes` is
more."""
SIGNATURES_MAX: Final = 20

Recent = Mapping[str, datetime]


def find(
    record: PoolRecord,
    size: int,
    unhealthy: tuple[UnhealthyNode, ...],
    health: Mapping[str, HealthRecord],
    now: datetime,
) -> tuple[FaultWave, ...]:
    """The slow waves that no open incident is about; their members are the nodes still there.

    `size`: of the pool's nodes. They last from now on: none of those before is held back.
    """
    spec = record.spec.health.incident
    if not spec.hold or not record.recent_remediations:
        return ()
    needed = max(spec.nodes, min(share_of(spec, size), NODES_MAX))
    found = []
    for what, known in record.recent_remediations.items():
        recent = _within(known, record, now)
        members = tuple(
            each
            for each in unhealthy
            if each.what == what
            and each.node.node not in recent
            and not is_explained(each, record.incidents)
            and not is_confirmed(each.node, health.get(each.node.node))
        )
        if members and recent and len(recent) + len(members) >= needed:
            found.append(
                FaultWave(what=what, scope="pool", within="", members=members, earlier=len(recent))
            )
    return tuple(found)


def with_remediated(
    record: PoolRecord, node: NodeRecord, health: HealthRecord | None, now: datetime
) -> PoolRecord:
    """The record once a node's remediation has begun; the same where other evidence agrees."""
    what, since = fault_signature(node), unhealthy_since(node)
    if not what or since is None or not record.spec.health.incident.hold:
        return record
    if is_confirmed(node, health):
        return record
    if is_explained(UnhealthyNode(node=node, what=what, since=since), record.incidents):
        return record  # an operator has decided that these faults are real
    kept = {
        each: recent
        for each, known in record.recent_remediations.items()
        if each != what and (recent := _within(known, record, now))
    }
    of_it = _within(record.recent_remediations.get(what, {}), record, now) | {node.node: now}
    newest = dict(sorted(of_it.items(), key=lambda each: each[1])[-NODES_MAX:])
    others = dict(sorted(kept.items(), key=lambda each: len(each[1]))[1 - SIGNATURES_MAX :])
    return msgspec.structs.replace(record, recent_remediations={**others, what: newest})


def _within(known: Recent, record: PoolRecord, now: datetime) -> dict[str, datetime]:
    window = timedelta(seconds=record.spec.budget.window)
    return {node: at for node, at in known.items() if now - at < window}
