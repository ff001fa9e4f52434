"""Events that a node's record keeps until they are published. Pure.

Heartbeats and samples are not delivered again as messages are: a marker is overwritten by the next
heartbeat. So what a watch decides on them is saved with the record first and published then; after
a crash in between the next holder of the lease publishes it.
"""

import msgspec

from schemas.health_records import HealthRecord
from schemas.messages import encode
from schemas.node_events import Fault, Lost, Returned, node_codec
from services.health_monitor.rules.health_state import working_of

WatchEvent = Lost | Returned | Fault
WatchDecision = tuple[HealthRecord, WatchEvent | None]
"""The record as it becomes, and the event to publish of it."""


def keep(record: HealthRecord) -> WatchDecision:
    """Decide nothing new: only what waits in the outbox is published."""
    return record, None


def with_event(record: HealthRecord, event: WatchEvent) -> HealthRecord:
    """The record with one more event to publish."""
    raw = msgspec.json.decode(encode(event))
    return _with_outbox(record, (*working_of(record).outbox, raw))


def without_events(record: HealthRecord) -> HealthRecord:
    """The record once its events are published."""
    return _with_outbox(record, ())


def unpublished(record: HealthRecord) -> tuple[WatchEvent, ...]:
    """The events to publish, in order; those that this release does not know are skipped."""
    found = (node_codec.decode(msgspec.json.encode(raw)) for raw in working_of(record).outbox)
    return tuple(each for each in found if isinstance(each, WatchEvent))


def _with_outbox(record: HealthRecord, outbox: tuple[dict[str, object], ...]) -> HealthRecord:
    work = msgspec.structs.replace(working_of(record), outbox=outbox)
    return msgspec.structs.replace(record, detail=msgspec.to_builtins(work))
