"""A drill's fault, and what the policy's judgement of it may lead to. Pure.

An operator has it reported, no hardware has it: so it counts in no window and no streak, and ends
no condition that a node really has. A real fault counts before it.
"""

from dataclasses import replace

from schemas.drill_orders import DrillStarted
from schemas.enums import Action
from schemas.fault_signature import DRILL
from schemas.node_events import Fault
from services.health_monitor.rules.health_policy import Judgement, Windows


def drill_fault(event: DrillStarted) -> Fault:
    """Return the fault that a drill reports."""
    name = f"{event.kind} {event.code}" if event.code else event.kind
    by = f", by {event.by}" if event.by else ""
    return Fault(
        id=f"fault-{event.id}",
        time=event.time,
        cause=event.id,
        pool=event.pool,
        node=event.node,
        kind=event.kind,
        code=event.code,
        subcode=event.subcode,
        gpu_index=event.gpu_index,
        message=f"drill{by}: {name}",
        source=DRILL,
    )


def is_drill(fault: Fault) -> bool:
    """Return whether a fault is a drill's: it counts as the event of its drill says, alone."""
    return fault.source == DRILL


def limited(judged: Judgement, event: DrillStarted, windows: Windows) -> Judgement:
    """Return the judgement of a drill's fault, as far as the drill goes.

    One is enough whatever the pool's `unhealthy_after`, and the whole node is judged.
    """
    action: Action = judged.action
    if event.reach != "act":
        action = "inspect" if judged.result == "unhealthy" else "none"
    return replace(
        judged,
        action=action,
        fatal=True,
        cancels=(),
        cordon="node",
        windows=windows,
        drill=event.reach,
    )
