"""The remedy of each sick node of a pool, and what is left to people. Pure.

Asks the pool's Remediator, which may be somebody else's code: where it fails, people are told and
nothing is touched. What the cloud takes back is replaced, and so is a sick spare, whatever the
pool's remediation is.
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
from services.pool_manager.planner.node_counts import busy
from services.pool_manager.planner.pool_snapshot import World
from services.pool_manager.planner.remediation.remediator import Choice
from services.pool_manager.planner.remediation.unhealthy_nodes import sick
from services.pool_manager.planner.safety import eligibility
from services.pool_manager.planner.safety.fault_waves import fault_signature
from services.pool_manager.planner.sizing import cloud_notices, spares
from services.pool_manager.planner.sizing.open_sagas import begin, with_open
from services.pool_manager.sagas import DEFINITIONS

SAGAS: Final[Mapping[Remediation, SagaKind]] = {
    "reset-gpu": "reset-gpu",
    "reboot": "reboot",
    "replace": "replace",
    "inspect": "cordon",
}
"""Remedy -> the saga that brings it about."""
TOLD_AT_ONCE_MAX: Final = 100
"""Nodes that people are told of in one look; of the others in the next, which comes soon."""


@dataclass(frozen=True, slots=True)
class Left:
    """What comes of leaving nodes to people."""

    record: PoolRecord
    events: tuple[PoolEvent, ...]
    others: list[NodeRecord]
    """Those that are acted on."""


def is_in_place(remedy: Remediation) -> bool:
    """Whether a remedy keeps the node: resets and reboots have a rate of their own."""
    return remedy in SAGAS and DEFINITIONS[SAGAS[remedy]].in_place


def choose(world: World, node: NodeRecord, now: datetime) -> Choice:
    """Ask what is to be done about a sick node."""
    if cloud_notices.taken(node) or node.spare:
        # A node the cloud takes has no fault; a spare has no work that a reset would save.
        return Choice(remedy="replace")
    what = ailment(node)
    attempts = tuple(each for each in node.attempts if each.fault_signature == what)
    try:
        return world.remediator.choose(node, attempts, now)
    except Exception as error:  # noqa: BLE001 - a plugin's defect is told to people
        reason = f"the pool's remediator failed: {type(error).__name__}: {error}"
        return Choice(remedy="alert", reason=reason)


def ailment(node: NodeRecord) -> str:
    """What a node has, for counting attempts: as incidents call it, also where it is degraded."""
    if node.health != "degraded" or node.lost:
        return fault_signature(node)
    return called(node.health_kind, node.health_code)


def leave_to_people(
    world: World,
    record: PoolRecord,
    chosen: Mapping[str, Choice],
    waiting: Iterable[NodeRecord],
    now: datetime,
) -> Left:
    """Take out the nodes that only people are told of, and tell once of each."""
    told: dict[str, str] = {}
    events: list[PoolEvent] = []
    others: list[NodeRecord] = []
    for node in waiting:
        choice = chosen[node.node]
        alone = choice.remedy == "alert" or (choice.remedy == "inspect" and node.cordoned)
        if not alone:
            others.append(node)
        if choice.remedy in ("alert", "inspect"):
            about = node.health_fault or f"{node.health_at or node.lost_at}"
            if record.operator_notified.get(node.node) != about:
                if len(events) == TOLD_AT_ONCE_MAX:
                    continue
                events.append(_person(world, node, choice, now))
            told[node.node] = about
    # Of a node that is being acted on, or kept as it is, what was told stays told.
    ailing = {
        node.node for node in world.nodes.needs_attention if node.health == "unhealthy" or node.lost
    }
    told |= {
        name: about
        for name, about in record.operator_notified.items()
        if name in ailing - set(told)
    }
    if told != record.operator_notified:
        record = msgspec.structs.replace(record, operator_notified=told)
    return Left(record, tuple(events), others)


def begun(
    world: World, record: PoolRecord, node: NodeRecord, choice: Choice, now: datetime
) -> tuple[str, OpenSaga, PoolRecord]:
    """Begin a remedy: its saga, which says why it is this one and which attempt, and the record."""
    kind = SAGAS[choice.remedy]
    promotes = spares.substitute(record, world.nodes, node, now) if kind == "replace" else ""
    saga, opened, record = begin(world.fleet, record, kind, now, node=node, promotes=promotes)
    why = f"; {choice.reason}" if choice.reason and choice.remedy != "inspect" else ""
    opened = msgspec.structs.replace(
        opened,
        reason=f"{sick(node, record, now) or node.health_reason or node.health}{why}",
        fault_signature=ailment(node),
        attempt=choice.attempt,
        attempts_max=choice.attempts_max,
    )
    return saga, opened, with_open(record, saga, opened)


def replaced(chosen: Mapping[str, Choice], waiting: Iterable[NodeRecord]) -> list[NodeRecord]:
    """Of nodes that wait, those that are to be replaced: where they go, there is a gap."""
    return [node for node in waiting if chosen[node.node].remedy == "replace"]


def mendable(world: World, record: PoolRecord, now: datetime) -> list[tuple[NodeRecord, Choice]]:
    """Degraded nodes whose verdict calls for a rung, in a window that is for such work."""
    if not any(window.kind == "service" for window in record.spec.windows):
        # Their work goes on; nobody has said when it may be disturbed.
        return []
    taken = busy(record)
    found: list[tuple[NodeRecord, Choice]] = []
    for node in sorted(
        world.nodes.needs_attention, key=lambda each: (each.health_at or now, each.node)
    ):
        idle = node.state == "active" and node.node not in taken and not node.lost
        idle = idle and not node.spare
        if not idle or node.health != "degraded" or node.health_action in ("none", "restart_app"):
            continue
        if eligibility.kept(node, record, now, can_wait=True):
            continue
        choice = choose(world, node, now)
        if is_in_place(choice.remedy):
            found.append((node, choice))
    return found


def _person(world: World, node: NodeRecord, choice: Choice, now: datetime) -> OperatorNeeded:
    name = world.record.name
    return OperatorNeeded(
        id=f"person-needed-{name}-{node.node}-{world.revision}",
        time=now,
        cause=node.health_fault,
        pool=name,
        node=node.node,
        action=node.health_action,
        reason=node.health_reason if node.health == "unhealthy" else "it is silent",
        remedy=choice.reason,
        cordoned=choice.remedy == "inspect" or node.cordoned,
    )
