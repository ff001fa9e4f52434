"""The same fault on many nodes at once, and the groups that may share it. Pure.

XID 45 on sixty nodes is one job that died, and most often another node's crash came before it. It
calls for nothing to be done about sixty nodes, but people should hear of it as one thing, and of
what the nodes share: a job, a rack, a zone, a provider, or the pool. What makes nodes unhealthy is
the pool-manager's to hold together, because it acts on it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from schemas.enums import PROGRAM_CODES, IncidentScope
from schemas.fault_signature import called, in_words
from schemas.settings import IncidentSpec
from services.primitives.common_causes import is_set_apart, nodes_needed

KINDS_MAX: Final = 10_000
"""Groups, kinds and codes under watch; the oldest are forgotten first."""
CRASHES_MAX: Final = 10_000
JOB_NODES: Final = 3
"""So many nodes of one job are one incident; two, where another node's crash came first."""
CHANCE: Final = 1 / 20
"""The incident is the rack's, zone's or provider's, and not the pool's, where that many of its
nodes would be this unlikely by chance. The same fault is a common cause already, so this is less
strict than what the pool-manager requires of different ones."""
WIDE: Final[tuple[IncidentScope, ...]] = ("rack", "zone", "provider")
"""Narrow before wide; a job comes before them, the pool after."""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that share something."""

    scope: IncidentScope
    within: str
    size: int
    """How many nodes it has; 0 where that is not known."""


@dataclass(frozen=True, slots=True)
class SharedFault:
    """A fault that several nodes have at once, and the group of nodes that it was seen in."""

    pool: str
    kind: str
    code: int
    scope: IncidentScope = "pool"
    within: str = ""


@dataclass(frozen=True, slots=True)
class Crash:
    """A fault that made a node unhealthy, shortly before others followed."""

    node: str
    kind: str
    code: int
    fault: str
    at: float
    job: str = ""


@dataclass(frozen=True, slots=True)
class CorrelatedFaults:
    """An incident in which many nodes report the same fault."""

    what: SharedFault
    nodes: tuple[str, ...]
    first: float
    last: float
    after: Crash | None = None


@dataclass(slots=True)
class _Open:
    first: float
    last: float
    nodes: set[str] = field(default_factory=set)


@dataclass(slots=True)
class FaultCorrelator:
    """Everything that was seen within the last moments."""

    _seen: dict[SharedFault, dict[str, float]] = field(default_factory=dict)
    _open: dict[SharedFault, _Open] = field(default_factory=dict)
    _crashes: dict[tuple[str, str], Crash] = field(default_factory=dict)
    """Pool and job (or none) -> the last one."""

    def adopt(self, what: SharedFault, first: float, last: float) -> None:
        """Take over an incident that was published before."""
        self._open[what] = _Open(first, last)

    def crashed(self, pool: str, crash: Crash) -> None:
        """Note a fault that others may follow from."""
        for job in {"", crash.job}:
            self._crashes.pop((pool, job), None)
            self._crashes[pool, job] = crash
        while len(self._crashes) > CRASHES_MAX:
            del self._crashes[next(iter(self._crashes))]

    def take(
        self, what: SharedFault, node: str, at: float, groups: Sequence[Group], spec: IncidentSpec
    ) -> CorrelatedFaults | None:
        """Take one fault of a node that is in these groups, the narrow before the wide.

        `what` is the fault as the pool's. Return the wave that it makes, if it makes one.
        """
        whats = [SharedFault(what.pool, what.kind, what.code, g.scope, g.within) for g in groups]
        for each in whats:
            opened = self._opened(each)
            if opened is not None:
                opened.last = max(opened.last, at)
                opened.nodes.add(node)
                return None
        for each in whats:
            self._note(each, node, at, spec)
        for each, group in zip(whats, groups, strict=True):
            seen = self._seen[each]
            after = self._before(each, min(seen.values()), at, spec)
            if len(seen) < _needed(group, spec, followed=after is not None):
                continue
            outside = len(self._seen[whats[-1]]) - len(seen)
            if group.scope in ("job", "pool") or is_set_apart(
                len(seen), outside, group.size / groups[-1].size, CHANCE
            ):
                return CorrelatedFaults(each, tuple(sorted(seen)), min(seen.values()), at, after)
        return None

    def open(self, wave: CorrelatedFaults) -> None:
        """Count what follows to this incident, and do not publish it again."""
        what, nodes = wave.what, set(wave.nodes)
        self._open[what] = _Open(wave.first, wave.last, nodes)
        for other in list(self._seen):
            if (other.pool, other.kind, other.code) == (what.pool, what.kind, what.code):
                # They are this wave's, and no part of a wider one.
                left = {n: at for n, at in self._seen[other].items() if n not in nodes}
                if left and other != what:
                    self._seen[other] = left
                else:
                    del self._seen[other]

    def over(self, now: float, quiet_seconds: float) -> list[CorrelatedFaults]:
        """End the waves to which no node was added for so long."""
        ended = [
            CorrelatedFaults(what, tuple(sorted(each.nodes)), each.first, each.last)
            for what, each in self._open.items()
            if now - each.last > quiet_seconds
        ]
        for wave in ended:
            del self._open[wave.what]
        return ended

    def _opened(self, what: SharedFault) -> _Open | None:
        found = self._open.get(what)
        if found is not None or what.scope != "job" or not _of_program(what):
            return found
        # A job that dies leaves 13 on one node, 43 on others and 45 on the rest: one incident.
        for other, opened in self._open.items():
            same = (other.pool, other.scope, other.within) == (what.pool, what.scope, what.within)
            if same and _of_program(other):
                return opened
        return None

    def _note(self, what: SharedFault, node: str, at: float, spec: IncidentSpec) -> None:
        seen = self._seen.pop(what, {})
        seen = {name: since for name, since in seen.items() if since > at - spec.window}
        seen[node] = at
        self._seen[what] = seen
        if len(self._seen) > KINDS_MAX:
            del self._seen[next(iter(self._seen))]

    def _before(
        self, what: SharedFault, first: float, at: float, spec: IncidentSpec
    ) -> Crash | None:
        """The crash that came before, in the same job where the nodes share one.

        What programs bring about may follow from it; memory that fails elsewhere does not.
        """
        if not _of_program(what):
            return None
        crash = self._crashes.get((what.pool, what.within if what.scope == "job" else ""))
        if crash is None or not first - spec.window <= crash.at <= at:
            return None
        return None if (crash.kind, crash.code) == (what.kind, what.code) else crash


def _of_program(what: SharedFault) -> bool:
    return what.kind == "xid" and what.code in PROGRAM_CODES


def _needed(group: Group, spec: IncidentSpec, *, followed: bool) -> int:
    """How many nodes of a group make one incident."""
    if group.scope == "job":
        return min(spec.nodes, JOB_NODES - 1 if followed else JOB_NODES)
    return nodes_needed(spec, group.size)


def reason(wave: CorrelatedFaults) -> str:
    """Return a sentence that says what happened."""
    what = in_words(called(wave.what.kind, wave.what.code))
    where = f" of {shared(wave.what)}" if wave.what.within else ""
    said = f"{len(wave.nodes)} nodes{where} with {what} at once; none of them is unhealthy for it"
    if wave.after is None:
        return said
    crash = wave.after
    before = in_words(called(crash.kind, crash.code))
    return f"{said}; it came after {before} on {crash.node}"


def shared(what: SharedFault) -> str:
    """Return in words what the nodes share."""
    return f"{what.scope} {what.within}".strip()


class Launch(msgspec.Struct, frozen=True, gc=False):
    """Holds the provider from a node's launch; the decoder skips the rest."""

    provider: str = ""


class NodePlacement(msgspec.Struct, frozen=True, gc=False):
    """Holds where a node is placed, from the node's record; the decoder skips the rest."""

    node: str
    state: str = ""
    rack: str = ""
    zone: str = ""
    launch: Launch | None = None

    def part(self, scope: IncidentScope) -> str:
        """Return the rack, zone or provider of the node."""
        if scope == "provider":
            return self.launch.provider if self.launch is not None else ""
        return self.rack if scope == "rack" else self.zone


@dataclass(frozen=True, slots=True)
class PoolPlacement:
    """A pool's nodes, and how many are in each rack, zone and provider."""

    size: int = 0
    _places: Mapping[str, NodePlacement] = field(default_factory=dict)
    _sizes: Mapping[tuple[IncidentScope, str], int] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[NodePlacement]) -> "PoolPlacement":
        """Count the nodes that are there."""
        places = {each.node: each for each in nodes if each.state != "terminated"}
        sizes = Counter((scope, each.part(scope)) for each in places.values() for scope in WIDE)
        return cls(len(places), places, sizes)

    def groups(self, node: str, job: str) -> list[Group]:
        """Return the groups that a node shares with others, the narrow before the wide.

        A zone or a provider that has the whole pool is the pool.
        """
        groups = [Group("job", job, 0)] if job else []
        place = self._places.get(node)
        for scope in WIDE:
            within = place.part(scope) if place is not None else ""
            size = self._sizes.get((scope, within), 0)
            if within and (scope == "rack" or size < self.size):
                groups.append(Group(scope, within, size))
        return [*groups, Group("pool", "", self.size)]
