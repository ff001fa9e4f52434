"""Limits the events of one node, and says which pass in a flood of its agent. Pure."""

from collections.abc import Hashable
from typing import Final

from schemas import subjects
from schemas.node_events import BootChecked, NodeEvent, ProviderNotice, Registered
from services.bus.port import Stored
from services.runtime.sender_quota import SenderLimit


def node_of(stored: Stored) -> str:
    """Return the sender of an event: its node."""
    parsed = subjects.parse_node(stored.subject)
    return f"{parsed.pool}.{parsed.node}" if parsed else stored.subject


def _signature_of(event: NodeEvent) -> Hashable:
    """What equal messages of an agent have in common; None: the health-monitor's messages."""
    match event:
        case Registered():
            return "registered", event.instance, event.boot_id
        case BootChecked():
            return "boot-checked", event.boot_id, event.ok
        case ProviderNotice():
            return "provider-notice", event.notice, event.withdrawn
        case _:
            return None


def _rank_of(event: NodeEvent) -> int:
    """How serious a message of a flooding node is: it is about to be lost, or may not serve."""
    match event:
        case ProviderNotice(withdrawn=False):
            return 2
        case BootChecked(ok=False):
            return 1
        case _:
            return 0


SENDER_LIMIT: Final = SenderLimit(signature=_signature_of, rank=_rank_of)
