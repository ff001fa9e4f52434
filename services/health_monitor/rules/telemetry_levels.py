"""Levels in telemetry: when a reading stays beyond a bound, and when it is back. Pure.

Applied before the policy: a level that lasts becomes one fault, which the policy then judges like
any other; a second one reports its end. Between them lies a spell. Nearly every sample is of a
GPU whose readings are all in order, and must cost no more than being compared.
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from schemas.enums import FaultKind
from schemas.held_conditions import ConditionList
from schemas.value_limits import Float, Int, Name

Reading = Literal[
    "utilization_percent",
    "memory_used_bytes",
    "power_watts",
    "temperature_celsius",
    "memory_temperature_celsius",
    "temperature_margin_celsius",
    "sm_clock_mhz",
    "throttle_reasons",
    "nvlinks_up",
    "pcie_width",
]
"""What of a GPU's sample can be a level."""

GAP_SECONDS_MAX: Final = 300.0
"""A spell without a sample for so long is over: nothing is known of it any more."""
AGAIN_SECONDS: Final = 60.0
"""How often a lasting spell is compared with the node's record, which may have been reset."""


class GpuLevels(msgspec.Struct, frozen=True, gc=False):
    """Holds what can be a level in a GPU's sample; the decoder skips the rest."""

    index: Int
    uuid: Name = ""
    utilization_percent: Int | None = None
    memory_used_bytes: Int | None = None
    power_watts: Float | None = None
    temperature_celsius: Int | None = None
    memory_temperature_celsius: Int | None = None
    temperature_margin_celsius: Int | None = None
    sm_clock_mhz: Int | None = None
    throttle_reasons: Int | None = None
    nvlinks_up: Int | None = None
    pcie_width: Int | None = None


class NodeLevels(msgspec.Struct, frozen=True, gc=False):
    """Holds the GPUs of a node's sample and its agent's conditions; the decoder skips the rest."""

    gpus: tuple[GpuLevels, ...] = ()
    conditions: ConditionList | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A level is one line of a policy's `levels`."""

    name: str
    description: str
    reading: Reading
    above: float | None = None
    below: float | None = None
    bits: int | None = None
    until: float = 0.0
    """Where it is over; between here and the bound nothing changes."""
    for_seconds: float
    kind: FaultKind

    def begins(self) -> Callable[[Any], bool]:
        """Return a predicate that says whether a value is beyond the bound."""
        return _comparison(self.above, self.below, self.bits)

    def goes_on(self) -> Callable[[Any], bool]:
        """Return a predicate that says whether a value keeps a spell going."""
        if self.above is not None:
            return _comparison(self.until, None, None)
        return _comparison(None, None if self.below is None else self.until, self.bits)

    def bound(self) -> str:
        """Return the bound in words."""
        if self.above is not None:
            return f"above {self.above:g}"
        if self.below is not None:
            return f"below {self.below:g}"
        return f"has a bit of {self.bits or 0:#x}"


def _comparison(above: float | None, below: float | None, bits: int | None) -> Callable[[Any], Any]:
    if above is not None:
        return float(above).__lt__
    if below is not None:
        return float(below).__gt__
    return (bits or 0).__and__


@dataclass(frozen=True, slots=True)
class Crossing:
    """A level that has lasted, or that is over."""

    level: Level
    gpu_index: int
    gpu_uuid: str
    since: float
    """Epoch seconds of the first sample beyond the bound."""
    at: float
    value: float
    temperature: int | None
    over: bool

    @property
    def key(self) -> str:
        """Return the name that a spell has among those of its node: its level and GPU."""
        return f"{self.level.name}/{self.gpu_index}"


@dataclass(slots=True)
class _Spell:
    since: float
    last: float
    reported_at: float | None = None
    """None: it has not lasted long enough yet."""
    uuid: str = ""
    value: float = 0.0


@dataclass(slots=True)
class _Compared:
    """A level, ready for the loop."""

    level: Level
    read: Callable[[GpuLevels], Any]
    begins: Callable[[Any], Any]
    goes_on: Callable[[Any], Any]


@dataclass(slots=True)
class Spells:
    """Every spell of every node; what is in order leaves no trace here."""

    levels: tuple[Level, ...]
    _compared: tuple[_Compared, ...] = field(init=False)
    _nodes: dict[str, dict[tuple[str, int], _Spell]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the comparisons once."""
        self._compared = tuple(
            _Compared(each, operator.attrgetter(each.reading), each.begins(), each.goes_on())
            for each in self.levels
        )

    def adopt(self, node: str, name: str, gpu_index: int, since: float, now: float) -> bool:
        """Take over a spell of a node's record; False where no level has the name."""
        if all(level.name != name for level in self.levels):
            return False
        spells = self._nodes.setdefault(node, {})
        spells[name, gpu_index] = _Spell(since=since, last=now, reported_at=now)
        return True

    def take(self, node: str, at: float, gpus: Iterable[GpuLevels]) -> list[Crossing]:
        """Take one sample; return what has lasted long enough with it, and what is over."""
        spells = self._nodes.get(node)
        found: list[Crossing] = []
        for each in self._compared:
            read, begins = each.read, each.begins
            for gpu in gpus:
                value = read(gpu)
                if value is None:
                    continue
                if spells is None:
                    if begins(value):
                        spells = self._nodes[node] = {}
                    else:
                        continue
                if (crossing := _step(spells, each, gpu, value, at)) is not None:
                    found.append(crossing)
        if spells is not None and not spells:
            del self._nodes[node]
        return found

    def unheard(self, now: float) -> Iterator[tuple[str, Crossing]]:
        """End the spells of which nothing was heard any more; return those that were reported."""
        for node, spells in list(self._nodes.items()):
            for (name, gpu_index), spell in list(spells.items()):
                if now - spell.last <= GAP_SECONDS_MAX:
                    continue
                del spells[name, gpu_index]
                if spell.reported_at is not None:
                    level = next(each for each in self.levels if each.name == name)
                    crossing = Crossing(
                        *(level, gpu_index, spell.uuid, spell.since, now, spell.value),
                        temperature=None,
                        over=True,
                    )
                    yield node, crossing
            if not spells:
                del self._nodes[node]


def _step(
    spells: dict[tuple[str, int], _Spell], each: _Compared, gpu: GpuLevels, value: Any, at: float
) -> Crossing | None:
    """Bring one GPU's spell of one level on."""
    key = (each.level.name, gpu.index)
    spell = spells.get(key)
    if spell is not None and spell.reported_at is None and at - spell.last > GAP_SECONDS_MAX:
        # Nothing is known of the time between, so it cannot have lasted.
        del spells[key]
        spell = None
    if spell is None:
        if not each.begins(value):
            return None
        spell = spells[key] = _Spell(since=at, last=at)
    spell.last = max(spell.last, at)
    spell.uuid, spell.value = gpu.uuid, value
    if not each.goes_on(value):
        del spells[key]
        return (
            _crossing(each.level, gpu, spell, at, over=True)
            if spell.reported_at is not None
            else None
        )
    lasted = at - spell.since >= each.level.for_seconds
    if lasted and (spell.reported_at is None or at - spell.reported_at >= AGAIN_SECONDS):
        spell.reported_at = at
        return _crossing(each.level, gpu, spell, at, over=False)
    return None


def _crossing(level: Level, gpu: GpuLevels, spell: _Spell, at: float, *, over: bool) -> Crossing:
    return Crossing(
        *(level, gpu.index, gpu.uuid, spell.since, at, spell.value),
        temperature=gpu.temperature_celsius,
        over=over,
    )


def without_level(name: str, gpu_index: int, since: float, now: float) -> Crossing:
    """The end of a spell whose level the policy has no more."""
    level = Level(
        name=name,
        description="",
        reading="temperature_celsius",
        for_seconds=0.0,
        kind="thermal",
    )
    return Crossing(level, gpu_index, "", since, now, 0.0, temperature=None, over=True)
