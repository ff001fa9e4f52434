"""`identity-accept`: an operator accepts the identity that a node's agent reports."""

from collections.abc import Mapping

import msgspec

from schemas import subjects
from schemas.identity_orders import IdentityAccept
from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.operations import ACCEPT_IDENTITY
from services.bus.port import Bus, Endpoint, Headers
from services.bus.protocol.endpoint_replies import requester
from services.pool_manager.planner.fixed_identity import (
    NotAcceptedError,
    accepted,
    accepted_event,
    difference,
)
from services.pool_manager.pool_store import Store
from services.primitives.clock import Clock
from services.runtime.event_publisher import publish_event


class IdentityOrders:
    """Answers the order."""

    def __init__(self, bus: Bus, clock: Clock, store: Store) -> None:
        """Change records through `store`."""
        self._bus = bus
        self._clock = clock
        self._store = store

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Subject -> what answers it."""
        return {subjects.order_wildcard(ACCEPT_IDENTITY.name): self._accept}

    async def _accept(self, data: bytes, headers: Headers) -> bytes:
        asked = msgspec.json.decode(data, type=IdentityAccept)
        by, now = requester(headers, asked.by), self._clock.now()
        shown = ""

        def changed(record: NodeRecord | None) -> NodeRecord:
            nonlocal shown
            if record is None:
                raise NotAcceptedError(f"there is no node {asked.pool}/{asked.node}")
            after = accepted(record, asked.claim, by, self._store.owners.of, now)
            shown = difference(record)
            return after

        await self._store.nodes.caught_up()
        record = await self._store.change_node(asked.pool, asked.node, changed)
        assert record is not None
        event = accepted_event(record, shown, by, now)
        await publish_event(self._bus, event)
        return encode(event)
