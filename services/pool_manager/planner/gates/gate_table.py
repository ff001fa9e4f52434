"""Lists every gate in its order, with the proposals that it holds back. Pure.

Passes ask `first`, explanations and dry runs `every`, and the planner looks again at the `until` of
what they return.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Final, NamedTuple

from schemas.present_answers import Block
from services.pool_manager.planner.gates import node_gates, pool_gates
from services.pool_manager.planner.gates.proposal import ALL, Kind, Proposal

NONE: Final[frozenset[Kind]] = frozenset()
REPAIR: Final[frozenset[Kind]] = frozenset({"repair"})
CAN_WAIT: Final[frozenset[Kind]] = frozenset({"degraded", "renewal"})
DISRUPTIONS: Final[frozenset[Kind]] = REPAIR | CAN_WAIT | {"surplus", "idle-shutdown"}
"""Take a node out of service at a moment that is ours to choose."""


class Gate(NamedTuple):
    """One gate, and what it holds back."""

    block: Callable[[Proposal], Block | None]
    holds: frozenset[Kind]
    """The proposals that do not begin while it blocks."""
    told: frozenset[Kind] = NONE
    """Those of which it is told, and which a later part of the decision holds back, or lets begin
    for a reason of its own."""


GATES: Final = (
    Gate(pool_gates.stop, NONE, ALL - {"release"}),
    Gate(node_gates.hold, ALL),
    Gate(pool_gates.observe, NONE, ALL),
    Gate(node_gates.retirement, REPAIR),
    Gate(node_gates.freeze_window, DISRUPTIONS),
    Gate(node_gates.service_window, CAN_WAIT),
    Gate(pool_gates.auto_replace_off, REPAIR | CAN_WAIT | {"restart-drain", "quarantine"}),
    Gate(node_gates.operator, NONE, REPAIR),
    Gate(node_gates.silence, REPAIR),
    Gate(pool_gates.next_launch, frozenset({"launch", "surplus"})),
    Gate(pool_gates.next_promotion, frozenset({"promotion"})),
    Gate(pool_gates.next_renewal, frozenset({"renewal"})),
    Gate(pool_gates.retry, frozenset({"renewal"}), REPAIR),
    Gate(pool_gates.breaker, CAN_WAIT, REPAIR),
    Gate(pool_gates.forced_breaker, frozenset({"restart-drain", "recheck"})),
    Gate(pool_gates.restored_store, frozenset({"quarantine"})),
    Gate(pool_gates.ramp, frozenset({"renewal"}), REPAIR),
    Gate(pool_gates.workload_system, CAN_WAIT | {"surplus"}, REPAIR),
    Gate(pool_gates.cordon_refused, frozenset({"restart-drain"})),
)


def every(proposal: Proposal) -> Iterator[Block]:
    """Yield what holds a proposal back, in the order of the gates."""
    for gate in GATES:
        concerned = proposal.kind in gate.holds or proposal.kind in gate.told
        if concerned and (found := gate.block(proposal)) is not None:
            yield found


def first(proposal: Proposal) -> Block | None:
    """Return what a proposal does not begin for; None: nothing does."""
    for gate in GATES:
        if proposal.kind in gate.holds and (found := gate.block(proposal)) is not None:
            return found
    return None


def opens_at(proposals: Iterable[Proposal]) -> datetime | None:
    """Return when the first gate opens for which one of these does not begin; None: none does."""
    untils = (
        found.until
        for each in proposals
        for gate in GATES
        if each.kind in gate.holds and (found := gate.block(each)) is not None
    )
    return min((each for each in untils if each is not None), default=None)
