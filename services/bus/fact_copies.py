"""Reads how far the server has copied facts of agents from INTAKE into EVENTS."""

import asyncio
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from schemas.headers import STREAM_SOURCE
from schemas.topology import EVENTS, INTAKE
from services.bus.port import Bus, Stored
from services.primitives.errors import Refused


class Copied(NamedTuple):
    """A fact that has been copied; all facts before it in INTAKE have been copied too."""

    sequence: int
    """In INTAKE."""
    at: datetime
    """When EVENTS stored it."""

    def is_of(self, info: dict[str, Any]) -> bool:
        """Return whether it came from this INTAKE, and not from an earlier one of the name."""
        created = datetime.fromisoformat(info["created"])
        return self.at >= created and self.sequence <= int(info["state"]["last_seq"])

    def is_newest_of(self, info: dict[str, Any]) -> bool:
        """Return whether INTAKE had nothing newer when it was described."""
        return self.at >= datetime.fromisoformat(info["created"]) and self.sequence >= int(
            info["state"]["last_seq"]
        )


NOTHING: Final = Copied(0, datetime.min.replace(tzinfo=UTC))


def place_in_intake(stored: Stored) -> Copied | None:
    """Return where in INTAKE a message of EVENTS came from; None: it was stored there directly."""
    stream, _, rest = stored.headers.get(STREAM_SOURCE, "").partition(" ")
    return Copied(int(rest.partition(" ")[0]), stored.time) if stream == INTAKE.name else None


async def newest_copied(bus: Bus) -> Copied:
    """Return the newest fact that EVENTS has from INTAKE."""
    found = await asyncio.gather(*(bus.last(EVENTS.name, each) for each in INTAKE.subjects))
    places = (place_in_intake(each) for each in found if each is not None)
    return max(
        (each for each in places if each),
        key=lambda each: (each.at, each.sequence),
        default=NOTHING,
    )


async def all_copied(bus: Bus) -> bool:
    """Return whether EVENTS has every fact that was stored in INTAKE when this was asked."""
    try:
        info = await bus.admin(f"STREAM.INFO.{INTAKE.name}", {})
        if not info["state"]["messages"]:
            return True
        call = f"STREAM.MSG.GET.{INTAKE.name}"
        newest = (await bus.admin(call, {"seq": info["state"]["last_seq"]}))["message"]
    except Refused:  # no such stream, or no longer such a fact: it was removed as copied
        return True
    stored = await bus.last(EVENTS.name, newest["subject"])
    place = place_in_intake(stored) if stored else None
    return place is not None and place.is_newest_of(info)
