"""Records which plugins operators take out; every service follows the records."""

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from schemas import subjects
from schemas.messages import encode
from schemas.permissions import PLUGIN_SWITCH
from schemas.plugin_records import PluginSwitch, PluginSwitchRecord
from services.bus.port import Bus, Endpoint, Headers
from services.bus.protocol.endpoint_replies import requester
from services.primitives.clock import Clock
from services.runtime.plugin_host import switch_key, switches

NUMBERS: Final = 2**31
"""Switches are counted so far, and then from the beginning: only that the number differs counts."""

log = logging.getLogger(__name__)


class PluginSwitches:
    """Answers the order `plugin-switch`."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bucket = switches(bus)
        self._clock = clock

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint by its subject."""
        return {subjects.order_wildcard(PLUGIN_SWITCH): self._switch}

    async def _switch(self, data: bytes, headers: Headers) -> bytes:
        asked = msgspec.json.decode(data, type=PluginSwitch)
        by, now = requester(headers, asked.by), self._clock.now()
        found = await self._bucket.change(
            switch_key(asked.name), lambda record: switched(record, asked, by, now)
        )
        log.info("plugin switched", extra={"plugin": asked.name, "disabled": asked.disabled})
        return encode(found.record) if found.record is not None else b"{}"


def switched(
    record: PluginSwitchRecord | None, asked: PluginSwitch, by: str, now: datetime
) -> PluginSwitchRecord:
    """Return a switch after an order."""
    number = record.number % NUMBERS + 1 if record is not None else 1
    return PluginSwitchRecord(
        name=asked.name, disabled=asked.disabled, by=by, at=now, number=number
    )
