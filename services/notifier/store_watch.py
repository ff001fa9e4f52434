"""Finds out whether the server still stores messages, and reports it where it does not.

A full disk or a full stream refuses every event about itself; so the notifier, which can alert
without the bus, tries to write and looks at the streams that refuse what they have no room for.
"""

import asyncio
import logging
from typing import Final

from schemas.fleet_queries import CurrentFailure
from schemas.topology import BUCKETS, LEASES, STREAMS, StreamSpec
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import BusError
from services.runtime.failure_register import FailureRegister

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 10.0
REFUSALS_MIN: Final = 2
"""Consecutive refused writes before it is reported: a new leader is elected sooner."""
FULL_SHARE: Final = 0.95
PROBE_KEY: Final = "probe.notifier"
PROBE_TTL_SECONDS: Final = 60
UNWRITABLE_REMEDY: Final = (
    "free space on the disk of nats-server's store_dir (`df -h`), then restart nats-server: once "
    "its disk was full it stores nothing until it is restarted. Nothing that is stored is lost, "
    "and what waits is done afterwards"
)


class StoreWatch:
    """Watches what the server stores."""

    def __init__(self, bus: Bus, clock: Clock, failures: FailureRegister) -> None:
        """Report to `failures`."""
        self._bus = bus
        self._clock = clock
        self._failures = failures
        self._refusals = 0

    async def run(self) -> None:
        """Look for ever."""
        while True:
            if self._bus.connected:  # while the bus is away nothing is known
                self._failures.update("store", await self.look())
            await self._clock.sleep(LOOK_SECONDS)

    async def look(self) -> list[CurrentFailure]:
        """Look once."""
        refusal = await self._refusal()
        self._refusals = self._refusals + 1 if refusal else 0
        found = []
        if self._refusals >= REFUSALS_MIN:
            reason = f"nats-server stores nothing: {refusal}"
            found.append(_failure("nats-server", reason, UNWRITABLE_REMEDY))
        specs = (*STREAMS, *(each.stream() for each in BUCKETS))
        looks = (self._full(each) for each in specs if each.discard == "new" and each.bytes_max > 0)
        return found + [each for each in await asyncio.gather(*looks) if each is not None]

    async def _refusal(self) -> str:
        try:
            await self._bus.put(LEASES, PROBE_KEY, b"{}", ttl_seconds=PROBE_TTL_SECONDS)
        except BusError as error:
            return str(error)
        return ""

    async def _full(self, spec: StreamSpec) -> CurrentFailure | None:
        try:
            info = await self._bus.admin(f"STREAM.INFO.{spec.name}", {})
        except BusError as error:
            log.info("stream not looked at: %s", error)
            return None
        used, most = int(info["state"]["bytes"]), int(info["config"]["max_bytes"])
        if most <= 0 or used < FULL_SHARE * most:
            return None
        return _failure(
            f"stream {spec.name}",
            f"{used} of its {most} bytes are used, and it refuses what is beyond",
            "remove what has ended: `nats stream subjects "
            f"{spec.name}` shows what takes the room, `nats stream purge {spec.name} --subject "
            "SUBJECT` removes it",
        )


def _failure(about: str, reason: str, remedy: str) -> CurrentFailure:
    return CurrentFailure(failure="store-unwritable", about=about, reason=reason, remedy=remedy)
