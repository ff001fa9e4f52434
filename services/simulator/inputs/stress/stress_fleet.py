"""The fleet of a stress run: which nodes exist where, and when each is wanted. Pure.

A slot is a place for one machine. Its pool, provider, zone and rack stay the same when the machine
is replaced. Weights are met to the node; the seed decides which slot gets what.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Final

from services.simulator.inputs.stress.stress_format import (
    BATCH_SIZE,
    STARTUP_SECONDS,
    FleetSpec,
    RecoverySpec,
    StartupSpec,
    TemplateSpec,
    zones_of,
)

COLD_START_SECONDS: Final = (3.0, 15.0)
"""How long a machine boots, unless the file says otherwise."""
STEP_SECONDS: Final = 1.0
"""Nodes wanted within one step are requested together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Describes a place for one machine."""

    number: int
    template: str
    pool: str
    provider: str
    region: str
    zone: str
    rack: str
    wanted_at: float
    cold_start_seconds: float

    @property
    def up_at(self) -> float:
        """Return when the slot's first machine can be up."""
        return self.wanted_at + self.cold_start_seconds


@dataclass(frozen=True, slots=True)
class PoolSizeStep:
    """Sets the size of a pool from a moment on."""

    at: float
    pool: str
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedFleet:
    """Every slot, and the pools they make up."""

    slots: tuple[Slot, ...]
    pools: Mapping[str, TemplateSpec]
    """Pool -> the template of its nodes."""
    groups: Mapping[tuple[str, str], tuple[int, ...]]
    """Scope and name (`zone`, `us-central1-a`) -> the slots there, in order."""
    wanted: tuple[PoolSizeStep, ...]

    def of_pool(self, pool: str) -> tuple[int, ...]:
        """A pool's slots, in the order in which they are wanted."""
        return self.groups.get(("pool", pool), ())


def generate(spec: FleetSpec, seed: str) -> GeneratedFleet:
    """Make the fleet; the same seed makes the same fleet."""
    templates = {each.name: each for each in spec.templates}
    names = _shuffled_names(
        {each.name: each.weight for each in spec.templates}, spec, f"{seed}/templates"
    )
    providers = _shuffled_names(spec.providers, spec, f"{seed}/providers")
    regions = _shuffled_names(spec.regions, spec, f"{seed}/regions")
    moments = _moments(spec.startup, spec.total_nodes, Random(f"{seed}/startup"))  # noqa: S311
    chance = Random(f"{seed}/cold-starts")  # noqa: S311 - repeatable is the point
    filled: dict[str, int] = {}
    slots: list[Slot] = []
    for number, (name, provider, region) in enumerate(zip(names, providers, regions, strict=True)):
        zones = zones_of(spec, region)
        within = filled[region] = filled.get(region, -1) + 1
        zone = zones[within % len(zones)]
        row = f"{provider}-{zone}"
        place = filled[row] = filled.get(row, -1) + 1
        slots.append(
            Slot(
                number=number,
                template=name,
                pool=f"{name}-{provider}",
                provider=provider,
                region=region,
                zone=zone,
                rack=f"{row}-r{place // spec.nodes_per_rack + 1}",
                wanted_at=moments[number],
                cold_start_seconds=cold_start(spec.startup, chance),
            )
        )
    pools = {each.pool: templates[each.template] for each in sorted(slots, key=lambda s: s.pool)}
    return GeneratedFleet(
        slots=tuple(slots), pools=pools, groups=_groups(slots), wanted=tuple(_size_steps(slots))
    )


def cold_start(startup: StartupSpec, chance: Random) -> float:
    """Draw how long a machine boots."""
    low, high = startup.cold_start_min, startup.cold_start_max
    if startup.cold_start_mean is not None:
        drawn = chance.gauss(startup.cold_start_mean, startup.cold_start_stddev)
        return min(max(drawn, low or 0.0), high if high is not None else float("inf"))
    if low is not None and high is not None:
        return chance.uniform(low, high)
    return chance.uniform(*COLD_START_SECONDS)


def cold_start_max(startup: StartupSpec, recovery: RecoverySpec) -> float:
    """The longest likely cold start, which a launch must allow for."""
    known = [COLD_START_SECONDS[1], float(recovery.replace_cold_start or 0.0)]
    known.append(float(startup.cold_start_max or 0.0))
    if startup.cold_start_mean is not None and startup.cold_start_max is None:
        known.append(float(startup.cold_start_mean + 5 * startup.cold_start_stddev))
    return max(known)


def apportion(weights: Mapping[str, float], count: int) -> dict[str, int]:
    """Divide `count` by weight into whole numbers that sum to `count`."""
    total = sum(weights.values())
    exact = {name: count * weight / total for name, weight in weights.items()}
    shares = {name: int(each) for name, each in exact.items()}
    left = count - sum(shares.values())
    for name in sorted(exact, key=lambda each: (shares[each] - exact[each], each))[:left]:
        shares[name] += 1
    return shares


def _shuffled_names(weights: Mapping[str, float], spec: FleetSpec, seed: str) -> list[str]:
    found = [
        name for name, count in apportion(weights, spec.total_nodes).items() for _ in range(count)
    ]
    Random(seed).shuffle(found)  # noqa: S311 - repeatable is the point
    return found


def _moments(startup: StartupSpec, count: int, chance: Random) -> list[float]:
    """When each node is wanted, in order of its number."""
    sizes = _batches(startup, count)
    given = startup.duration
    seconds = STARTUP_SECONDS[startup.pattern] if given is None else float(given)
    gap = seconds / len(sizes)
    jitter = gap * startup.jitter_percent / 100
    moments: list[float] = []
    for number, size in enumerate(sizes):
        for _ in range(size):
            at = number * gap + (chance.uniform(-jitter, jitter) if jitter else 0.0)
            moments.append(min(max(at, 0.0), seconds))
    return moments


def _batches(startup: StartupSpec, count: int) -> Sequence[int]:
    match startup.pattern:
        case "linear":
            return [1] * count
        case "wave":
            size = startup.batch_size or BATCH_SIZE
            return [min(size, count - begun) for begun in range(0, count, size)]
        case "exponential":
            ends = [
                min(each, count) for each in accumulate(2**n for n in range(count.bit_length()))
            ]
            return [
                end - begun for begun, end in zip([0, *ends], ends, strict=False) if end > begun
            ]
        case "instant":
            return [count]


def _groups(slots: Sequence[Slot]) -> dict[tuple[str, str], tuple[int, ...]]:
    found: dict[tuple[str, str], list[int]] = {}
    for each in slots:
        places = (
            ("pool", each.pool),
            ("rack", each.rack),
            ("zone", each.zone),
            ("region", each.region),
            ("provider", each.provider),
            ("random", ""),
        )
        for place in places:
            found.setdefault(place, []).append(each.number)
    return {place: tuple(numbers) for place, numbers in found.items()}


def _size_steps(slots: Sequence[Slot]) -> list[PoolSizeStep]:
    """The size of each pool over time."""
    steps: dict[tuple[float, str], int] = {}
    for each in slots:
        at = each.wanted_at // STEP_SECONDS * STEP_SECONDS
        steps[at, each.pool] = steps.get((at, each.pool), 0) + 1
    found: list[PoolSizeStep] = []
    sizes: dict[str, int] = {}
    for (at, pool), count in sorted(steps.items()):
        sizes[pool] = sizes.get(pool, 0) + count
        found.append(PoolSizeStep(at, pool, sizes[pool]))
    return found
