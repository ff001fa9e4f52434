"""A pool's nodes, and how they are counted against its size and its budget. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cached_property
from typing import Final

from schemas.enums import IncidentScope, SagaKind
from schemas.fault_signature import SHARED, SILENCE
from schemas.node_records import NodeRecord, RemediationAttempt
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_params import SagaTraits
from services.pool_manager.planner import rack_units
from services.saga.definitions import DEFINITIONS
from services.saga.definitions.saga_steps import HASTY_CORDON_SECONDS

NOT_HEALTHY: Final = frozenset({"degraded", "unhealthy"})


class Nodes:
    """A pool's nodes, sorted out once for all that one decision asks of them.

    Of thousands nearly all are plainly in service, and nearly all questions are about the others.
    """

    def __init__(self, nodes: Iterable[NodeRecord] = ()) -> None:
        """All of a pool's nodes, terminated ones left out."""
        self._all = tuple(nodes)
        self._shares: dict[IncidentScope, Counter[str]] = {}

    def __iter__(self) -> Iterator[NodeRecord]:
        """All of them."""
        return iter(self._all)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._all)

    @cached_property
    def needs_attention(self) -> "tuple[NodeRecord, ...]":
        """Nodes that are or were lost, or are unhealthy, cordoned, spare, announced, held."""
        return tuple(
            [
                node
                for node in self._all
                if node.health in NOT_HEALTHY
                or node.lost
                or node.cordoned
                or node.cordoned_gpus
                or node.spare
                or node.notices
                or node.losses
                or node.held_until is not None
            ]
        )

    @cached_property
    def spares(self) -> "tuple[NodeRecord, ...]":
        """Return the nodes that are kept in reserve."""
        return tuple(node for node in self.needs_attention if node.spare)

    @cached_property
    def active(self) -> "frozenset[str]":
        """Names of those that have been admitted and do not leave."""
        return frozenset(node.node for node in self._all if node.state == "active")

    @cached_property
    def by_name(self) -> "dict[str, NodeRecord]":
        """Return each node by its name."""
        return {node.node: node for node in self._all}

    def shares(self, scope: IncidentScope) -> "Counter[str]":
        """Return how many nodes have what in common, the unknown under the empty text."""
        found = self._shares.get(scope)
        if found is None:
            found = self._shares[scope] = Counter(map(SHARED[scope], self._all))
        return found

    @cached_property
    def racks(self) -> "Counter[str]":
        """Count the nodes of each rack that stay: the successor of one that leaves may be there."""
        return Counter(node.rack for node in self._all if node.state != "leaving")


def busy(record: PoolRecord) -> set[str]:
    """Nodes that an open saga is about."""
    return {
        name
        for each in record.open.values()
        for name in (each.node, each.new_node, each.promotes)
        if name
    }


def nodes_removed(record: PoolRecord) -> set[str]:
    """Nodes that open sagas remove, and those whose launch is given up."""
    given_up = {each.new_node for each in record.open.values() if each.called_off}
    removed = {each.node for each in record.open.values() if DEFINITIONS[each.kind].removes_node}
    return removed | given_up


def size(record: PoolRecord, nodes: Nodes) -> int:
    """Count the nodes that the pool will have when what is open has ended, spares left out."""
    present = len(nodes) - len(nodes.spares)
    if not record.open:
        return present
    removed = nodes_removed(record)
    coming = {each.new_node for each in record.open.values() if each.new_node and not each.spare}
    promoted = {each.promotes for each in record.open.values() if each.promotes}

    # The successor of an adopted node has no name yet, nor have those of a rack.
    nameless = sum(each.kind == "replace" and not each.new_node for each in record.open.values())

    def counts(name: str) -> bool:
        node = nodes.by_name.get(name)
        return node is not None and not node.spare

    more = sum(1 for name in (coming | promoted) - removed if not counts(name))
    return present + more + nameless - sum(1 for name in removed if counts(name))


def is_lasting(node: NodeRecord, record: PoolRecord) -> bool:
    """Return whether no other machine replaces a node: people repair it, or take it out."""
    listed = node.launch is not None and node.launch.lasting
    return record.spec.nodes == "enrolled" or listed


def is_gone(node: NodeRecord | None) -> bool:
    """Return whether a node is a gap: silent, and its provider reports its instance gone."""
    return node is not None and node.lost and node.provider_state == "gone"


def is_down(node: NodeRecord | None) -> bool:
    """Return whether a node is silent and its provider reports that its instance does not run."""
    return node is not None and node.lost and bool(node.down_reason)


def in_place_attempts(
    attempts: Iterable[RemediationAttempt], *, but: str = ""
) -> list[RemediationAttempt]:
    """Return the attempts that kept their node; `but`: without this saga's."""
    return [each for each in attempts if DEFINITIONS[each.kind].in_place and each.saga != but]


def is_for_silence(kind: SagaKind, saga: SagaTraits) -> bool:
    """Return whether silence is the only reason for a remediation."""
    if not DEFINITIONS[kind].remediates or saga.by or saga.notice:
        return False
    # A node whose instance the provider reports gone is silent, too, and has no signature.
    return saga.fault_signature == SILENCE or not (saga.fault_signature or saga.fault)


def is_left_by_repair(record: NodeRecord) -> bool:
    """Return whether a node's last saga failed to repair or replace it, and left its cordon.

    A cordon that an operator had ordered before stays the operator's.
    """
    last = record.attempts[-1] if record.attempts else None
    if last is None or last.outcome != "failed" or last.cordoned_by_operator:
        return False
    return last.saga.endswith(f"-{record.sagas}") or 0 < last.kept_at == record.sagas


def is_out(node: NodeRecord) -> bool:
    """Return whether a node counts as out of service, so that a disruption takes out no more.

    A quarantined one does not: it has a cap of its own, and its repair waits for the budget as if
    it were in service.
    """
    return node.cordoned and node.quarantine is None


def is_operators_cordon(node: NodeRecord) -> bool:
    """Return whether an operator took a node out of service, and not Navarch for its repair."""
    return is_out(node) and not is_left_by_repair(node)


def stays_out(node: NodeRecord) -> bool:
    """Return whether only an operator gives a node back that is out of service.

    One that a failed repair or an announced restart has left cordoned comes back by itself.
    """
    return is_operators_cordon(node) and not node.sole_notice


def unavailable(record: PoolRecord, nodes: Nodes) -> int:
    """Count the units that are missing, or that Navarch or its operators took out of service.

    An unhealthy node in service does not count: else two unhealthy nodes in a small pool would
    forbid each other's repair. A gap that a failed replacement left does count; nodes that were
    never paid for and nodes whose instances the provider lost do not. Where racks are the units, a
    rack that is replaced counts until the pool has another in its place.
    """
    out = units_out(record, nodes)
    leaving = [rack for rack in record.replaced_racks if f"rack {rack}" in out]
    gap = 0
    if not record.over_spend_cap:
        missing = rack_units.wanted(record) - size(record, nodes)
        # What has left of a rack that is out is no gap beside it.
        there = nodes.shares("rack")
        missing -= sum(max(0, record.spec.rack.nodes - there[rack]) for rack in leaving)
        gap = rack_units.units(record, max(0, missing))
    replaced = len(record.replaced_racks) - len(leaving)
    coming = len({each.gang for each in record.open.values() if each.gang})
    return len(out) + max(gap, min(replaced, gap + coming))


def units_out(record: PoolRecord, nodes: Nodes) -> set[str]:
    """The units of which a node is out of service, by an open saga or a cordon."""
    there = nodes.racks if rack_units.is_by_rack(record) else {}
    # A spare is not in service, so to replace it takes nothing out.
    disrupted = {
        rack_units.unit_of_saga(record, each, there)
        for each in record.open.values()
        if DEFINITIONS[each.kind].out_of_service
        and (each.promotes or not each.spare)
        and not (each.gone or is_gone(nodes.by_name.get(each.node)))
    }
    taken = busy(record)
    return disrupted | {
        rack_units.unit_of(record, node, there)
        for node in nodes.needs_attention
        if is_out(node) and not node.spare and node.node not in taken and not is_gone(node)
    }


def takes_out_no_more(record: PoolRecord, nodes: Nodes, node: NodeRecord) -> bool:
    """Return whether a node's unit is out already, so that a disruption takes out no more."""
    if is_out(node) or not rack_units.is_by_rack(record):
        return is_out(node)
    return rack_units.unit_of(record, node, nodes.racks) in units_out(record, nodes)


def units_quarantined(record: PoolRecord, nodes: Nodes) -> set[str]:
    """The units of those nodes: a rack counts once."""
    names = quarantined(record, nodes)
    if not rack_units.is_by_rack(record):
        return names
    there = nodes.racks
    known = [each for name in names if (each := nodes.by_name.get(name)) is not None]
    units = {rack_units.unit_of(record, each, there) for each in known}
    return units | (names - {each.node for each in known})


def quarantined(record: PoolRecord, nodes: Nodes) -> set[str]:
    """The nodes that count against the cap of quarantined nodes, as one with a cordoned GPU does.

    One in repair does until its repair has cordoned it: a repair that fails before leaves it
    quarantined.
    """
    begun = {
        each.node
        for each in record.open.values()
        if each.kind == "quarantine" or (each.kind == "cordon-gpus" and each.faulty_gpus)
    }
    return begun | {
        node.node for node in nodes.needs_attention if node.is_quarantined or node.cordoned_gpus
    }


def cordons_wait(record: PoolRecord, now: datetime) -> bool:
    """Return whether what needs a cordon waits: the workload system has refused some cordons."""
    return record.cordon_at is not None and now < record.cordon_at


def cordon_just_refused(record: PoolRecord, now: datetime) -> bool:
    """Return whether a cordon was refused so lately that even what cannot wait long must wait."""
    at = record.cordon_refused_at
    return at is not None and (now - at).total_seconds() < HASTY_CORDON_SECONDS


def automatic(opened: OpenSaga) -> bool:
    """Return whether the reconciler opened a saga by itself: the rate and the breaker bind it."""
    return not opened.cause
