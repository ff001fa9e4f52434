"""The events of a decision are kept in the record that it writes until they are published. Pure.

Published before the record was written, an event would be about a decision that another replica was
ahead of: taken again on the record as it then is, it may come out otherwise, or under another id.
Published after it and not written down, a crash in between would lose it.
"""

from collections.abc import Container, Sequence

import msgspec

from schemas.messages import encode
from schemas.pool_events import PoolEvent, pool_codec
from schemas.pool_records import PoolRecord


def pending_events(record: PoolRecord, events: Sequence[PoolEvent]) -> PoolRecord:
    """The record with more events to publish, after those that it holds already."""
    if not events:
        return record
    more = tuple(msgspec.Raw(encode(each)) for each in events)
    return msgspec.structs.replace(record, pending_events=(*record.pending_events, *more))


def without_events(record: PoolRecord) -> PoolRecord:
    """The record once all of them are published."""
    return msgspec.structs.replace(record, pending_events=()) if record.pending_events else record


def outbox_contents(record: PoolRecord) -> frozenset[bytes]:
    """Return the events in the record as bytes, for comparison."""
    return frozenset(bytes(each) for each in record.pending_events)


def unpublished_events(record: PoolRecord, but: Container[bytes] = ()) -> tuple[PoolEvent, ...]:
    """The events to publish, in order; those that this release does not know are skipped.

    `but`: published already, and kept until the record is written for another reason.
    """
    wanted = (bytes(each) for each in record.pending_events)
    found = (pool_codec.decode(each) for each in wanted if each not in but)
    return tuple(each for each in found if isinstance(each, PoolEvent))
