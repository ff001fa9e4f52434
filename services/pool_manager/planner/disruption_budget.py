"""How many nodes may be out of service at once, and how many be taken out in a time. Pure.

The level is a count of nodes; the rate a count of sagas begun within a sliding window. Resets and
reboots, which leave a node in its place, have a rate of their own, so that a node that climbs the
ladder does not spend the replacements of others. What was begun is kept in slots of a sixtieth of
the window, so that a record stays small and a restart forgets nothing; a slot counts until the last
moment of it has left the window.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import msgspec

from schemas.enums import BreakerCause, SagaKind
from schemas.fault_signature import RACK
from schemas.fleet_budget import BudgetClaim, FleetBudgetRecord
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import UNLIMITED, BudgetSpec, FleetBudgetSpec
from services.pool_manager.planner import rack_units
from services.pool_manager.planner.node_counts import Nodes, unavailable
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


def _share(percentage: str, of: int) -> int:
    return math.ceil(of * float(percentage.removesuffix("%")) / 100 - 1e-9)


def lifted(spec: FleetBudgetSpec) -> bool:
    """Whether the fleet's budget cannot bind, so that nothing need be counted for it."""
    resets = spec.max_resets in (None, UNLIMITED)
    if spec.max_quarantined not in (None, ALL):
        return False
    return spec.max_unavailable == ALL and spec.max_replacements == UNLIMITED and resets


# --- slots ---------------------------------------------------------------------------------------


def slot_seconds(window: float) -> int:
    """How long a slot of a window is."""
    return max(SLOT_SECONDS_MIN, math.ceil(window / SLOTS))


def noted(begun: Mapping[str, int], window: float, now: datetime, count: int = 1) -> dict[str, int]:
    """The slots with more sagas begun now; those that have left the window are dropped."""
    width = slot_seconds(window)
    kept = {slot: each for slot, each in begun.items() if _counts(slot, window, now)}
    slot = str(math.floor(now.timestamp() / width) * width)
    return {**kept, slot: kept.get(slot, 0) + count}


def counted(begun: Mapping[str, int], window: float, now: datetime) -> int:
    """How many sagas were begun within the window."""
    return sum(count for slot, count in begun.items() if _counts(slot, window, now))


def room_at(begun: Mapping[str, int], window: float, now: datetime) -> datetime | None:
    """When the first slot leaves the window; None where none is in it."""
    slots = [int(slot) for slot in begun if _counts(slot, window, now)]
    if not slots:
        return None
    return datetime.fromtimestamp(min(slots) + slot_seconds(window) + window, UTC)


def _counts(slot: str, window: float, now: datetime) -> bool:
    return int(slot) + slot_seconds(window) + window > now.timestamp()


def with_begun(
    record: PoolRecord, fleet_window: float, now: datetime, kinds: Sequence[SagaKind]
) -> PoolRecord:
    """The pool's record with more sagas begun; `fleet_window` 0: not counted there."""
    window = float(record.spec.budget.window)
    resets = sum(1 for kind in kinds if DEFINITIONS[kind].in_place)
    others = len(kinds) - resets
    if others:
        fleet = noted(record.fleet_disruptions, fleet_window, now, others) if fleet_window else {}
        begun = noted(record.disruptions, window, now, others)
        record = msgspec.structs.replace(record, disruptions=begun, fleet_disruptions=fleet)
    if resets:
        fleet = noted(record.fleet_resets, fleet_window, now, resets) if fleet_window else {}
        begun = noted(record.resets, window, now, resets)
        record = msgspec.structs.replace(record, resets=begun, fleet_resets=fleet)
    return record


def with_counted(
    record: PoolRecord, fleet_window: float, now: datetime, begun: Mapping[str, OpenSaga]
) -> PoolRecord:
    """The pool's record whose rates count these sagas, which are open in it."""
    begun = _each_decision(begun)
    record = with_begun(record, fleet_window, now, [each.kind for each in begun.values()])
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
    if DEFINITIONS[ended.kind].in_place:
        resets, fleet = record.resets, record.fleet_resets
        return msgspec.structs.replace(
            record, resets=_less(resets, ended.since), fleet_resets=_less(fleet, ended.since)
        )
    begun, fleet = record.disruptions, record.fleet_disruptions
    return msgspec.structs.replace(
        record, disruptions=_less(begun, ended.since), fleet_disruptions=_less(fleet, ended.since)
    )


def _less(begun: Mapping[str, int], at: datetime) -> dict[str, int]:
    """The slots with one saga fewer in that of `at`; unchanged where it has left the window."""
    slot = max((slot for slot in begun if int(slot) <= at.timestamp()), key=int, default="")
    less = {name: count - (name == slot) for name, count in begun.items()}
    return {name: count for name, count in less.items() if count}


def recounted(
    record: PoolRecord,
    fleet_window: float,
    now: datetime,
    began: Iterable[tuple[datetime, SagaKind]],
) -> PoolRecord:
    """The record of a pool that was rolled back, with no fewer sagas begun than their logs show."""
    found = msgspec.structs.replace(
        record, disruptions={}, fleet_disruptions={}, resets={}, fleet_resets={}
    )
    for at, kind in sorted(began):
        found = with_begun(found, fleet_window, at, (kind,))
    window = float(record.spec.budget.window)
    more = {
        name: getattr(found, name)
        for name, lasts in (
            *(("disruptions", window), ("resets", window)),
            *(("fleet_disruptions", fleet_window), ("fleet_resets", fleet_window)),
        )
        if counted(getattr(found, name), lasts, now) > counted(getattr(record, name), lasts, now)
    }
    return msgspec.structs.replace(record, **more)


# --- the fleet -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """What the other pools take of the fleet's budget, and what the fleet may."""

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
        most = ALL if self.spec.max_quarantined is None else self.spec.max_quarantined
        return limit(most, self.desired + desired, least=FLEET_LEVEL_MIN)

    def rate(self, desired: int) -> int | None:
        """Sagas that may be begun in the fleet within its window."""
        return rate(self.spec.max_replacements, self.desired + desired, least=FLEET_RATE_MIN)

    def begun(self, now: datetime) -> int:
        """Sagas that the other pools began within the fleet's window."""
        return sum(counted(each.disruptions, float(self.spec.window), now) for each in self.claims)

    def reset_rate(self, desired: int) -> int | None:
        """GPU resets and reboots that may be begun in the fleet within its window."""
        wanted, spec = self.desired + desired, self.spec
        return reset_rate(spec.max_resets, spec.max_replacements, wanted, least=FLEET_RATE_MIN)

    def resets(self, now: datetime) -> int:
        """GPU resets and reboots that the other pools began within the fleet's window."""
        return sum(counted(each.resets, float(self.spec.window), now) for each in self.claims)


def others(spec: FleetBudgetSpec, fleet: FleetBudgetRecord, pool: str) -> Others | None:
    """What the pools beside `pool` claim; None where the fleet's budget cannot bind."""
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
    """What one decision may still begin."""

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

    def refusal(
        self, *, cordoned: bool, resets: bool = False, silent: bool = False
    ) -> BreakerCause:
        """What forbids to act on one more node, by a reset or reboot or otherwise; empty: nothing.

        A node that is cordoned already counts as out of service; acting on it takes out no more.
        """
        # What is silent has no work to lose, and does not queue behind work that does not leave.
        if not cordoned and self.unavailable - silent * self.overdue >= self.level:
            return "level"
        if resets and self.reset_rate is not None and self.resets >= self.reset_rate:
            return "reset-rate"
        if not resets and self.rate is not None and self.disruptions >= self.rate:
            return "rate"
        level = None if cordoned else self.fleet_level
        if level is not None and self.fleet_unavailable - silent * self.overdue >= level:
            return "fleet-level"
        most = self.fleet_reset_rate if resets else self.fleet_rate
        if most is not None and (self.fleet_resets if resets else self.fleet_disruptions) >= most:
            return "fleet-reset-rate" if resets else "fleet-rate"
        return ""

    def halved(self) -> "Allowance":
        """Half of each limit, rounded up: what may be begun that can wait."""
        names = ("level", "rate", "fleet_level", "fleet_rate")
        limits = {name: getattr(self, name) for name in names}
        return replace(
            self, **{name: math.ceil(each / 2) for name, each in limits.items() if each is not None}
        )

    def took(self, *, cordoned: bool, resets: bool = False) -> "Allowance":
        """What is left when one more has begun."""
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


def _waits(record: PoolRecord, opened: OpenSaga, now: datetime) -> bool:
    """Return whether a saga has waited for its node's work for longer than `drain_timeout`."""
    if not DEFINITIONS[opened.kind].out_of_service or opened.dead or opened.gone:
        return False
    if (opened.drain or record.spec.drain) != "wait":
        return False
    limit_seconds = opened.drain_timeout_seconds or float(record.spec.drain_timeout)
    return (now - opened.since).total_seconds() >= limit_seconds


def allowance(record: PoolRecord, nodes: Nodes, fleet: Others | None, now: datetime) -> Allowance:
    """What may be begun in a pool now."""
    spec: BudgetSpec = record.spec.budget
    out, desired = unavailable(record, nodes), rack_units.units(record, record.desired)
    own = Allowance(
        unavailable=out,
        level=limit(spec.max_unavailable, desired),
        overdue=sum(_waits(record, each, now) for each in record.open.values()),
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
        fleet_resets=fleet.resets(now) + counted(record.fleet_resets, window, now),
        fleet_reset_rate=fleet.reset_rate(desired),
    )
