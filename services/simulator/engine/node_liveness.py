"""Which nodes beat, as the server has it, and of which a loss was published without a return."""

from collections.abc import Callable
from typing import Final

from schemas.node_events import Lost, NodeEvent, Returned, Terminated
from schemas.topology import HEARTBEATS
from services.bus.port import Stored

_STREAM: Final = f"KV_{HEARTBEATS.name}"
_PREFIX: Final = f"$KV.{HEARTBEATS.name}."


class NodeLiveness:
    """The heartbeats that are stored, and what was published of them."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Nothing is stored yet."""
        self._now = now
        self._since: dict[str, float] = {}
        """Node -> since when its heartbeat has not expired."""
        self.lost: dict[str, None] = {}
        """Nodes whose last event of this kind is `lost`."""

    def stored(self, stream: str, stored: Stored) -> None:
        """Take in a heartbeat, or the marker of one that expired."""
        if stream != _STREAM:
            return
        node = stored.subject.removeprefix(_PREFIX).partition(".")[2]
        if stored.data:
            self._since.setdefault(node, self._now())
        else:
            self._since.pop(node, None)

    def forget(self) -> None:
        """Every stored heartbeat is lost."""
        self._since.clear()

    def published(self, event: NodeEvent) -> None:
        """Take in an event."""
        if isinstance(event, Lost):
            self.lost[event.node] = None
        elif isinstance(event, Returned | Terminated):
            self.lost.pop(event.node, None)

    def beating_seconds(self, node: str) -> float:
        """For how long a node has been beating; 0: it does not."""
        since = self._since.get(node)
        return 0.0 if since is None else self._now() - since
