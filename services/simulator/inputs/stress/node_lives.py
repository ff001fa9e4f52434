"""What happened to each node of a stress run: its states, its failures and its repairs."""

from dataclasses import dataclass, field
from typing import Final

from services.simulator.inputs.stress.failure_schedule import ScheduledFailure

CHANGES_MAX: Final = 200
"""Changes of state kept for one node."""
MOMENTS_MAX: Final = 30
"""Other moments kept for one node; further ones are counted."""
TEXT_CHARS_MAX: Final = 200
GONE: Final = "gone"
"""State of a terminated node."""


@dataclass(slots=True)
class NodeLife:
    """One node, from the decision to launch it on."""

    node: str
    pool: str = ""
    states: list[tuple[float, str]] = field(default_factory=list)
    """Since when it counts as what."""
    moments: list[tuple[float, str]] = field(default_factory=list)
    left_out: int = 0
    """Moments beyond those."""
    failures: int = 0
    repairs: int = 0

    @property
    def state(self) -> str:
        """Its state at the end."""
        return self.states[-1][1] if self.states else ""


class NodeLives:
    """Every node of a run."""

    def __init__(self) -> None:
        self.all: dict[str, NodeLife] = {}

    def change(self, at: float, node: str, pool: str, state: str) -> None:
        """Its record has another state; empty: it is gone."""
        life = self._of(node)
        life.pool = pool
        if len(life.states) == CHANGES_MAX:
            del life.states[1]  # the last counts, and when it began to exist
        life.states.append((at, state or GONE))

    def fail(self, at: float, node: str, failure: ScheduledFailure) -> None:
        """A failure hit its machine."""
        what = f"XID {failure.xid}" if failure.xid else failure.type
        self._of(node).failures += 1
        self.add(at, node, f"fails: {what}{f', {failure.of}' if failure.of else ''}")

    def repair(self, at: float, node: str, kind: str, status: str) -> None:
        """A repair of it ended."""
        self._of(node).repairs += status == "done"
        self.add(at, node, f"{kind} {status}")

    def add(self, at: float, node: str, text: str) -> None:
        """Something else happened to it."""
        life = self._of(node)
        if len(life.moments) < MOMENTS_MAX:
            life.moments.append((at, text[:TEXT_CHARS_MAX]))
        else:
            life.left_out += 1

    def _of(self, node: str) -> NodeLife:
        return self.all.setdefault(node, NodeLife(node))
