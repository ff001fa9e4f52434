"""Logs what the pool-manager decided, as lines that programs read: docs/metrics.md."""

import logging

from schemas.messages import Message
from schemas.pool_events import Scaled
from schemas.pool_records import OpenSaga, PoolRecord

log = logging.getLogger(__name__)


def log_event(event: Message) -> None:
    """Log a change of size; other events are lines of `navarch events` alone."""
    if not isinstance(event, Scaled) or event.nodes == event.previous:
        return
    direction = "up" if event.nodes > event.previous else "down"
    about = {"pool": event.pool, "from": event.previous, "to": event.nodes, "reason": event.reason}
    log.info("scaling %s", direction, extra=about)


def log_saga(record: PoolRecord, saga: str, opened: OpenSaga) -> None:
    """Log what has begun, with the node that it is about."""
    text = "replacing node" if opened.kind == "replace" else "saga began"
    about = {"pool": record.name, "saga": saga, "reason": opened.reason}
    log.info(text, extra=about | {"node": opened.node or opened.new_node})
