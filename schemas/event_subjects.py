"""The subject of every event."""

from typing import TypeAlias

from schemas import fleet_events, node_events, pool_events, subjects

Event: TypeAlias = node_events.NodeEvent | pool_events.PoolEvent | fleet_events.FleetEvent


def event_subject(event: Event) -> str:
    """Where an event is published."""
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
    families = (node_events.FACTS, pool_events.FACTS, fleet_events.FACTS)
    return list(dict.fromkeys(fact for each in families for fact in each.values()))
