"""The remedy of each unhealthy node of a pool, and what is left to people. Pure.

Asks the pool's Remediator, which may be a plugin: where it fails, operators are notified and
nothing is touched. What the cloud takes back is replaced, and so is an unhealthy spare,
whatever the pool's remediation is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from schemas.enums import Remediation, SagaKind
from schemas.fault_signature import called
from schemas.node_records import NodeRecord
from schemas.pool_events import OperatorNeeded, PoolEvent
from schemas.pool_records import OpenSaga, PoolRecord
from services.pool_manager.planner import cloud_notices, drills
from services.pool_manager.planner.gates import gate_table
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.idle_nodes import is_idle
from services.pool_manager.planner.node_counts import (
    busy,
    in_place_attempts,
    is_gone,
    is_lasting,
    is_out,
    stays_out,
)
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.remediation import recovered_nodes
from services.pool_manager.planner.remediator import RemedyChoice, lacks_driver
from services.pool_manager.planner.retirements import USES_READ_MAX
from services.pool_manager.planner.safety.fault_waves import named_signature
from services.pool_manager.planner.sizing import spares
from services.pool_manager.planner.sizing.open_sagas import begin, lacks_room, with_open
from services.pool_manager.planner.unhealthy_nodes import remediation_reason
from services.saga.definitions import DEFINITIONS

SAGAS: Final[Mapping[Remediation, SagaKind]] = {
    "reset-gpu": "reset-gpu",
    "reboot": "reboot",
    "replace": "replace",
    "inspect": "cordon",
}
"""Remedy -> the saga that brings it about."""
NO_OTHER: Final = "nothing makes another machine in its place: repair it, then `navarch uncordon`"
LEAVES: Final = ", or take it out with `navarch leave`"
"""Said of machines that joined; what others list is taken out of their list."""
NOTIFIED_AT_ONCE_MAX: Final = 100
"""Nodes that operators are notified of in one decision; the others follow in the next."""


@dataclass(frozen=True, slots=True)
class OperatorCases:
    """The cases that are left to people give a changed record, events and the other nodes."""

    record: PoolRecord
    events: tuple[PoolEvent, ...]
    others: list[NodeRecord]
    """Those that are acted on."""


def is_in_place(remedy: Remediation) -> bool:
    """Return whether a remedy keeps the node: resets and reboots have a rate of their own."""
    return remedy in SAGAS and DEFINITIONS[SAGAS[remedy]].in_place


def choose(snapshot: PoolSnapshot, node: NodeRecord, now: datetime) -> RemedyChoice:
    """Ask what is to be done about an unhealthy node.

    A machine in whose place nothing makes another is never replaced: its work leaves it, and
    operators repair it.
    """
    choice = _chosen(snapshot, node, now)
    if choice.remedy != "replace" or not is_lasting(node, snapshot.record):
        return choice
    remedy = NO_OTHER + LEAVES * (snapshot.record.spec.nodes == "enrolled")
    reason = "; ".join(filter(None, (choice.reason, remedy)))
    return RemedyChoice(remedy="inspect", reason=reason, drains=True)


def _chosen(snapshot: PoolSnapshot, node: NodeRecord, now: datetime) -> RemedyChoice:
    if cloud_notices.taken_reason(node) or node.spare:
        # A node the cloud takes has no fault; a spare has no work that a reset would save.
        return RemedyChoice(remedy="replace")
    if drills.is_only_drained(node):
        return RemedyChoice(remedy="inspect", reason=drills.end_of(node), drains=True)
    what = counted_signature(node)
    attempts = tuple(
        each for each in in_place_attempts(node.attempts) if each.fault_signature == what
    )
    try:
        choice = snapshot.remediator.choose(node, attempts, now)
    except Exception as error:  # noqa: BLE001 - operators are notified of a plugin's defect
        reason = f"the pool's remediator failed: {type(error).__name__}: {error}"
        return RemedyChoice(remedy="alert", reason=reason)
    # Nothing is left to reset, to reboot or to inspect.
    return RemedyChoice(remedy="replace") if is_gone(node) and choice.remedy != "alert" else choice


def counted_signature(node: NodeRecord) -> str:
    """Return what incidents call a node's fault, for counting attempts, degraded or not."""
    if node.health != "degraded" or node.lost or node.health_drill:
        return named_signature(node)
    return called(node.health_kind, node.health_code)


def notify_operators(
    snapshot: PoolSnapshot,
    record: PoolRecord,
    chosen: Mapping[str, RemedyChoice],
    waiting: Iterable[NodeRecord],
    now: datetime,
) -> OperatorCases:
    """Separate the nodes that are left to operators, and notify once of each."""
    notified: dict[str, str] = {}
    events: list[PoolEvent] = []
    others: list[NodeRecord] = []
    degraded = _left_to_people(snapshot, record, now)
    for node, choice in [*((node, chosen[node.node]) for node in waiting), *degraded]:
        alone = choice.remedy == "alert" or (choice.remedy == "inspect" and is_out(node))
        if not alone:
            others.append(node)
        if choice.remedy in ("alert", "inspect"):
            about = node.health_fault or f"{node.health_at or node.lost_at}"
            if record.operator_notified.get(node.node) != about:
                if len(events) == NOTIFIED_AT_ONCE_MAX:
                    continue
                events.append(_person(snapshot, node, choice, now))
            notified[node.node] = about
    # Of a node that is being remediated, or held, operators are not notified again.
    unhealthy = {
        node.node
        for node in snapshot.nodes.needs_attention
        if node.health == "unhealthy" or node.lost or lacks_driver(node)
    }
    notified |= {
        name: about
        for name, about in record.operator_notified.items()
        if name in unhealthy - set(notified)
    }
    if notified != record.operator_notified:
        record = msgspec.structs.replace(record, operator_notified=notified)
    return OperatorCases(record, tuple(events), others)


def _left_to_people(
    snapshot: PoolSnapshot, record: PoolRecord, now: datetime
) -> list[tuple[NodeRecord, RemedyChoice]]:
    """Return the nodes that work, or worked, and whose driver no reboot has loaded."""
    taken = busy(record)
    found = [
        (node, choose(snapshot, node, now))
        for node in snapshot.nodes.needs_attention
        if lacks_driver(node) and node.state == "active" and node.node not in taken
        if gate_table.first(Proposal("repair", record, now, node)) is None
    ]
    return [(node, choice) for node, choice in found if choice.remedy == "alert"]


def start_remediation(
    snapshot: PoolSnapshot,
    record: PoolRecord,
    node: NodeRecord,
    choice: RemedyChoice,
    now: datetime,
) -> tuple[str, OpenSaga, PoolRecord]:
    """Begin a remedy: its saga, which says why it is this one and which attempt, and the record."""
    kind: SagaKind = "drain" if choice.drains else SAGAS[choice.remedy]
    promotes = spares.substitute(record, snapshot.nodes, node, now) if kind == "replace" else ""
    saga, opened, record = begin(snapshot.fleet, record, kind, now, node=node, promotes=promotes)
    why = f"; {choice.reason}" if choice.reason and choice.remedy != "inspect" else ""
    if kind == "replace" and lacks_room(node, record.spec, now):
        why += "; it makes room for its successor, since there is none for one node more"
    opened = msgspec.structs.replace(
        opened,
        reason=f"{remediation_reason(node, record, now) or node.health_reason or node.health}{why}",
        fault_signature=counted_signature(node),
        attempt=choice.attempt,
        attempts_max=choice.attempts_max,
    )
    return saga, opened, with_open(record, saga, opened)


def to_be_replaced(
    chosen: Mapping[str, RemedyChoice], waiting: Iterable[NodeRecord]
) -> list[NodeRecord]:
    """Return the waiting nodes that are to be replaced: where they go, there is a gap."""
    return [node for node in waiting if chosen[node.node].remedy == "replace"]


def degraded_candidates(
    snapshot: PoolSnapshot, record: PoolRecord, now: datetime
) -> list[tuple[NodeRecord, RemedyChoice]]:
    """Degraded nodes whose verdict calls for a rung, in a window that is for such work.

    Where the pool has none, its work goes on: then those on which none is left.
    """
    return [
        (node, choice)
        for node, choice in _degraded(snapshot, record, now)
        if is_served(record) or is_idle(node, snapshot.use, now)
    ]


def asked_about(snapshot: PoolSnapshot, now: datetime) -> list[str]:
    """The degraded nodes whose use decides whether they are remediated."""
    if is_served(snapshot.record):
        return []
    found = _degraded(snapshot, snapshot.record, now)
    return [node.node for node, _ in found[:USES_READ_MAX]]


def is_served(record: PoolRecord) -> bool:
    """Return whether windows say when the work of degraded nodes may be disturbed."""
    return any(window.kind == "service" for window in record.spec.windows)


def _degraded(
    snapshot: PoolSnapshot, record: PoolRecord, now: datetime
) -> list[tuple[NodeRecord, RemedyChoice]]:
    taken = busy(record)
    found: list[tuple[NodeRecord, RemedyChoice]] = []
    for node in sorted(
        snapshot.nodes.needs_attention, key=lambda each: (each.health_at or now, each.node)
    ):
        free = node.state == "active" and node.node not in taken and not node.lost
        free = free and not node.spare and node.health == "degraded"
        if not free or node.health_action in ("none", "restart_app"):
            continue
        # An operator's cordon stays, and after a failed repair the node works again soon.
        if stays_out(node) or recovered_nodes.works_at(node) is not None:
            continue
        if gate_table.first(Proposal("degraded", record, now, node)):
            continue
        choice = choose(snapshot, node, now)
        # One with a cordoned GPU is repaired as an unhealthy one would be, only later.
        lost = node.faulty_gpus or recovered_nodes.is_unfit(node)
        if is_in_place(choice.remedy) or (choice.remedy == "replace" and lost):
            found.append((node, choice))
    return found


def _person(
    snapshot: PoolSnapshot, node: NodeRecord, choice: RemedyChoice, now: datetime
) -> OperatorNeeded:
    name = snapshot.record.name
    is_silent = node.lost and node.health != "unhealthy"
    return OperatorNeeded(
        id=f"person-needed-{name}-{node.node}-{snapshot.revision}",
        time=now,
        cause=node.health_fault,
        pool=name,
        node=node.node,
        action=node.health_action,
        reason="it is silent" if is_silent else node.health_reason,
        remedy=choice.reason,
        cordoned=choice.remedy == "inspect" or node.cordoned,
    )
