"""Every failure of a stress run, drawn from its seed, with the failures it causes. Pure.

The schedule is a list of values, drawn before the run starts; nothing that the services do changes
it. A failure names a slot: it hits the machine that is there at that moment.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Literal

from services.primitives.errors import ConfigurationError
from services.simulator.inputs.stress.stress_fleet import GeneratedFleet, Slot
from services.simulator.inputs.stress.stress_format import (
    OLDER_WORDS,
    PERCENT,
    ChaosSpec,
    CorrelationSpec,
    FailureType,
    OutageSpec,
    StressSpec,
    affected_share,
)

CASCADE_WIDTH_MAX: Final = 3
"""Most failures that one failure causes directly."""
DEFAULT_XID: Final = 79
FAILURES_MAX: Final = 1_000_000

Cause = Literal["chance", "cascade", "correlated", "outage"]
Fatal = Callable[[FailureType, int], bool]
"""Whether a failure of this type and XID is fatal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledFailure:
    """Describes one failure of one slot's machine."""

    number: int
    """Counted from 1, in the order of drawing."""
    at: float
    slot: int
    type: FailureType
    xid: int = 0
    fatal: bool = False
    lasting: bool = False
    """Only a remedy ends it."""
    momentary: bool = False
    """The hardware is in order once it is reported."""
    recovers_after: float | None = None
    """Seconds until it passes by itself; None: never."""
    cause: Cause = "chance"
    of: str = ""
    """The outage's or the correlation's name."""
    parent: int = 0
    """The failure that caused it; 0: none."""
    root: int = 0
    """The first failure of its chain; its own number if it is the first."""
    depth: int = 0
    """Links from the start of the chain."""


def draw(
    spec: StressSpec, fleet: GeneratedFleet, seed: str, fatal: Fatal, begins: float = 0.0
) -> tuple[ScheduledFailure, ...]:
    """Draw the whole schedule, in order of time; `begins`: when its clock begins to count."""
    if not spec.chaos.enabled:
        return ()
    drawing = _Drawing(spec, fleet, seed, fatal, begins)
    found = (replace(each, at=each.at + begins) for each in drawing.all())
    return tuple(sorted(found, key=lambda each: (each.at, each.number)))


class _Drawing:
    """One schedule as it is drawn; each use of randomness has its own source."""

    def __init__(
        self, spec: StressSpec, fleet: GeneratedFleet, seed: str, fatal: Fatal, begins: float
    ) -> None:
        self._chaos: ChaosSpec = spec.chaos
        self._begins = begins
        self._seconds = float(spec.duration)
        self._fleet = fleet
        self._seed = seed
        self._fatal = fatal
        types: dict[str, float] = {
            OLDER_WORDS.get(e.type, e.type): e.weight for e in spec.chaos.failure_types
        }
        self._types = types or {"xid_error": 1.0}
        self._xids = spec.chaos.xid_distribution or {str(DEFAULT_XID): 1.0}
        self._number = 0

    def all(self) -> Iterator[ScheduledFailure]:
        for root in (*self._draw_independent(), *self._outages()):
            yield root
            yield from self._chain(root)

    def _chance(self, what: str) -> Random:
        return Random(f"{self._seed}/{what}")  # noqa: S311 - repeatable is the point

    def _draw_independent(self) -> Iterator[ScheduledFailure]:
        """Independent failures, at the rate of the file."""
        chance = self._chance("failures")
        slots = self._fleet.slots
        per_second = self._chaos.failure_rate * len(slots) / 1_000 / 60
        at = 0.0
        while per_second:
            at += chance.expovariate(per_second)
            if at >= self._seconds:
                return
            slot = chance.choice(slots)
            kind = _draw_weighted(self._types, chance)
            # Drawn for all slots, so that the rate applies to nodes that are up.
            if slot.up_at <= at + self._begins:
                yield self._make(at, slot.number, kind, chance)

    def _outages(self) -> Iterator[ScheduledFailure]:
        for place, outage in enumerate(self._chaos.scheduled_outages):
            chance = self._chance(f"outages/{place}")
            kind = OLDER_WORDS.get(outage.failure_type, outage.failure_type)
            for slot in self._outage_slots(outage, chance):
                yield self._make(
                    float(outage.start_time),
                    slot,
                    kind,
                    chance,
                    cause="outage",
                    of=outage.name,
                    lasts=float(outage.duration),
                    xid=outage.xid,
                )

    def _outage_slots(self, outage: OutageSpec, chance: Random) -> Sequence[int]:
        if outage.scope != "percentage":
            return self._fleet.groups.get((outage.scope, outage.target), ())
        every = self._fleet.groups["random", ""]
        share = float(outage.target.removesuffix("%")) / PERCENT
        return sorted(chance.sample(every, round(len(every) * share)))

    def _make(
        self,
        at: float,
        slot: int,
        kind: str,
        chance: Random,
        *,
        cause: Cause = "chance",
        of: str = "",
        parent: ScheduledFailure | None = None,
        lasts: float | None = None,
        xid: int = 0,
    ) -> ScheduledFailure:
        self._number += 1
        if self._number > FAILURES_MAX:
            raise ConfigurationError(
                f"more than {FAILURES_MAX:,} failures with all that follows from them; lower "
                "failure_rate, or cascading.probability",
                key="stress.chaos",
            )
        type_: FailureType = kind  # type: ignore[assignment]
        if type_ != "xid_error":
            xid = 0
        elif not xid:
            xid = int(_draw_weighted(self._xids, chance))
        fatal = self._fatal(type_, xid)
        momentary = type_ == "xid_error" and not self._chaos.lasting
        lasting = fatal and self._chaos.lasting
        if lasting or (momentary and fatal):
            passes = None
        else:
            passes = self._passes(chance) if lasts is None else lasts
        return ScheduledFailure(
            number=self._number,
            at=at,
            slot=slot,
            type=type_,
            xid=xid,
            fatal=fatal,
            lasting=lasting,
            momentary=momentary,
            recovers_after=passes,
            cause=cause,
            of=of,
            parent=parent.number if parent else 0,
            root=parent.root if parent else self._number,
            depth=parent.depth + 1 if parent else 0,
        )

    def _passes(self, chance: Random) -> float | None:
        recovery = self._chaos.recovery
        if not recovery.enabled or chance.random() >= recovery.probability:
            return None
        return max(chance.gauss(recovery.mean_time, recovery.std_dev), float(recovery.min_time))

    # --- chains -----------------------------------------------------------------------------------

    def _chain(self, root: ScheduledFailure) -> Iterator[ScheduledFailure]:
        """Every failure that one failure causes, directly or indirectly."""
        chance = self._chance(f"chain/{root.number}")
        struck = {root.slot}
        left = self._most(root)
        waiting = deque([(root, frozenset[str]())])
        while waiting:
            failure, names = waiting.popleft()
            for follower in self._draw_cascade(failure, struck, left, chance):
                left -= 1
                waiting.append((follower, names))
                yield follower
            for name, follower in self._draw_correlated(failure, names, chance):
                waiting.append((follower, names | {name}))
                yield follower

    def _most(self, root: ScheduledFailure) -> int:
        """How many nodes a chain may affect beyond the first."""
        cascading = self._chaos.cascading
        slot = self._fleet.slots[root.slot]
        return int(len(self._near(slot, cascading.scope)) * affected_share(cascading))

    def _near(self, slot: Slot, scope: str) -> Sequence[int]:
        name = "" if scope == "random" else getattr(slot, scope)
        return self._fleet.groups[scope, name]

    def _draw_cascade(
        self, failure: ScheduledFailure, struck: set[int], left: int, chance: Random
    ) -> Iterator[ScheduledFailure]:
        cascading = self._chaos.cascading
        if not cascading.enabled or failure.depth >= cascading.max_depth or left <= 0:
            return
        if chance.random() >= cascading.probability:
            return
        near = self._near(self._fleet.slots[failure.slot], cascading.scope)
        width = chance.randint(1, min(CASCADE_WIDTH_MAX, left))
        for slot in chance.sample(near, min(width, len(near))):
            at = failure.at + chance.uniform(cascading.min_delay, cascading.max_delay)
            if slot in struck or at >= self._seconds:
                continue
            struck.add(slot)
            kind = _draw_weighted(self._types, chance)
            yield self._make(at, slot, kind, chance, cause="cascade", parent=failure)

    def _draw_correlated(
        self, failure: ScheduledFailure, names: frozenset[str], chance: Random
    ) -> Iterator[tuple[str, ScheduledFailure]]:
        for each in self._chaos.correlated_failures:
            # Once per chain: otherwise two that trigger each other never end.
            if each.name in names or not _triggers(each, failure):
                continue
            at = failure.at + each.delay
            if chance.random() >= each.probability or at >= self._seconds:
                continue
            slot = self._correlated_slot(failure, each, chance)
            if slot is None:
                continue
            kind = OLDER_WORDS.get(each.response, each.response)
            made = self._make(
                at, slot, kind, chance, cause="correlated", of=each.name, parent=failure
            )
            yield each.name, made

    def _correlated_slot(
        self, failure: ScheduledFailure, each: CorrelationSpec, chance: Random
    ) -> int | None:
        if each.scope == "same_node":
            return failure.slot
        near = self._near(self._fleet.slots[failure.slot], each.scope.removeprefix("same_"))
        others = [slot for slot in near if slot != failure.slot]
        return chance.choice(others) if others else None


def _draw_weighted(weights: Mapping[str, float], chance: Random) -> str:
    return chance.choices(list(weights), list(weights.values()))[0]


def _triggers(each: CorrelationSpec, failure: ScheduledFailure) -> bool:
    if each.trigger.isdigit():
        return failure.xid == int(each.trigger)
    return OLDER_WORDS.get(each.trigger, each.trigger) == failure.type
