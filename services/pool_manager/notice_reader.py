"""Reads the cloud's last word on a node from the server, right before the node is taken for it.

The node's record may not have it yet: another replica is about to take it in, or NODES takes no
writes for minutes.
"""

from schemas import subjects
from schemas.node_events import FACTS, ProviderNotice
from schemas.node_records import NodeRecord
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS
from services.bus.port import Bus
from services.pool_manager.planner.cloud_notices import record_notice


class NoticeReader:
    """Reads whether notices are withdrawn."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def heard(self, node: NodeRecord) -> NodeRecord:
        """The node's record, with the withdrawal that was stored last of a notice that it has."""
        subject = subjects.node_event(node.pool, node.node, FACTS[ProviderNotice])
        stored = await self._bus.last(EVENTS.name, subject)
        event = decode_stored(stored) if stored is not None else None
        if stored is None or not isinstance(event, ProviderNotice):
            return node
        known = event.withdrawn and event.notice in node.notices
        return record_notice(node, event, stored.time) if known else node
