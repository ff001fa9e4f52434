"""Which open incident a fact about a node is part of: people know of it by that. Pure.

The pool's record says which incidents are open, and the node's what it has in common with others.
"""

from collections.abc import Mapping
from datetime import datetime

from schemas.breaker_state import OpenIncident
from schemas.fault_signature import SILENCE, called, shared
from schemas.messages import Message
from schemas.node_events import Lost, Verdict
from schemas.node_records import NodeRecord
from schemas.pool_events import OperatorNeeded


def part_of(
    event: Message, node: NodeRecord | None, incidents: Mapping[str, OpenIncident], at: datetime
) -> str:
    """The name of the incident that a fact stored `at` is part of; empty: of none.

    One that somebody let go, or whose hold had passed before, is known and over: what happens
    after it is news again.
    """
    fault_signature = _sickness(event, node)
    for what, each in incidents.items():
        over = each.released or (each.settled is not None and each.settled < at)
        if each.scope == "pool":
            same = fault_signature == what
        else:
            same = node is not None and shared(node, each.scope) == each.within
        if fault_signature and same and not over:
            return what
    return ""


def _sickness(event: Message, node: NodeRecord | None) -> str:
    """What a fact says that its node has, as incidents are called; empty: nothing grave."""
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
