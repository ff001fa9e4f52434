"""Lists every gate in its order, with the proposals that it holds back. Pure.

Passes ask `first`, explanations `every`, and the planner looks again at the `until` of what they
return.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Final, NamedTuple

from schemas.present_answers import Block
from services.pool_manager.planner.gates import node_gates
from services.pool_manager.planner.gates.proposal import ALL, Kind, Proposal

DISRUPTIONS: Final[frozenset[Kind]] = frozenset(
    {"repair", "degraded", "renewal", "surplus", "idle-shutdown"}
)
"""Take a node out of service at a moment that is ours to choose."""


class Gate(NamedTuple):
    """One gate, and what it holds back."""

    holds: frozenset[Kind]
    block: Callable[[Proposal], Block | None]


GATES: Final = (
    Gate(ALL, node_gates.hold),
    Gate(DISRUPTIONS, node_gates.freeze_window),
    Gate(frozenset({"degraded", "renewal"}), node_gates.service_window),
)


def every(proposal: Proposal) -> Iterator[Block]:
    """Yield what holds a proposal back, in the order of the gates."""
    for gate in GATES:
        if proposal.kind in gate.holds and (found := gate.block(proposal)) is not None:
            yield found


def first(proposal: Proposal) -> Block | None:
    """Return what holds a proposal back first; None: nothing does."""
    return next(every(proposal), None)


def opens_at(proposals: Iterable[Proposal]) -> datetime | None:
    """Return when the first gate opens that holds one of these back; None: none by itself."""
    moments = (found.until for each in proposals for found in every(each))
    return min((each for each in moments if each is not None), default=None)
