"""The status and health of a node, in a scenario's words. Pure.

A node's status is what Navarch has decided: unhealthy holds until it is uncordoned or replaced.
Its health is what the hardware is like now, so it may be healthy again while the status is not.
"""

from dataclasses import dataclass

from schemas.enums import HealthStatus
from schemas.health_records import HealthRecord
from schemas.node_records import NodeRecord
from services.simulator.inputs.scenario.scenario_format import NodeStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedNode:
    """The status and health of a node."""

    node: str
    pool: str
    status: NodeStatus
    health: HealthStatus
    reason: str = ""


def observe(record: NodeRecord, judged: HealthRecord | None, *, unfit: bool | None) -> ObservedNode:
    """Observe a node; `unfit`: whether its hardware is broken now, None where it has none."""
    return ObservedNode(
        node=record.node,
        pool=record.pool,
        status=status_of(record),
        health=health_of(judged, unfit=unfit),
        reason=(judged.reason if judged else "") or record.reason,
    )


def status_of(record: NodeRecord) -> NodeStatus:
    """Name the most important state of a node."""
    if record.state == "terminated" or record.provider_state == "gone":
        return "terminated"
    if record.state in ("launching", "registered"):
        return "provisioning"
    if record.health == "unhealthy":
        return "unhealthy"
    if record.lost:
        return "lost"
    if record.state == "leaving" or record.drained or record.saga.startswith("drain-"):
        return "draining"
    if record.spare:
        return "spare"
    return "cordoned" if record.cordoned else "active"


def health_of(judged: HealthRecord | None, *, unfit: bool | None) -> HealthStatus:
    """The state of the hardware now, as far as the policy considers it."""
    if unfit is None or judged is None:
        return "unknown"
    return judged.status if unfit else "healthy"
