"""What Compute Engine reports of its hosts, in `resourceStatus.upcomingMaintenance`. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from services.provisioner.provider_client.provider import ScheduledEvent


def upcoming_maintenance(instances: Iterable[tuple[str, Any]]) -> list[ScheduledEvent]:
    """The maintenance that is announced for instances, given with their provider IDs.

    A VM with GPUs cannot be moved while it runs: it is stopped as long as the maintenance lasts.
    """
    found: list[ScheduledEvent] = []
    for provider_id, instance in instances:
        about = instance.get("resourceStatus", {}).get("upcomingMaintenance", {})
        starts = _moment(about.get("windowStartTime"))
        if starts is None:
            continue
        kind = str(about.get("type", "")).lower() or "unknown_type"
        found.append(
            ScheduledEvent(
                provider_id=provider_id,
                event=f"{starts:%Y%m%dT%H%M}",
                action=f"{kind}-maintenance",
                text=f"Google Cloud announces {kind} maintenance of its host",
                effect="retire",
                starts_at=starts,
                ends_at=_moment(about.get("windowEndTime")),
            )
        )
    return found


def _moment(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
