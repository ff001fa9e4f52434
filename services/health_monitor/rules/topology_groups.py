"""Where each node of a pool is placed: which groups may share its faults. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from schemas.enums import IncidentScope
from services.health_monitor.rules.correlated_faults import Group

WIDE: Final[tuple[IncidentScope, ...]] = ("rack", "zone", "provider")
"""Narrow before wide; a job comes before them, the pool after."""


class Launch(msgspec.Struct, frozen=True, gc=False):
    """Of what a node was launched with, the provider; the decoder skips the rest."""

    provider: str = ""


class NodePlacement(msgspec.Struct, frozen=True, gc=False):
    """Of a node's record, where it is placed; the decoder skips the rest."""

    node: str
    state: str = ""
    rack: str = ""
    zone: str = ""
    launch: Launch | None = None

    def part(self, scope: IncidentScope) -> str:
        """The rack, zone or provider."""
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
        """What a node shares with others, the narrow before the wide.

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
