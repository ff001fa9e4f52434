"""Bringing a pool and its reserve to size: which nodes are begun and which may leave. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

import msgspec

from schemas.node_records import NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.present_answers import Block
from services.pool_manager.planner import rack_units
from services.pool_manager.planner.gates import gate_table
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.idle_nodes import node_hours, use_of
from services.pool_manager.planner.node_counts import busy
from services.pool_manager.planner.pool_snapshot import NodeUse, PoolPlan, PoolSnapshot
from services.pool_manager.planner.sizing import (
    gang_launches,
    on_demand_floor,
    rack_size,
    unwanted_launches,
    workload_names,
)
from services.pool_manager.planner.sizing.open_sagas import (
    begin,
    node_name,
    room_for_launches,
    room_for_sagas,
    with_open,
)
from services.pool_manager.planner.sizing.spares import ready, reserve
from services.pool_manager.planner.unhealthy_nodes import remediation_reason

LAUNCHES_MAX: Final = 200
"""New nodes begun in one decision; the next decision goes on from there."""
USES_READ_MAX: Final = 2_000
"""Nodes of one decision whose use is read; that of the others counts as unknown."""
RANKS: Final = {"idle": 2, "busy": 3, "unknown": 4}
"""Of nodes that are neither unhealthy nor cordoned, by their use: the least useful first."""


def resize(snapshot: PoolSnapshot, begun: PoolPlan, now: datetime) -> PoolPlan:
    """Begin what fills the gaps, or takes the surplus away; a spare fills a gap first.

    Others size a pool of adopted nodes.
    """
    begun = replace(begun, record=rack_size.settled(begun.record, snapshot.nodes))
    if begun.record.spec.nodes != "launched":
        return begun
    sizing = _Sizing(snapshot, begun.record, dict(begun.start), now)
    waits = gate_table.first(Proposal("launch", sizing.record, now))
    if sizing.record.spec.workload_names:
        return _named(begun, sizing, waits)
    sizing.call_off()
    sizing.promote()
    if sizing.gap() > 0 or sizing.gap(spare=True) > 0:
        if waits is not None:
            begun = replace(begun, wake_at=waits.until)
        else:
            sizing.launch()
    sizing.leave()
    sizing.leave(spare=True)
    return replace(begun, record=sizing.record, start=sizing.start)


def _named(begun: PoolPlan, sizing: "_Sizing", waits: Block | None) -> PoolPlan:
    """The same in a pool that is sized by its workload system's names."""
    sizing.record = unwanted_launches.call_off_names(sizing.record)
    if waits is None:
        sizing.launch_named()
    elif workload_names.unserved(sizing.record, sizing.nodes):
        begun = replace(begun, wake_at=waits.until)
    sizing.leave_named()
    return replace(begun, record=sizing.record, start=sizing.start)


class _Sizing:
    """The sagas of one decision about a pool's size, as they are begun."""

    def __init__(
        self, snapshot: PoolSnapshot, record: PoolRecord, start: dict[str, OpenSaga], now: datetime
    ) -> None:
        self.record = record
        self.start = start
        self._world = snapshot
        self._now = now
        self.nodes = snapshot.nodes

    def gap(self, *, spare: bool = False) -> int:
        """Nodes that are missing, in service or in reserve; below zero: there are too many."""
        if spare:
            return self.record.spec.spares - reserve(self.record, self._world.nodes)
        return rack_size.gap(self.record, self._world.nodes)

    def call_off(self) -> None:
        """Give up launches before any node in service leaves."""
        self.record = unwanted_launches.taken_up(self.record, self.nodes, self.gap())
        for spare in (False, True):
            surplus = -self.gap(spare=spare)
            if surplus > 0:
                reason = self._too_many(surplus, spare=spare)
                self.record = unwanted_launches.call_off(
                    self.record, self.nodes, surplus, reason, spare=spare
                )

    def promote(self) -> None:
        """Put spares into service where nodes are missing."""
        gap = self.gap()
        if gate_table.first(Proposal("promotion", self.record, self._now)) is not None:
            return
        found = ready(self.record, self._world.nodes, self._now)
        found = found[: min(max(0, gap), room_for_sagas(self.record))]
        for node in found:
            reason = self._missing(gap)
            begun = begin(
                self._world.fleet, self.record, "promote", self._now, node=node, promotes=node.node
            )
            self._note(begun, reason)

    def launch(self) -> None:
        """Launch what is missing, the nodes for service first."""
        serving, kept = max(0, self.gap()), max(0, self.gap(spare=True))
        reasons = {False: self._missing(serving), True: self._missing(kept, spare=True)}
        gang, room = self._gang(serving or kept)
        if rack_units.is_by_rack(self.record):
            serving = room
        wanted = [False] * serving + [True] * kept
        for spare in wanted[:room]:
            begun = begin(
                self._world.fleet, self.record, "scale-up", self._now, spare=spare, gang=gang
            )
            self._note(begun, reasons[spare])

    def _gang(self, missing: int) -> tuple[tuple[str, int], int]:
        """The gang of what is launched now, if it must be together, and how many are launched."""
        if rack_units.is_by_rack(self.record):
            size = rack_size.next_gang(self.record, missing)
        elif not self.record.spec.placement.required:
            return ("", 0), min(LAUNCHES_MAX, room_for_launches(self.record))
        else:
            size = gang_launches.next_gang(self.record, missing)
        first = node_name(self._world.fleet, self.record.name, self.record.serial + 1)
        return (first, size), size

    def launch_named(self) -> None:
        """Launch a node for each name that has none."""
        names = workload_names.unserved(self.record, self.nodes)
        gang, room = self._gang(len(names))
        for name in names[:room]:
            begun = begin(
                *(self._world.fleet, self.record, "scale-up", self._now),
                workload_name=name,
                gang=gang,
            )
            self._note(begun, f"{name} was resumed")

    def leave_named(self) -> None:
        """Take away nodes whose names are not wanted, once they have no work: none is evicted."""
        found = workload_names.unwanted(self.record, self.nodes)
        for node in _surplus(self.record, found, self._now)[: room_for_sagas(self.record)]:
            saga, opened, record = begin(
                self._world.fleet, self.record, "scale-down", self._now, node=node
            )
            reason = f"{workload_names.name_of(node) or node.node} was suspended"
            if not record.removing:
                opened = msgspec.structs.replace(opened, drain="wait")
            self._note((saga, opened, record), reason)

    def leave(self, *, spare: bool = False) -> None:
        """Take away what is too many."""
        surplus = -self.gap(spare=spare)
        if surplus <= 0:
            return
        reason = self._too_many(surplus, spare=spare)
        nodes = [node for node in self._world.nodes if node.spare == spare]
        surplus -= unwanted_launches.pending(self.record, self.nodes, spare=spare)
        leaving = min(max(0, surplus), room_for_sagas(self.record))
        free = _surplus(self.record, nodes, self._now, self._world.use)
        if rack_units.is_by_rack(self.record) and not self.record.removing:
            free = rack_size.leaving(self.record, self._world.nodes, free, leaving)
        for node in on_demand_floor.kept(self.record, self._world.nodes, free, leaving):
            begun = begin(self._world.fleet, self.record, "scale-down", self._now, node=node)
            self._note(begun, reason)

    def _too_many(self, surplus: int, *, spare: bool) -> str:
        if self.record.removing:
            return f"pool {self.record.name} is being removed"
        wanted = self.record.spec.spares if spare else rack_units.wanted(self.record)
        return f"{wanted + surplus} {'spares' if spare else 'nodes'} where {wanted} are wanted"

    def _missing(self, gap: int, *, spare: bool = False) -> str:
        wanted = self.record.spec.spares if spare else rack_units.wanted(self.record)
        return f"{wanted - gap} of {wanted} {'spares' if spare else 'nodes'}"

    def _note(self, begun: tuple[str, OpenSaga, PoolRecord], reason: str) -> None:
        saga, opened, record = begun
        self.start[saga] = msgspec.structs.replace(opened, reason=reason)
        self.record = with_open(record, saga, self.start[saga])


def removable(snapshot: PoolSnapshot, decided: PoolPlan, now: datetime) -> list[str]:
    """Nodes of which some but not all leave in a plan, so that their use decides which."""
    leaving = [each for each in decided.start.values() if each.kind == "scale-down"]
    found = []
    for spare in {each.spare for each in leaving}:
        nodes = (node for node in snapshot.nodes if node.spare == spare)
        free = _surplus(snapshot.record, nodes, now)
        if len(free) > sum(each.spare == spare for each in leaving):
            found += [node.node for node in free]
    return found[:USES_READ_MAX]


def _surplus(
    record: PoolRecord,
    nodes: Iterable[NodeRecord],
    now: datetime,
    use: Mapping[str, NodeUse] | None = None,
) -> list[NodeRecord]:
    """Nodes that may leave, the least useful first.

    Unhealthy, cordoned or silent, idle, busy by the node-hours since the job began, and last those
    whose work has lasted for an unknown time; of equal ones the most expensive, then the youngest,
    but of busy ones the oldest: a young one's work is the furthest from its end.
    """
    taken, known, nodes = busy(record), use or {}, tuple(nodes)
    free = [
        node
        for node in nodes
        if node.node not in taken
        and node.state == "active"
        and gate_table.first(Proposal("surplus", record, now, node)) is None
    ]

    gangs = Counter(gang for node in nodes for gang in node.gangs)

    def usefulness(node: NodeRecord) -> tuple[int, float, float, float, str]:
        used, hours = known.get(node.node, NodeUse()), 0.0
        if remediation_reason(node, record, now):
            rank = 0
        elif node.cordoned or node.lost or node.health == "unhealthy":
            rank = 1
        elif (known_use := use_of(node, use, now)) == "busy":
            lost = node_hours(node, used, max((gangs[each] for each in node.gangs), default=1), now)
            rank, hours = (RANKS["unknown"] + 1, 0.0) if lost is None else (RANKS["busy"], lost)
        else:
            rank = RANKS[known_use]
        age = (now - (node.admitted_at or now)).total_seconds()
        tie = -age if rank in (RANKS["busy"], RANKS["unknown"] + 1) else age
        return rank, hours, -used.dollars_per_hour, tie, node.node

    return sorted(free, key=usefulness)
