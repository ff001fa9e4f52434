"""Publishes events: under their IDs, so that a repetition stores nothing, and in their trace."""

from schemas.event_subjects import Event, event_subject
from schemas.messages import encode
from services.bus.port import Bus
from services.runtime.tracing import current_headers


async def publish_event(bus: Bus, event: Event) -> None:
    """Store an event, with the current span in its headers."""
    await bus.publish(
        event_subject(event), encode(event), msg_id=event.id, headers=current_headers()
    )
