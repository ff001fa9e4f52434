"""How a record tells who asks a provider that knows no idempotency tokens. Pure.

Whoever may ask counts himself in the record first. By that he knows later whether anybody has asked
since, and whoever comes after him knows that there may be something to be found.
"""

from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Offering


def may_ask(record: InstanceRecord, offering: Offering | None) -> bool:
    """Whether a provider may be asked for this offering, as the record is by now."""
    return record.state == "intended" and record.offering == offering


def asking(record: InstanceRecord, offering: Offering | None, before: int) -> InstanceRecord | None:
    """The record with one more who asks; None where he is counted, or must not ask.

    `before`: what the count was when he asked last; 0: he has not.
    """
    if not may_ask(record, offering) or before == record.asks > 0:
        return None
    return replace(record, asks=record.asks + 1)


def alone(count: int, before: int) -> bool:
    """Whether nobody else has asked, nor done so since, by the count with him in it."""
    return count == (before or 1)
