"""Decides what becomes of events about nodes that are not recorded."""

import logging
from typing import Final

from schemas.node_events import NodeEvent
from schemas.node_records import node_key
from services.pool_manager.planner.node_counts import busy
from services.pool_manager.pool_store import Store
from services.primitives.errors import Retry

log = logging.getLogger(__name__)

WARNED_MAX: Final = 10_000
"""Nodes that are remembered as warned of; the oldest are forgotten first."""


class UnknownNodes:
    """Warns once of each node that is not recorded.

    An agent that starts before the sweep adopts its node publishes several events meanwhile.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._warned: dict[str, None] = {}

    async def take(self, event: NodeEvent) -> None:
        """Raise Retry for a node that a saga is just bringing; any other is not ours."""
        found = await self._store.pool(event.pool)
        if found is not None and event.node in busy(found[0]):
            raise Retry(f"{event.node} is not yet recorded")
        key = node_key(event.pool, event.node)
        if key in self._warned:
            return
        self._warned[key] = None
        if len(self._warned) > WARNED_MAX:
            del self._warned[next(iter(self._warned))]
        log.warning("event about no node of ours", extra={"pool": event.pool, "node": event.node})
