"""A request as it lay in the queue, and what comes of it: values that others share. Pure."""

from dataclasses import dataclass

from schemas.messages import Message
from schemas.pool_events import PoolEvent
from schemas.records import PoolRecord
from schemas.sagas import SagaEntry
from services.pool_manager.safety.holding import Holding


class Asked(Message, frozen=True, kw_only=True, tag="io.navarch.pool_manager.request.v1.asked"):
    """A request as it lay in the queue."""

    pool: str
    verb: str
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What comes of a request: the event, and the pool's record with whatever it opened."""

    event: PoolEvent
    record: PoolRecord | None = None
    """None: unchanged."""
    more: tuple[PoolEvent, ...] = ()
    """What else has come about by it."""
    entry: SagaEntry | None = None
    """To be appended to the log that was decided on."""
    hold: Holding | None = None
    """To be noted in the node's record, before the pool's is written."""
