"""`drill`: an operator has a fault reported that a node does not have."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas import subjects
from schemas.drill_orders import DrillOrder
from schemas.messages import encode
from schemas.operations import DRILL
from schemas.stops import StopState
from services.bus.port import Bus, Endpoint, Headers
from services.bus.protocol.endpoint_replies import requester
from services.pool_manager.decision_log import log_event
from services.pool_manager.pool_store import Store
from services.pool_manager.requests.drill_decision import DrillRefusedError, drill
from services.primitives.clock import Clock
from services.runtime.event_publisher import publish_event

JUDGED_WITHIN: Final = timedelta(seconds=30)
"""After so long the records show a drill that has begun."""


class DrillOrders:
    """Answers the order."""

    def __init__(
        self, bus: Bus, clock: Clock, store: Store, stops: Callable[[], StopState]
    ) -> None:
        """Decide on what `store` has; `stops`: what operators have stopped."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._stops = stops
        self._begun: dict[str, tuple[str, datetime]] = {}
        """Pool -> the node of its last drill, and when that began."""

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Subject -> what answers it."""
        return {subjects.order_wildcard(DRILL.name): self._drill}

    async def _drill(self, data: bytes, headers: Headers) -> bytes:
        asked = msgspec.json.decode(data, type=DrillOrder)
        if not self._store.trusted:
            raise DrillRefusedError("records that were lost are being rebuilt; ask again")
        await self._store.nodes.caught_up()
        async with self._store.deciding(asked.pool):
            snapshot = await self._store.snapshot(asked.pool)
            if snapshot is not None:
                snapshot = replace(snapshot, stops=self._stops())
            now = self._clock.now()
            node, at = self._begun.get(asked.pool, ("", now))
            begun = node if now - at < JUDGED_WITHIN else ""
            event = drill(asked, requester(headers, asked.by), snapshot, begun, now)
            await publish_event(self._bus, event)
            self._begun[asked.pool] = asked.node, now
        log_event(event)
        return encode(event)
