"""The pool-manager's answer about the present: what waits, at which gate, and until when.

The query `why` returns it for one node or pool; bucket ANSWERS has the last one of each pool.
"""

from typing import Final, Literal

import msgspec

from schemas.messages import Record
from schemas.value_limits import Token, UtcTime

ANSWER_BYTES_MAX: Final = 65_536
"""Of one pool's answer; nodes beyond it are counted."""

Gate = Literal[
    "stop",
    "hold",
    "observe",
    "freeze-window",
    "service-window",
    "retirement",
    "removal",
    "quarantine",
    "quarantine-cap",
    "cordon",
    "spare",
    "on-demand",
    "auto-replace-off",
    "operator",
    "agent-credentials",
    "loss-confirmation",
    "retry",
    "breaker",
    "ramp",
    "workload-system",
    "incident",
    "rack",
    "room",
    "budget",
    "turn",
    "idle",
    "condition",
    "autoscaler",
    "drift",
    "fault",
    "gap",
]
"""Names of what something waits for, and of what is only reported (`fault`, `drift`, `gap`)."""


class Block(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describes one thing that waits, or that is reported: its gate, and the sentence about it."""

    gate: Gate
    text: str
    """One or more sentences; times in them are in the form of RFC 3339, in UTC."""
    until: UtcTime | None = None
    """When the gate opens by itself at the latest; None: not known, or not by itself."""
    remedy: str = ""
    """The command that opens it."""


class BlockedNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describes what a node waits for, and what follows."""

    fault: str = ""
    """Why it must not stay; empty: it is well, or out of service."""
    blocked: tuple[Block, ...] = ()
    next: str = ""
    machine: str = ""
    """The things that can be done to its machine, where a person would expect more."""


class BlockedGroup(BlockedNode, frozen=True, kw_only=True, omit_defaults=True):
    """Describes nodes that wait for the same, with the same fault."""

    nodes: tuple[Token, ...]


class PresentAnswer(Record, frozen=True, kw_only=True):
    """Holds what a pool and its nodes wait for, in ANSWERS under `pool.<name>`."""

    pool: Token
    at: UtcTime
    replica: str = ""
    revision: int = 0
    """Of the pool's record that it was read from."""
    blocked: tuple[Block, ...] = ()
    """About the pool."""
    groups: tuple[BlockedGroup, ...] = ()
    """Its nodes that wait for something."""
    more: int = 0
    """Nodes that wait and are not named, as the answer is full."""

    def of(self, node: str) -> BlockedNode:
        """Return what a node waits for; nothing where it is not named."""
        return next((each for each in self.groups if node in each.nodes), BlockedNode())
