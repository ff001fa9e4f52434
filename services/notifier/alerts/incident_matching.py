"""Which open incident an event about a node belongs to. Pure."""

from collections.abc import Mapping
from datetime import datetime

from schemas.breaker_state import OpenIncident
from schemas.fault_signature import SILENCE, called, shared
from schemas.messages import Message
from schemas.node_events import Lost, Verdict
from schemas.node_records import NodeRecord
from schemas.pool_events import OperatorNeeded


def matching_incident(
    event: Message, node: NodeRecord | None, incidents: Mapping[str, OpenIncident], at: datetime
) -> str:
    """The name of the incident that covers an event stored `at`; empty if none does.

    A released or settled incident covers no later event.
    """
    fault_signature = _fault_signature(event, node)
    for name, each in incidents.items():
        over = each.released or (each.hold_ended_at is not None and each.hold_ended_at < at)
        if each.scope == "pool":
            same = fault_signature == name
        else:
            same = node is not None and shared(node, each.scope) == each.within
        if fault_signature and same and not over:
            return name
    return ""


def _fault_signature(event: Message, node: NodeRecord | None) -> str:
    """The fault signature in an event, as incidents name it; empty if it has none."""
    match event:
        case Verdict(status="unhealthy", kind=kind, code=code) if kind:
            return called(kind, code)
        case Lost():
            return SILENCE
        case OperatorNeeded() if node is not None and node.health == "unhealthy":
            return called(node.health_kind, node.health_code)
        case OperatorNeeded() if node is not None and node.lost:
            return SILENCE
        case _:
            return ""
