"""The facts of a decision travel in the record that it writes, until they are published. Pure.

Published before the record was written, a fact would be told of a decision that somebody else was
ahead of: taken again on the record as it then is, it may come out otherwise, or under another id.
Published after it and not written down, a crash in between would lose it.
"""

from collections.abc import Container, Sequence

import msgspec

from schemas.messages import encode
from schemas.pool_events import PoolEvent, pool_codec
from schemas.pool_records import PoolRecord


def pending_events(record: PoolRecord, events: Sequence[PoolEvent]) -> PoolRecord:
    """The record with facts that are to be told, after those that it holds already."""
    if not events:
        return record
    more = tuple(msgspec.Raw(encode(each)) for each in events)
    return msgspec.structs.replace(record, pending_events=(*record.pending_events, *more))


def told(record: PoolRecord) -> PoolRecord:
    """The record once all of them are told."""
    return msgspec.structs.replace(record, pending_events=()) if record.pending_events else record


def held(record: PoolRecord) -> frozenset[bytes]:
    """What stands in the record to be told, to be known again."""
    return frozenset(bytes(each) for each in record.pending_events)


def facts(record: PoolRecord, but: Container[bytes] = ()) -> tuple[PoolEvent, ...]:
    """What is to be told, in order; what this release does not know it cannot tell.

    `but`: what is told already, and stands there until the record is written for another reason.
    """
    wanted = (bytes(each) for each in record.pending_events)
    found = (pool_codec.decode(each) for each in wanted if each not in but)
    return tuple(each for each in found if isinstance(each, PoolEvent))
