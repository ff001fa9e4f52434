"""The nodes of a stress run's report, and the same by region and zone. Pure."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from services.simulator.inputs.stress.failure_schedule import ScheduledFailure
from services.simulator.inputs.stress.stress_fleet import GeneratedFleet, Slot
from services.simulator.report.report_format import (
    NodeStory,
    PlaceNodes,
    RegionStory,
    TimelineMoment,
    TimelinePoint,
)

CHANGES_MAX: Final = 200
"""Changes of state kept for one node."""
MOMENTS_MAX: Final = 30
"""Other moments kept for one node; further ones are counted."""
TEXT_CHARS_MAX: Final = 200
GONE: Final = "gone"
"""State of a terminated node."""
NODES_LISTED_MAX: Final = 2_000
REGIONS_DRAWN_MAX: Final = 12
"""Regions with a timeline."""
STATES: Final = ("healthy", "degraded", "starting", "out")


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
        """Return the node's state at the end."""
        return self.states[-1][1] if self.states else ""


class NodeLives:
    """Follows every node of a run."""

    def __init__(self) -> None:
        self.all: dict[str, NodeLife] = {}

    def change(self, at: float, node: str, pool: str, state: str) -> None:
        """Record that a node has another state; empty: it is gone."""
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


def nodes(lives: NodeLives, places: Mapping[str, Slot]) -> list[NodeStory]:
    """The nodes to which most happened, then the others by name."""
    ranked = sorted(lives.all.values(), key=lambda each: (-each.failures, -each.repairs, each.node))
    return [_story(each, places.get(each.node)) for each in ranked[:NODES_LISTED_MAX]]


def _story(life: NodeLife, slot: Slot | None) -> NodeStory:
    return NodeStory(
        node=life.node,
        pool=life.pool,
        provider=slot.provider if slot else "",
        region=slot.region if slot else "",
        zone=slot.zone if slot else "",
        rack=slot.rack if slot else "",
        state=life.state,
        failures=life.failures,
        repairs=life.repairs,
        states=[(round(at, 3), state) for at, state in life.states],
        moments=[TimelineMoment(at=round(at, 3), text=text) for at, text in life.moments],
        moments_left_out=life.left_out,
    )


def regions(
    fleet: GeneratedFleet,
    lives: NodeLives,
    places: Mapping[str, Slot],
    samples: Sequence[TimelinePoint],
    up_at: float,
) -> list[RegionStory]:
    """Return every region with its zones; the largest first."""
    there: dict[tuple[str, str], list[NodeLife]] = {}
    for life in lives.all.values():
        if slot := places.get(life.node):
            there.setdefault(("region", slot.region), []).append(life)
            there.setdefault(("zone", slot.zone), []).append(life)
    moments = [each.at for each in samples]
    zones = sorted({(each.region, each.zone) for each in fleet.slots})
    sizes = Counter(each.region for each in fleet.slots)
    found: list[RegionStory] = []
    for region, size in sorted(sizes.items(), key=lambda each: (-each[1], each[0])):
        mine = there.get(("region", region), ())
        series = timeline(mine, moments)
        found.append(
            RegionStory(
                whole=_place(region, size, mine, series, moments, up_at),
                zones=[
                    _place(
                        zone,
                        len(fleet.groups["zone", zone]),
                        lived := there.get(("zone", zone), ()),
                        timeline(lived, moments),
                        moments,
                        up_at,
                    )
                    for of, zone in zones
                    if of == region
                ],
                timeline=series if len(found) < REGIONS_DRAWN_MAX else {},
            )
        )
    return found


def timeline(lived: Iterable[NodeLife], moments: Sequence[float]) -> dict[str, list[int]]:
    """State -> how many of these nodes were in it at each moment."""
    steps = {state: [0] * (len(moments) + 1) for state in STATES}
    for life in lived:
        before = ""
        for at, state in life.states:
            place = bisect_left(moments, at)
            if before in steps:
                steps[before][place] -= 1
            if state in steps:
                steps[state][place] += 1
            before = state
    return {state: list(accumulate(each[:-1])) for state, each in steps.items()}


def _place(
    name: str,
    size: int,
    lived: Sequence[NodeLife],
    series: Mapping[str, Sequence[int]],
    moments: Sequence[float],
    up_at: float,
) -> PlaceNodes:
    serving = [
        healthy + degraded
        for at, healthy, degraded in zip(
            moments, series["healthy"], series["degraded"], strict=True
        )
        if at >= up_at
    ]
    return PlaceNodes(
        name=name,
        places=size,
        serving_least=min(serving, default=0),
        failures=sum(each.failures for each in lived),
        repairs=sum(each.repairs for each in lived),
        **{state: each[-1] if each else 0 for state, each in series.items()},
    )
