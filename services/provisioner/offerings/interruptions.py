"""Counts, for each offering, the spot instances that were taken away lately, by their age. Pure.

An interruption counts one when it is recorded and half as much after each half-life, which the pool
that launches says. The newest are kept, each instance once.
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from schemas.launch_offers import Offering
from schemas.offering_records import Interruption, InterruptionsRecord

INTERRUPTIONS_MAX: Final = 300
"""That are kept: some 60 KB."""
KEPT: Final = timedelta(days=7)


def with_interruption(
    record: InterruptionsRecord | None, offering: Offering, instance: str, now: datetime
) -> InterruptionsRecord | None:
    """The record with one more; None: it has that one, or the instance is not spot."""
    known = record.recent if record is not None else ()
    if offering.market != "spot" or any(each.instance == instance for each in known):
        return None
    fresh = [each for each in known if now - each.at < KEPT]
    new = Interruption(offering=offering, instance=instance, at=now)
    return InterruptionsRecord(recent=(*fresh, new)[-INTERRUPTIONS_MAX:])


def count(recent: Sequence[Interruption], half_life_seconds: float, now: datetime) -> int:
    """Return how many interruptions count now, each by its age, rounded half up."""
    if not half_life_seconds:
        return 0
    ages = ((now - each.at).total_seconds() for each in recent)
    weights = (math.exp2(-max(age, 0.0) / half_life_seconds) for age in ages)
    return math.floor(sum(weights) + 0.5)
