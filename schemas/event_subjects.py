"""Derives the subject of every event from its type and fields."""

from collections.abc import Mapping
from typing import Final, TypeAlias

from schemas import fleet_events, node_events, pool_events, subjects
from schemas.messages import Message

Event: TypeAlias = node_events.NodeEvent | pool_events.PoolEvent | fleet_events.FleetEvent
FACTS: Final[Mapping[type[Message], str]] = dict(
    [*node_events.FACTS.items(), *pool_events.FACTS.items(), *fleet_events.FACTS.items()]
)
"""Event class -> its name, of all events that EVENTS may hold."""


def event_subject(event: Event) -> str:
    """Return the subject under which an event is published."""
    match event:
        case node_events.Telemetry():
            return subjects.telemetry(event.pool, event.node)
        case node_events.NodeEvent():
            fact = node_events.FACTS[type(event)]
            return subjects.node_event(event.pool, event.node, fact)
        case pool_events.PoolEvent():
            return subjects.pool_event(event.pool, pool_events.FACTS[type(event)])
        case _:
            return subjects.fleet_event(fleet_events.FACTS[type(event)])


def facts() -> list[str]:
    """The names of all events that EVENTS may hold."""
    return list(dict.fromkeys(FACTS.values()))
