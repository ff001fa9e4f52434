"""Lists every gate in its order, with the proposals that it holds back. Pure.

Passes ask `first`, explanations and dry runs `every`, and the planner looks again at the `until` of
what they return.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from datetime import datetime
from functools import cache
from typing import Final, NamedTuple

from schemas.present_answers import Block, Gate
from services.pool_manager.planner.gates import node_gates, pool_gates
from services.pool_manager.planner.gates.proposal import ALL, Kind, Proposal

NONE: Final[frozenset[Kind]] = frozenset()
REPAIR: Final[frozenset[Kind]] = frozenset({"repair"})
CAN_WAIT: Final[frozenset[Kind]] = frozenset({"degraded", "renewal"})
DISRUPTIONS: Final[frozenset[Kind]] = REPAIR | CAN_WAIT | {"surplus", "idle-shutdown"}
"""Take a node out of service at a moment that is ours to choose."""


class GateRow(NamedTuple):
    """One gate, and what it holds back."""

    name: Gate
    block: Callable[[Proposal], Block | None]
    holds: frozenset[Kind]
    """The proposals that do not begin while it blocks."""
    reported: frozenset[Kind] = NONE
    """Those that it is reported of, and that a later part of the decision holds back, or lets begin
    for a reason of its own."""


GATES: Final = (
    GateRow("stop", pool_gates.stop, NONE, ALL - {"release"}),
    GateRow("hold", node_gates.hold, ALL),
    GateRow("observe", pool_gates.observe, NONE, ALL),
    GateRow("retirement", node_gates.retirement, REPAIR),
    GateRow("freeze-window", node_gates.freeze_window, DISRUPTIONS),
    GateRow("service-window", node_gates.service_window, CAN_WAIT),
    GateRow(
        "auto-replace-off",
        pool_gates.auto_replace_off,
        REPAIR | CAN_WAIT | {"restart-drain", "quarantine"},
    ),
    GateRow("operator", node_gates.operator, NONE, REPAIR),
    GateRow("agent-credentials", node_gates.credentials, REPAIR),
    GateRow("loss-confirmation", node_gates.silence, REPAIR),
    GateRow("rack", node_gates.rack, REPAIR),
    GateRow("retry", pool_gates.next_launch, frozenset({"launch", "surplus"})),
    GateRow("retry", pool_gates.next_promotion, frozenset({"promotion"})),
    GateRow("retry", pool_gates.next_renewal, frozenset({"renewal"})),
    GateRow("retry", pool_gates.retry, frozenset({"renewal"}), REPAIR),
    GateRow("breaker", pool_gates.breaker, CAN_WAIT, REPAIR),
    GateRow("breaker", pool_gates.forced_breaker, frozenset({"restart-drain", "recheck"})),
    GateRow("breaker", pool_gates.restored_store, frozenset({"quarantine"})),
    GateRow("ramp", pool_gates.ramp, frozenset({"renewal"}), REPAIR),
    GateRow("workload-system", pool_gates.workload_system, CAN_WAIT | {"surplus"}, REPAIR),
    GateRow("workload-system", pool_gates.cordon_refused, frozenset({"restart-drain"})),
    GateRow("incident", pool_gates.incident, frozenset({"recheck"}), REPAIR),
    GateRow("room", pool_gates.room, NONE, ALL),
    GateRow("budget", pool_gates.budget, NONE, REPAIR | CAN_WAIT),
)


@cache
def rows_of(kind: Kind) -> tuple[GateRow, ...]:
    """Return the gates that hold proposals of a kind, or are reported of them."""
    return tuple(row for row in GATES if kind in row.holds or kind in row.reported)


@cache
def rows_that_hold(kind: Kind) -> tuple[GateRow, ...]:
    """Return the gates that hold proposals of a kind: passes ask them about every node."""
    return tuple(row for row in GATES if kind in row.holds)


def every(proposal: Proposal, only: Container[Gate] | None = None) -> Iterator[Block]:
    """Yield what holds a proposal back, in the order of the gates; `only`: of these gates."""
    for row in rows_of(proposal.kind):
        if (only is None or row.name in only) and (found := row.block(proposal)) is not None:
            yield found


def first(proposal: Proposal) -> Block | None:
    """Return what a proposal does not begin for; None: nothing does."""
    return next(_holding(proposal), None)


def opens_at(proposals: Iterable[Proposal]) -> datetime | None:
    """Return when the first gate opens for which one of these does not begin; None: none does."""
    found = (block.until for each in proposals for block in _holding(each))
    return min((each for each in found if each is not None), default=None)


def _holding(proposal: Proposal) -> Iterator[Block]:
    for row in rows_that_hold(proposal.kind):
        if (found := row.block(proposal)) is not None:
            yield found
