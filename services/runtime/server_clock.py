"""The server's time on a service's host, whatever that host's own clock says.

Deadlines are compared with what the server has stamped, and timers fire by its clock. A service by
a clock that is a minute slow would end a node at once whose work had half a minute to leave.
"""

import logging
from datetime import datetime, timedelta
from typing import Final

from schemas.topology import EVENTS
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import BusError
from services.runtime.process_metrics import Instruments

log = logging.getLogger(__name__)

MEASURE_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 1.0
ROUND_TRIP_SECONDS_MAX: Final = 0.5
"""What took longer says too little about when the server stamped it, unless nothing is known."""
REPORTED_SECONDS: Final = 1.0
"""A host's clock that is further off is worth a word."""


class ServerClock:
    """A clock that shows the server's time; its host's own until that is known.

    It goes on by the seconds that never go back, so a step of the host's clock does not move it.
    Ahead of the server by a round trip at most, and never behind: what the server has stamped has
    passed here too.
    """

    def __init__(self, bus: Bus, own: Clock, instruments: Instruments) -> None:
        """`own` is the host's clock."""
        self._bus = bus
        self._own = own
        self._instruments = instruments
        self._epoch = own.now() - timedelta(seconds=own.monotonic())
        """The moment at which `monotonic` showed nought."""
        self._known = False
        self._reported = False

    def now(self) -> datetime:
        """Return the moment at the server, in UTC."""
        return self._epoch + timedelta(seconds=self._own.monotonic())

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return self._own.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait so many seconds, by the own clock."""
        await self._own.sleep(seconds)

    async def known(self) -> None:
        """Wait until the server's time is known."""
        while not await self.measure():
            await self.sleep(RETRY_SECONDS)

    async def run(self) -> None:
        """Measure now and then: clocks drift, and servers that lead change."""
        while True:
            await self.sleep(MEASURE_SECONDS)
            await self.known()

    async def measure(self) -> bool:
        """Ask the server for its time; False where nothing came of it.

        It stamps what it says of a stream (`ts`). A write would say as much, and a service could
        not start, and report nothing, while the store takes none.
        """
        asked = self._own.monotonic()
        try:
            found = await self._bus.admin(f"STREAM.INFO.{EVENTS.name}", {})
        except BusError as error:
            log.info("the server's time is not known yet", extra={"reason": str(error)})
            return False
        took = self._own.monotonic() - asked
        if took > ROUND_TRIP_SECONDS_MAX and self._known:
            return True
        self._known = True
        self._epoch = datetime.fromisoformat(found["ts"]) - timedelta(seconds=asked)
        self._report()
        return True

    def _report(self) -> None:
        ahead = (self._own.now() - self.now()).total_seconds()
        self._instruments.clock_ahead_seconds.set(ahead)
        wrong = abs(ahead) >= REPORTED_SECONDS
        if wrong and not self._reported:
            log.warning(
                "this host's clock is %.1f s %s the server's; Navarch goes by the server's",
                abs(ahead),
                "ahead of" if ahead > 0 else "behind",
            )
        self._reported = wrong
