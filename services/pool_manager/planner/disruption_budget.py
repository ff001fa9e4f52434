"""Counts how many nodes may be out of service at once, and how many be taken out in a time. Pure.

The level is a count of nodes; the rate a count of sagas begun within a sliding window. Resets and
reboots, which leave a node in its place, have a rate of their own, so that a node that climbs the
ladder does not spend the replacements of others. What was begun is kept in slots of a sixtieth of
the window, so that a record stays small and a restart forgets nothing; a slot counts until the last
moment of it has left the window.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal, get_args

import msgspec

from schemas.enums import BreakerCause
from schemas.fault_signature import RACK, RENEWALS
from schemas.fleet_budget import BudgetClaim, FleetBudgetRecord
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import UNLIMITED, BudgetSpec, FleetBudgetSpec
from services.pool_manager.planner import rack_units
from services.pool_manager.planner.node_counts import Nodes, unavailable, units_out
from services.saga.definitions import DEFINITIONS

LEVEL_MIN: Final = 1
"""A percentage allows so many at least, or nothing is ever repaired."""
RATE_MIN: Final = 3
"""So that in pools of one to three nodes each can be repaired once."""
FLEET_LEVEL_MIN: Final = 5
FLEET_RATE_MIN: Final = 10
RESETS_EACH: Final = 3
"""Resets and reboots for each replacement that may be begun, where no setting says otherwise: as
many as the ladder tries on a node before it is replaced."""
SLOTS: Final = 60
SLOT_SECONDS_MIN: Final = 1
ALL: Final = "100%"
Rate = Literal["disruptions", "resets", "voluntary"]
"""What a saga counts as: the names of the slots in a pool's record."""


def limit(max_unavailable: int | str, desired: int, *, least: int = LEVEL_MIN) -> int:
    """Nodes that may be out of service of `desired`; of a percentage at least `least`."""
    if isinstance(max_unavailable, int):
        return max_unavailable
    return max(least, _share(max_unavailable, desired))


def rate(max_replacements: int | str, desired: int, *, least: int = RATE_MIN) -> int | None:
    """Sagas that may be begun within the window; None: any number."""
    if isinstance(max_replacements, int):
        return max_replacements
    if max_replacements == UNLIMITED:
        return None
    return max(least, _share(max_replacements, desired))


def reset_rate(
    max_resets: int | str | None,
    max_replacements: int | str,
    desired: int,
    *,
    least: int = RATE_MIN,
) -> int | None:
    """GPU resets and reboots that may be begun within the window; None: any number."""
    if max_resets is not None:
        return rate(max_resets, desired, least=least * RESETS_EACH)
    replacements = rate(max_replacements, desired, least=least)
    return None if replacements is None else replacements * RESETS_EACH


def voluntary_rate(
    spec: BudgetSpec | FleetBudgetSpec, desired: int, *, least: int = RATE_MIN
) -> int | None:
    """Return how many removals of nodes without a fault may be begun; None: any number."""
    if spec.max_voluntary is not None:
        return rate(spec.max_voluntary, desired, least=least)
    most = rate(spec.max_replacements, desired, least=least)
    return None if most is None else _half(most)


def _half(most: int) -> int:
    return math.ceil(most / 2)


def _share(percentage: str, of: int) -> int:
    return math.ceil(of * float(percentage.removesuffix("%")) / 100 - 1e-9)


def quarantine_cap(spec: BudgetSpec | FleetBudgetSpec) -> int | str:
    """Return how many nodes may be quarantined, a count or a share; ALL: this bounds none."""
    return ALL if spec.max_quarantined is None else spec.max_quarantined


def lifted(spec: FleetBudgetSpec) -> bool:
    """Return whether the fleet's budget cannot bind, so that nothing need be counted for it."""
    resets = spec.max_resets in (None, UNLIMITED) and spec.max_voluntary in (None, UNLIMITED)
    if quarantine_cap(spec) != ALL:
        return False
    return spec.max_unavailable == ALL and spec.max_replacements == UNLIMITED and resets


# --- slots ---------------------------------------------------------------------------------------


def slot_seconds(window: float) -> int:
    """Return how long a slot of a window is."""
    return max(SLOT_SECONDS_MIN, math.ceil(window / SLOTS))


def noted(begun: Mapping[str, int], window: float, now: datetime, count: int = 1) -> dict[str, int]:
    """The slots with more sagas begun now; those that have left the window are dropped."""
    width = slot_seconds(window)
    kept = {slot: each for slot, each in begun.items() if _counts(slot, window, now)}
    slot = str(math.floor(now.timestamp() / width) * width)
    return {**kept, slot: kept.get(slot, 0) + count}


def counted(begun: Mapping[str, int], window: float, now: datetime) -> int:
    """Return how many sagas were begun within the window."""
    return sum(count for slot, count in begun.items() if _counts(slot, window, now))


def room_at(begun: Mapping[str, int], window: float, now: datetime) -> datetime | None:
    """Return when the first slot leaves the window; None where none is in it."""
    slots = [int(slot) for slot in begun if _counts(slot, window, now)]
    if not slots:
        return None
    return datetime.fromtimestamp(min(slots) + slot_seconds(window) + window, UTC)


def _counts(slot: str, window: float, now: datetime) -> bool:
    return int(slot) + slot_seconds(window) + window > now.timestamp()


def for_no_fault(opened: OpenSaga) -> bool:
    """Return whether a saga is open for a notice or a renewal, and for no fault of its node."""
    noticed = opened.notice and opened.action == "none"
    return bool(noticed) or opened.fault_signature in RENEWALS


def rate_of(opened: OpenSaga) -> Rate:
    """Return in which rate a saga counts: each has its own slots in a pool's record."""
    if DEFINITIONS[opened.kind].in_place:
        return "resets"
    return "voluntary" if for_no_fault(opened) else "disruptions"


def with_begun(
    record: PoolRecord, fleet_window: float, now: datetime, rates: Sequence[Rate]
) -> PoolRecord:
    """Return the pool's record with more sagas begun; `fleet_window` 0: not counted there."""
    window = float(record.spec.budget.window)
    for name, count in Counter(rates).items():
        own, fleet = getattr(record, name), getattr(record, f"fleet_{name}")
        changed = {
            name: noted(own, window, now, count),
            f"fleet_{name}": noted(fleet, fleet_window, now, count) if fleet_window else {},
        }
        record = msgspec.structs.replace(record, **changed)
    return record


def with_counted(
    record: PoolRecord, fleet_window: float, now: datetime, begun: Mapping[str, OpenSaga]
) -> PoolRecord:
    """The pool's record whose rates count these sagas, which are open in it."""
    begun = _each_decision(begun)
    rates = [rate_of(each) for each in begun.values()]
    record = with_begun(record, fleet_window, now, rates)
    counted_sagas = {
        name: msgspec.structs.replace(record.open[name], counted=True) for name in begun
    }
    return msgspec.structs.replace(record, open={**record.open, **counted_sagas})


def _each_decision(begun: Mapping[str, OpenSaga]) -> dict[str, OpenSaga]:
    """Of the sagas that replace a rack as a whole, the first alone."""
    first: dict[str, str] = {}
    for name, each in begun.items():
        first.setdefault(each.rack if each.fault_signature == RACK else name, name)
    return {name: begun[name] for name in first.values()}


def without_counted(record: PoolRecord, ended: OpenSaga) -> PoolRecord:
    """The pool's record whose rates no longer count a saga that has disrupted nothing.

    Else an outage of the workload system would spend the rate, and hold repairs after its end.
    """
    if not ended.counted:
        return record
    name = rate_of(ended)
    slots = {each: _less(getattr(record, each), ended.since) for each in (name, f"fleet_{name}")}
    return msgspec.structs.replace(record, **slots)


def _less(begun: Mapping[str, int], at: datetime) -> dict[str, int]:
    """The slots with one saga fewer in that of `at`; unchanged where it has left the window."""
    slot = max((slot for slot in begun if int(slot) <= at.timestamp()), key=int, default="")
    less = {name: count - (name == slot) for name, count in begun.items()}
    return {name: count for name, count in less.items() if count}


def recounted(
    record: PoolRecord,
    fleet_window: float,
    now: datetime,
    began: Iterable[tuple[datetime, Rate]],
) -> PoolRecord:
    """The record of a pool that was rolled back, with no fewer sagas begun than their logs show."""
    lasts = {"": float(record.spec.budget.window), "fleet_": fleet_window}
    slots = {f"{of}{name}": window for of, window in lasts.items() for name in get_args(Rate)}
    found = msgspec.structs.replace(record, **{key: {} for key in slots})
    for at, name in sorted(began):
        found = with_begun(found, fleet_window, at, (name,))
    more = {
        name: getattr(found, name)
        for name, window in slots.items()
        if counted(getattr(found, name), window, now) > counted(getattr(record, name), window, now)
    }
    return msgspec.structs.replace(record, **more)


# --- the fleet -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """Holds what the other pools take of the fleet's budget, and what the fleet may."""

    spec: FleetBudgetSpec
    desired: int = 0
    unavailable: int = 0
    quarantined: int = 0
    claims: tuple[BudgetClaim, ...] = ()

    def level(self, desired: int) -> int:
        """Nodes of the fleet that may be out of service, where this pool wants `desired`."""
        return limit(self.spec.max_unavailable, self.desired + desired, least=FLEET_LEVEL_MIN)

    def quarantine_limit(self, desired: int) -> int:
        """Nodes of the fleet that may be quarantined, where this pool wants `desired`."""
        return limit(quarantine_cap(self.spec), self.desired + desired, least=FLEET_LEVEL_MIN)

    def rate(self, desired: int) -> int | None:
        """Sagas that may be begun in the fleet within its window."""
        return rate(self.spec.max_replacements, self.desired + desired, least=FLEET_RATE_MIN)

    def begun(self, now: datetime) -> int:
        """Sagas that the other pools began within the fleet's window."""
        return sum(counted(each.disruptions, float(self.spec.window), now) for each in self.claims)

    def voluntary(self, now: datetime) -> int:
        """Removals of nodes without a fault that the other pools began in the fleet's window."""
        return sum(counted(each.voluntary, float(self.spec.window), now) for each in self.claims)

    def reset_rate(self, desired: int) -> int | None:
        """GPU resets and reboots that may be begun in the fleet within its window."""
        wanted, spec = self.desired + desired, self.spec
        return reset_rate(spec.max_resets, spec.max_replacements, wanted, least=FLEET_RATE_MIN)

    def resets(self, now: datetime) -> int:
        """GPU resets and reboots that the other pools began within the fleet's window."""
        return sum(counted(each.resets, float(self.spec.window), now) for each in self.claims)


def others(spec: FleetBudgetSpec, fleet: FleetBudgetRecord, pool: str) -> Others | None:
    """Return what the pools beside `pool` claim; None where the fleet's budget cannot bind."""
    if lifted(spec):
        return None
    claims = tuple(claim for name, claim in fleet.claims.items() if name != pool)
    return Others(
        spec=spec,
        desired=sum(each.desired for each in claims),
        unavailable=sum(each.unavailable for each in claims),
        quarantined=sum(each.quarantined for each in claims),
        claims=claims,
    )


# --- one decision --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Holds what one decision may still begin."""

    unavailable: int
    level: int
    disruptions: int
    rate: int | None
    fleet_unavailable: int = 0
    fleet_level: int | None = None
    fleet_disruptions: int = 0
    fleet_rate: int | None = None
    resets: int = 0
    reset_rate: int | None = None
    fleet_resets: int = 0
    fleet_reset_rate: int | None = None
    overdue: int = 0
    """Of those out of service, how many wait for work that does not leave."""
    voluntary: int = 0
    """Removals of nodes without a fault that were begun within the window."""
    voluntary_rate: int | None = None
    fleet_voluntary: int = 0
    fleet_voluntary_rate: int | None = None
    voluntary_out: int = 0
    """Of those out of service, how many have no fault: no fault waits for them."""
    no_fault: bool = False
    """It is what may be begun with nodes that have none: `disruptions` are theirs."""

    def refusal(
        self, *, cordoned: bool, resets: bool = False, no_work: bool = False
    ) -> BreakerCause:
        """Return what forbids to act on one more node, in place or otherwise; empty: nothing.

        A node that is cordoned already counts as out of service; acting on it takes out no more.
        One that has no work to lose does not queue behind work that does not leave.
        """
        spared = self.voluntary_out + no_work * self.overdue
        if not cordoned and self.unavailable - spared >= self.level:
            return "level"
        if resets and self.reset_rate is not None and self.resets >= self.reset_rate:
            return "reset-rate"
        if not resets and self.rate is not None and self.disruptions >= self.rate:
            return "rate"
        level = None if cordoned else self.fleet_level
        if level is not None and self.fleet_unavailable - spared >= level:
            return "fleet-level"
        most = self.fleet_reset_rate if resets else self.fleet_rate
        if most is not None and (self.fleet_resets if resets else self.fleet_disruptions) >= most:
            return "fleet-reset-rate" if resets else "fleet-rate"
        return ""

    def for_no_fault(self) -> "Allowance":
        """Return what may be begun with nodes that have no fault, beside all that is out.

        They have half of each level, rounded up, and a rate of their own.
        """
        return replace(
            self,
            level=_half(self.level),
            fleet_level=None if self.fleet_level is None else _half(self.fleet_level),
            voluntary_out=0,
            overdue=0,
            disruptions=self.voluntary,
            rate=self.voluntary_rate,
            fleet_disruptions=self.fleet_voluntary,
            fleet_rate=self.fleet_voluntary_rate,
            no_fault=True,
        )

    def after(self, opened: OpenSaga, *, cordoned: bool) -> "Allowance":
        """Return what is left when a saga has begun."""
        if for_no_fault(opened):
            more = 0 if cordoned else 1
            left = self.took(cordoned=cordoned)
            return replace(
                left,
                disruptions=self.disruptions,
                fleet_disruptions=self.fleet_disruptions,
                voluntary=self.voluntary + 1,
                fleet_voluntary=self.fleet_voluntary + 1,
                voluntary_out=self.voluntary_out + more,
            )
        return self.took(cordoned=cordoned, resets=DEFINITIONS[opened.kind].in_place)

    def took(self, *, cordoned: bool, resets: bool = False) -> "Allowance":
        """Return what is left when one more has begun."""
        more = 0 if cordoned else 1
        return replace(
            self,
            unavailable=self.unavailable + more,
            fleet_unavailable=self.fleet_unavailable + more,
            disruptions=self.disruptions + (not resets),
            fleet_disruptions=self.fleet_disruptions + (not resets),
            resets=self.resets + resets,
            fleet_resets=self.fleet_resets + resets,
        )


def voluntary_out(record: PoolRecord, nodes: Nodes) -> int:
    """Return how many units are out of service for no fault of any of their nodes."""
    there = nodes.racks if rack_units.is_by_rack(record) else {}
    units: dict[bool, set[str]] = {True: set(), False: set()}
    for each in record.open.values():
        if DEFINITIONS[each.kind].out_of_service:
            units[for_no_fault(each)].add(rack_units.unit_of_saga(record, each, there))
    found = units[True] - units[False]
    return len(found & units_out(record, nodes)) if found else 0


def is_overdue(record: PoolRecord, opened: OpenSaga, now: datetime) -> bool:
    """Return whether a saga has waited for its node's work for longer than `drain_timeout`."""
    if not DEFINITIONS[opened.kind].out_of_service or opened.dead or opened.gone:
        return False
    if (opened.drain or record.spec.drain) != "wait":
        return False
    limit_seconds = opened.drain_timeout_seconds or float(record.spec.drain_timeout)
    return (now - opened.since).total_seconds() >= limit_seconds


def allowance(record: PoolRecord, nodes: Nodes, fleet: Others | None, now: datetime) -> Allowance:
    """Return what may be begun in a pool now."""
    spec: BudgetSpec = record.spec.budget
    out, desired = unavailable(record, nodes), rack_units.units(record, record.desired)
    own = Allowance(
        unavailable=out,
        level=limit(spec.max_unavailable, desired),
        overdue=sum(
            is_overdue(record, each, now) for each in record.open.values() if not for_no_fault(each)
        ),
        voluntary=counted(record.voluntary, float(spec.window), now),
        voluntary_rate=voluntary_rate(spec, desired),
        voluntary_out=voluntary_out(record, nodes),
        disruptions=counted(record.disruptions, float(spec.window), now),
        rate=rate(spec.max_replacements, desired),
        resets=counted(record.resets, float(spec.window), now),
        reset_rate=reset_rate(spec.max_resets, spec.max_replacements, desired),
    )
    if fleet is None:
        return own
    window = float(fleet.spec.window)
    return replace(
        own,
        fleet_unavailable=fleet.unavailable + out,
        fleet_level=fleet.level(desired),
        fleet_disruptions=fleet.begun(now) + counted(record.fleet_disruptions, window, now),
        fleet_rate=fleet.rate(desired),
        fleet_voluntary=fleet.voluntary(now) + counted(record.fleet_voluntary, window, now),
        fleet_voluntary_rate=voluntary_rate(
            fleet.spec, fleet.desired + desired, least=FLEET_RATE_MIN
        ),
        fleet_resets=fleet.resets(now) + counted(record.fleet_resets, window, now),
        fleet_reset_rate=fleet.reset_rate(desired),
    )
