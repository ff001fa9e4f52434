"""Keeps this node's login on the bus valid: enrolls, renews, and comes back after an expiry.

The server ends a connection whose credentials expire, and the client reconnects with the file's new
ones. What the agent reports meanwhile waits in its spool.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from agent import enrollment
from agent.settings import AgentConfig
from services.bus.nats.credentials_file import life
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import ConfigurationError, LoginRefused, NavarchError, Unavailable

log = logging.getLogger(__name__)

CONNECT_SECONDS_MAX: Final = 30.0
"""Of one attempt; then the credentials are looked at again."""
CHECK_SECONDS: Final = 2.0
RETRY_FIRST_SECONDS: Final = 15.0
RETRY_MAX_SECONDS: Final = 120.0
"""Half to one and a half of it: the pool-manager waits longer for agents that may connect again."""
RENEW_SECONDS_MIN: Final = 0.05
RENEW_FROM: Final = 1 / 3
"""Share of the credentials' life after which they are renewed, at the earliest."""
RENEW_SPAN: Final = 1 / 6
"""Share of their life over which a fleet's renewals are spread."""


class NodeBus(Bus, Protocol):
    """A bus that reports whether the server refuses the login."""

    @property
    def login_refused(self) -> bool:
        """Whether it does, at each attempt to reconnect."""


Open = Callable[[float], Awaitable[NodeBus]]
"""Connects with the node's own credentials, within so many seconds."""


def renewal_seconds(issued: float, expires: float, now: float, random: float) -> float:
    """Seconds until credentials are renewed. Pure.

    `random` (0 to 1) spreads the fleet. A clock that is wrong only moves the moment within the
    first half of their life, counted from now.
    """
    life = max(expires - issued, 0.0)
    wait = life * (RENEW_FROM + RENEW_SPAN * random)
    return min(max(issued + wait - now, 0.0), wait)


class BusLogin:
    """This node's login."""

    def __init__(
        self,
        config: AgentConfig,
        clock: Clock,
        open_own: Open,
        open_with: enrollment.Connect,
        random: Callable[[], float],
    ) -> None:
        """`open_with`: connects with credentials that permit only to request others."""
        self._config = config
        self._clock = clock
        self._open_own = open_own
        self._open_with = open_with
        self._random = random
        self._bus: NodeBus | None = None
        self._due = float("inf")
        """When the credentials are to be renewed, by the monotonic clock."""

    async def connect(self) -> Bus:
        """Connect, for as long as it takes."""
        retry = RETRY_FIRST_SECONDS
        while True:
            try:
                if enrollment.is_needed(self._config):
                    log.info(await enrollment.enroll(self._config, self._open_with))
                self._bus = await self._open_own(CONNECT_SECONDS_MAX)
            except ConfigurationError:
                raise
            except NavarchError as error:
                log.warning("%s", error)
                if isinstance(error, LoginRefused) and await self._rejoined():
                    continue
                if not isinstance(error, Unavailable) or isinstance(error, LoginRefused):
                    await self._clock.sleep(retry * (0.5 + self._random()))
                    retry = min(retry * 2, RETRY_MAX_SECONDS)
            else:
                self._plan_renewal()
                return self._bus

    async def run(self) -> None:
        """Renew the credentials in time, for ever."""
        retry = RETRY_FIRST_SECONDS
        while True:
            left = self._due - self._clock.monotonic()
            await self._clock.sleep(min(CHECK_SECONDS, max(left, RENEW_SECONDS_MIN)))
            bus = self._bus
            if bus is None or not (bus.connected or bus.login_refused):
                continue
            if bus.connected and self._clock.monotonic() < self._due:
                retry = RETRY_FIRST_SECONDS
                continue
            renewed = await (self._renewed(bus) if bus.connected else self._rejoined())
            if renewed:
                self._plan_renewal()
            if not (renewed and bus.connected):
                # The client has new credentials with its next attempt, if that was the cause.
                await self._clock.sleep(retry * (0.5 + self._random()))
                retry = min(retry * 2, RETRY_MAX_SECONDS)

    def _plan_renewal(self) -> None:
        issued, expires = life(self._config.nats_creds_file)
        now = self._clock.now().timestamp()
        seconds = renewal_seconds(issued, expires, now, self._random()) if expires else float("inf")
        self._due = self._clock.monotonic() + seconds

    async def _renewed(self, bus: Bus) -> bool:
        try:
            await enrollment.renew(self._config, bus)
        except NavarchError as error:
            log.warning("the credentials are not renewed: %s", error)
            return False
        log.info("the credentials are renewed")
        return True

    async def _rejoined(self) -> bool:
        """Whether there are new credentials in place of those that the server refuses."""
        try:
            await enrollment.rejoin(self._config, self._open_with)
        except NavarchError as error:
            log.warning("%s", error)
            return False
        log.info("the credentials that the server refused are replaced")
        return True
