"""Finds a pool's claim on the fleet's budget, which is written before its decision. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from schemas.fleet_budget import BudgetClaim, FleetBudgetRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import rack_units
from services.pool_manager.planner.node_counts import Nodes, unavailable, units_quarantined
from services.pool_manager.planner.pool_snapshot import PoolSnapshot

RATES: Final = ("disruptions", "resets", "voluntary")
"""What a claim counts by slots."""


@dataclass(frozen=True, slots=True)
class Claiming:
    """A claim is written to the fleet's budget before its pool's decision is."""

    claims: FleetBudgetRecord | None = None
    """None: unchanged."""
    fence: bool = False
    """Nothing is decided, and less could be claimed but for a decision that a replica may still be
    writing: the pool's record is to be written as it is, and then all be read again."""


def claiming(snapshot: PoolSnapshot, decided: PoolRecord) -> Claiming:
    """Return what a decision claims of the fleet's budget."""
    if snapshot.others is None:
        return Claiming()
    pool = decided.name
    old = snapshot.claims.claims.get(pool)
    wanted = claim_of(decided, snapshot.nodes, snapshot.revision)
    claim = claimed(old, wanted)
    if decided == snapshot.record and says_less(wanted, claim):
        return Claiming(fence=True)
    if old is not None and msgspec.structs.replace(claim, revision=old.revision) == old:
        return Claiming()
    return Claiming(FleetBudgetRecord(claims={**snapshot.claims.claims, pool: claim}))


def claim_of(record: PoolRecord, nodes: Nodes, revision: int) -> BudgetClaim:
    """Return what a pool takes of the fleet's budget, as decided on this revision of its record."""
    return BudgetClaim(
        desired=rack_units.units(record, record.desired),
        unavailable=unavailable(record, nodes),
        quarantined=len(units_quarantined(record, nodes)),
        disruptions=record.fleet_disruptions,
        resets=record.fleet_resets,
        voluntary=record.fleet_voluntary,
        revision=revision,
    )


def claimed(old: BudgetClaim | None, wanted: BudgetClaim) -> BudgetClaim:
    """The claim to be written: not below one that a replica may still act on.

    `old` of the same revision was written for a decision whose pool record may yet be written; of
    those decisions one at most will be. The greater of both claims covers whichever it is.
    """
    if old is None or old.revision < wanted.revision:
        return wanted
    return BudgetClaim(
        desired=wanted.desired,
        unavailable=max(old.unavailable, wanted.unavailable),
        quarantined=max(old.quarantined, wanted.quarantined),
        disruptions=_greater(old.disruptions, wanted.disruptions),
        resets=_greater(old.resets, wanted.resets),
        voluntary=_greater(old.voluntary, wanted.voluntary),
        revision=old.revision,
    )


def _greater(old: Mapping[str, int], wanted: Mapping[str, int]) -> dict[str, int]:
    slots = sorted(old.keys() | wanted.keys())
    return {slot: max(old.get(slot, 0), wanted.get(slot, 0)) for slot in slots}


def says_less(wanted: BudgetClaim, written: BudgetClaim) -> bool:
    """Return whether a claim could be lowered but for a replica that may still act on it."""
    return (
        written.unavailable > wanted.unavailable
        or written.quarantined > wanted.quarantined
        or any(
            count > getattr(wanted, name).get(slot, 0)
            for name in RATES
            for slot, count in getattr(written, name).items()
        )
    )
