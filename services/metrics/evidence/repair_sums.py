"""The total cost of outages. Pure: totals and one `repaired` event in, totals out.

The totals are stored with the sequence of the last event they include, so a restart neither loses
an event nor counts one twice, and they outlive the events themselves.
"""

from bisect import bisect_left
from typing import Final

import msgspec

from schemas.evidence_bundles import RepairCount, RepairTotals
from schemas.metric_catalogue import OTHER
from schemas.node_events import Repaired
from services.operator_text.safe_text import escape_line

BUCKETS_SECONDS: Final = (
    *(10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0),
    *(3600.0, 7200.0, 14_400.0, 28_800.0, 86_400.0),
)
"""Part of the stored record: a change of these needs a new key in REPAIRS."""
SERIES_MAX: Final = 1_000
"""Pairs of pool and fault signature; any beyond that count as the pool's `other`."""


def repair_bucket(event: Repaired) -> tuple[tuple[str, str, int], float]:
    """The pool, fault and bucket under which a repair counts, and how long it took."""
    seconds = max(0.0, (event.restored_at - event.unhealthy_at).total_seconds())
    # Here and not where it is shown, so that no two series have the same label.
    fault = escape_line(event.fault_signature)
    return (event.pool, fault, bisect_left(BUCKETS_SECONDS, seconds)), seconds


def add_repair(totals: RepairTotals, event: Repaired, sequence: int) -> RepairTotals:
    """Add the event stored at `sequence`; one that is included already changes nothing."""
    if sequence <= totals.sequence:
        return totals
    counts = {(each.pool, each.fault_signature): each for each in totals.counts}
    (pool, fault, bucket), seconds = repair_bucket(event)
    key = pool, fault
    if key not in counts and len(counts) >= SERIES_MAX:
        key = event.pool, OTHER
    old = counts.get(key) or RepairCount(pool=key[0], fault_signature=key[1])
    buckets = list(old.buckets)
    buckets[bucket] += 1
    counts[key] = RepairCount(
        pool=key[0],
        fault_signature=key[1],
        gpu_seconds=old.gpu_seconds + event.lost_gpu_hours * 3600,
        seconds=old.seconds + seconds,
        buckets=tuple(buckets),
    )
    return msgspec.structs.replace(totals, sequence=sequence, counts=tuple(counts.values()))
