"""The faults of every connection: cut, lossy or slow."""

from dataclasses import dataclass, field, fields
from typing import Any, Final

EVERY_CONNECTION: Final = "*"


@dataclass(slots=True)
class NetworkFaults:
    """Holds the faults of connections, by the name of their process."""

    cut: dict[str, int] = field(default_factory=dict)
    """Process -> how many faults cut its connection."""
    lost_requests: dict[str, float] = field(default_factory=dict)
    """Process -> share of its requests that are lost."""
    lost_answers: dict[str, float] = field(default_factory=dict)
    """Process -> share of its answers that are lost."""
    lost_acks: dict[str, float] = field(default_factory=dict)
    """Process -> share of its acknowledgements that are lost."""
    slow: dict[str, float] = field(default_factory=dict)
    """Process -> most seconds by which its calls are delayed."""

    def is_cut(self, name: str) -> bool:
        """Return whether a process has no connection."""
        return bool(self.cut and (self.cut.get(name) or self.cut.get(EVERY_CONNECTION)))

    @property
    def any(self) -> bool:
        """Return whether any connection has a fault."""
        return any(self._tables())

    def forget(self, name: str) -> None:
        """Remove every fault of one connection."""
        for table in self._tables():
            table.pop(name, None)

    def clear(self) -> None:
        """Remove every fault."""
        for table in self._tables():
            table.clear()

    def _tables(self) -> list[dict[str, Any]]:
        return [getattr(self, each.name) for each in fields(self)]
