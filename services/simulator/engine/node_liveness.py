"""Tracks which nodes beat, as the server has it, and which losses have no return."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from schemas.node_events import Lost, NodeEvent, Returned, Terminated
from schemas.saga_log_entries import SagaStarted
from schemas.topology import HEARTBEATS
from services.bus.memory.jetstream.publish_rules import ttl_seconds
from services.bus.port import Stored
from services.pool_manager.planner.node_counts import is_for_silence

_STREAM: Final = f"KV_{HEARTBEATS.name}"
_PREFIX: Final = f"$KV.{HEARTBEATS.name}."

CALLED_OFF_WITHIN_SECONDS: Final = 45.0
"""So long after a silent node beats again its replacement may still go on: the replica that read
that it does not may have stalled since."""
FIRST_STEP_WITHIN_SECONDS: Final = CALLED_OFF_WITHIN_SECONDS + 15.0
"""So long after it beats again its replacement may still take its first step."""


class NodeLiveness:
    """The heartbeats that are stored, and what was published of them."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._beating: dict[str, tuple[float, float]] = {}
        """Node -> since when its heartbeat has not expired, and when it will."""
        self.lost: dict[str, None] = {}
        """Nodes whose last event of this kind is `lost`."""
        self._over: dict[str, datetime] = {}
        """Node -> its last `returned` or `terminated`; an operator may publish an older `lost`
        again, which may be about an earlier machine of its name."""
        self.expired: dict[str, None] = {}
        """Those of them whose credentials had expired."""

    def stored(self, stream: str, stored: Stored) -> None:
        """Take in a heartbeat."""
        if stream != _STREAM:
            return
        node = stored.subject.removeprefix(_PREFIX).partition(".")[2]
        now = self._now()
        since, until = self._beating.get(node, (now, now))
        life_seconds = ttl_seconds(stored.headers) or 0
        self._beating[node] = (since if now < until else now, now + life_seconds)

    def forget(self) -> None:
        """Every stored heartbeat is lost."""
        self._beating.clear()

    def published(self, event: NodeEvent) -> None:
        """Take in an event."""
        if isinstance(event, Lost):
            over = self._over.get(event.node)
            if over is not None and event.time < over:
                return
            self.lost[event.node] = None
            if event.credentials_expired:
                self.expired[event.node] = None
        elif isinstance(event, Returned | Terminated):
            self._over[event.node] = event.time
            self.lost.pop(event.node, None)
            self.expired.pop(event.node, None)

    def beating_seconds(self, node: str) -> float:
        """Return for how long a node has been beating; 0: it does not."""
        now = self._now()
        since, until = self._beating.get(node, (now, now))
        return now - since if now < until else 0.0

    def forbids(self, saga: SagaStarted) -> str:
        """Return why a saga must not take its first step; empty: it may."""
        node = saga.params.node
        beating = self.beating_seconds(node)
        if not is_for_silence(saga.kind, saga.params) or beating <= FIRST_STEP_WITHIN_SECONDS:
            return ""
        return f"{saga.saga} acts for silence, and {node} has been beating for {beating:.0f} s"
