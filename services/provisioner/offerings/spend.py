"""Adds up what a pool and the fleet cost per hour, including launches in progress. Pure.

A launch's price counts as soon as its offering is chosen: first as a reservation, then by its own
record. A reservation is kept longer than that, because other replicas read records with a delay;
each instance counts once. An instance that is being removed makes room for the next; a leak counts.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from schemas.enums import LaunchRefusal
from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Offering
from schemas.offering_records import SpendRecord, SpendReservation
from services.provisioner.offerings.offering_choice import PriceLimit

KEPT_SECONDS: Final = 120.0
"""Longer than any replica's delay in reading records."""


def sum_costs(
    records: Mapping[str, InstanceRecord], reserved: Mapping[str, SpendReservation], besides: str
) -> dict[str, float]:
    """Return each pool's dollars per hour, without the instance `besides`."""
    found: dict[str, float] = {}
    for key in {*records, *reserved} - {besides}:
        record = records.get(key)
        if record is not None and record.state in ("terminated", "terminating"):
            continue
        dollars = record.dollars_per_hour if record is not None else 0.0
        if key in reserved and (record is None or record.offering is None):
            dollars = reserved[key].dollars_per_hour
        pool = key.partition(".")[0]
        found[pool] = found.get(pool, 0.0) + dollars
    return found


def price_limits(
    costs: Mapping[str, float], pool: str, pool_cap: float, fleet_cap: float
) -> tuple[PriceLimit, ...]:
    """Return what is left of each cap; a cap of 0 is none."""
    found: list[PriceLimit] = []
    of_pool, of_all = costs.get(pool, 0.0), sum(costs.values())
    caps: tuple[tuple[float, float, LaunchRefusal, str], ...] = (
        (pool_cap, of_pool, "above-pool-cap", f"pool {pool}"),
        (fleet_cap, of_all, "above-fleet-cap", "the fleet"),
    )
    for cap, now, refusal, whose in caps:
        if cap:
            because = f"and {whose} costs ${now:g} of its spend_cap of ${cap:g}"
            found.append(PriceLimit(dollars=cap - now, refusal=refusal, because=because))
    return tuple(found)


def add_reservation(
    record: SpendRecord, key: str, dollars: float, offering: Offering, now: datetime
) -> SpendRecord:
    """Return the record with another reservation, and without the expired ones."""
    oldest = now - timedelta(seconds=KEPT_SECONDS)
    kept = {name: each for name, each in record.reserved.items() if each.at > oldest}
    added = SpendReservation(dollars_per_hour=dollars, offering=offering, at=now)
    return SpendRecord(reserved={**kept, key: added})


def without_reservation(record: SpendRecord, key: str, offering: Offering) -> SpendRecord:
    """Return the record without a launch's reservation, unless it is of another offering."""
    reserved = record.reserved.get(key)
    if reserved is None or reserved.offering not in (None, offering):
        return record
    return SpendRecord(
        reserved={name: each for name, each in record.reserved.items() if name != key}
    )
