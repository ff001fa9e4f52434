"""Reads the last event of one kind about a node, which outlives the replica that published it."""

from typing import TypeVar

from schemas import subjects
from schemas.node_events import FACTS, NodeEvent
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS
from services.bus.port import Bus

E = TypeVar("E", bound=NodeEvent)


async def last_event(bus: Bus, kind: type[E], pool: str, node: str) -> E | None:
    """None: there is none that can be read."""
    stored = await bus.last(EVENTS.name, subjects.node_event(pool, node, FACTS[kind]))
    event = decode_stored(stored) if stored is not None else None
    return event if isinstance(event, kind) else None
