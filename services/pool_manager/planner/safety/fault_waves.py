"""Finds the unhealthy nodes that have one cause: a wave. Pure.

Nodes that fall unhealthy of the same thing within a short window are one. So are nodes of different
fault signatures that share a rack, a zone, a driver version or a provider, where that sets them
apart: the share must be more lopsided than chance explains. Where all nodes
of a pool have the same driver, it says nothing that the unhealthy ones have it. A region of which
no node is heard any more is one as well, from three nodes on: its link is cut.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from schemas.breaker_state import OpenIncident
from schemas.enums import IncidentScope
from schemas.fault_signature import RACKS, SILENCE, called, is_of_fabric, shared
from schemas.node_records import NodeRecord
from schemas.settings import IncidentSpec
from services.pool_manager.planner import announced_restarts, cloud_notices
from services.pool_manager.planner.drills import is_drill
from services.pool_manager.planner.node_counts import Nodes, is_down, is_gone
from services.primitives.common_causes import WHOLE_GROUP_NODES, is_set_apart, nodes_needed

CHANCE: Final = 1 / 1000
"""A common cause is assumed of different faults only where chance is this unlikely."""
CAUSES: Final[tuple[IncidentScope, ...]] = ("rack", "zone", "driver", "provider")
"""The narrowest first: of causes that explain as many nodes it is the one that is reported."""
CAUSES_MAX: Final = 8
"""Found in one look; the next goes on from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnhealthyNode:
    """A node that has something, and since when."""

    node: NodeRecord
    what: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultWave:
    """Nodes that became unhealthy at once, in that order, and what they have in common."""

    what: str
    """Its key among the incidents: `xid-79`, `rack-r12`."""
    scope: IncidentScope
    within: str
    members: tuple[UnhealthyNode, ...]
    earlier: int = 0
    """Nodes that were remediated for it already: it is a slow wave, and holds back from now on."""
    as_unit: bool = False
    """It is one rack's, which is replaced as a whole: it holds nothing back."""


def fault_signature(node: NodeRecord) -> str:
    """Return what a node has, as incidents call it: `xid-79`, `silence`; empty: nothing to compare.

    A silent node whose instance the provider says is gone, or does not run, is no riddle, and no
    incident's; nor is one that was disconnected, or that the cloud has announced to take, nor a
    drill.
    """
    if cloud_notices.taken_reason(node) or is_drill(node):
        return ""
    if node.health == "unhealthy":
        return called(node.health_kind, node.health_code)
    explained = is_gone(node) or is_down(node) or node.provider_state == "disconnected"
    return SILENCE if node.lost and not explained else ""


def named_signature(node: NodeRecord) -> str:
    """Return what a node has, as its sagas and attempts name it: a drill apart from its fault."""
    if is_drill(node):
        return called(node.health_kind, node.health_code, drill=True)
    return fault_signature(node)


def unhealthy_since(node: NodeRecord) -> datetime | None:
    """Return when a node became unhealthy or was lost."""
    return node.health_at if node.health == "unhealthy" else node.lost_at


def find_unhealthy(nodes: Nodes) -> tuple[UnhealthyNode, ...]:
    """The nodes in service, or leaving it, that have something; those that fell first, first."""
    found = []
    for node in nodes.needs_attention:
        if node.health != "unhealthy" and not node.lost:
            continue
        if node.health != "unhealthy" and announced_restarts.silent_until(node) is not None:
            continue  # the cloud has announced that it would be silent
        what, since = fault_signature(node), unhealthy_since(node)
        if what and since is not None and node.state in ("active", "leaving"):
            found.append(UnhealthyNode(node=node, what=what, since=since))
    return tuple(sorted(found, key=lambda each: (each.since, each.node.node)))


def belongs(each: UnhealthyNode, what: str, incident: OpenIncident) -> bool:
    """Return whether a node is one of an incident's."""
    if what == RACKS:
        node = each.node
        return node.health == "unhealthy" and is_of_fabric(node.health_kind, node.health_code)
    if incident.scope == "pool":
        return each.what == what
    return shared(each.node, incident.scope) == incident.within


def is_explained(each: UnhealthyNode, known: Mapping[str, OpenIncident]) -> bool:
    """Return whether a node is one of a known incident, open or settled."""
    return _settled(each, known) or any(
        incident.hold_ended_at is None and belongs(each, what, incident)
        for what, incident in known.items()
    )


def find(
    spec: IncidentSpec,
    nodes: Nodes,
    unhealthy: tuple[UnhealthyNode, ...],
    known: Mapping[str, OpenIncident],
    now: datetime,
) -> tuple[FaultWave, ...]:
    """The waves that no known incident is about yet."""
    found: list[FaultWave] = []
    size = len(nodes)
    fresh = tuple(each for each in unhealthy if not _settled(each, known))
    for what in dict.fromkeys(each.what for each in fresh):
        if what in known and known[what].hold_ended_at is None:
            continue
        members = tuple(each for each in fresh if each.what == what)
        wave = first_run(members, spec, nodes_needed(spec, size), now)
        if not wave and what == SILENCE:
            wave = _cut_off(members, nodes, spec, now)
        if wave:
            found.append(FaultWave(what=what, scope="pool", within="", members=wave))
    found_now = {wave.what for wave in found}
    rest = tuple(
        each for each in fresh if each.what not in found_now and not is_explained(each, known)
    )
    while len(found) < CAUSES_MAX and (wave_ := _by_cause(spec, nodes, rest, now)) is not None:
        found.append(wave_)
        of_it = {each.node.node for each in wave_.members}
        rest = tuple(each for each in rest if each.node.node not in of_it)
    return tuple(found)


def first_run(
    members: tuple[UnhealthyNode, ...], spec: IncidentSpec, wanted: int, now: datetime
) -> tuple[UnhealthyNode, ...]:
    """Return the first of `wanted` or more within the window that are not too old to matter."""
    window, hold = timedelta(seconds=spec.window), timedelta(seconds=spec.hold)
    end = 0
    for start, first in enumerate(members):
        end = max(end, start)
        while end < len(members) and members[end].since - first.since <= window:
            end += 1
        if end - start >= wanted and now < first.since + hold:
            return members[start:end]
    return ()


# --- parts ---------------------------------------------------------------------------------------


def _settled(each: UnhealthyNode, known: Mapping[str, OpenIncident]) -> bool:
    """Whether a node became unhealthy in an incident whose hold has passed."""
    return any(
        incident.hold_ended_at is not None
        and each.since <= incident.hold_ended_at
        and belongs(each, what, incident)
        for what, incident in known.items()
    )


def _cut_off(
    silent: tuple[UnhealthyNode, ...], nodes: Nodes, spec: IncidentSpec, now: datetime
) -> tuple[UnhealthyNode, ...]:
    """The silent nodes of the first region whose nodes in service are all silent."""
    for region in dict.fromkeys(each.node.region for each in silent if each.node.region):
        members = tuple(each for each in silent if each.node.region == region)
        wave = first_run(members, spec, min(spec.nodes, WHOLE_GROUP_NODES), now)
        if wave and all(
            each.lost
            for each in nodes
            if each.region == region and each.state in ("active", "leaving")
        ):
            return wave
    return ()


def _by_cause(
    spec: IncidentSpec, nodes: Nodes, rest: tuple[UnhealthyNode, ...], now: datetime
) -> FaultWave | None:
    """The cause that explains most of the nodes that nothing explains yet."""
    best: FaultWave | None = None
    if len(rest) < spec.nodes:
        return None
    for scope in CAUSES:
        members: dict[str, list[UnhealthyNode]] = {}
        for each in rest:
            members.setdefault(shared(each.node, scope), []).append(each)
        unknown = members.pop("", [])
        large = {
            value: tuple(found)
            for value, found in members.items()
            if first_run(tuple(found), spec, spec.nodes, now)
        }
        if not large:
            continue  # nothing here can be a wave: the pool's nodes need not be counted
        sizes = nodes.shares(scope)
        known = len(nodes) - sizes[""]
        for value, found in large.items():
            wanted = max(spec.nodes, nodes_needed(spec, sizes[value]))
            wave = first_run(found, spec, wanted, now)
            if len(wave) <= (len(best.members) if best else 0):
                continue
            first, last = wave[0].since, wave[-1].since
            within = sum(1 for each in rest if first <= each.since <= last)
            within -= sum(1 for each in unknown if first <= each.since <= last)
            others = max(0, within - len(wave))
            if is_set_apart(len(wave), others, sizes[value] / known, CHANCE):
                best = FaultWave(what=f"{scope}-{value}", scope=scope, within=value, members=wave)
    return best
