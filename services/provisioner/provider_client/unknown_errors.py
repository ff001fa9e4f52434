"""Tells people of errors that have no row in a provider's table: once for each code.

Such an error is taken for a passing one and tried again; whether that is right only a person can
say. What was told is read back from the log, so that a restart does not tell it again.
"""

import hashlib
import logging
from typing import Final

from schemas import subjects
from schemas.fleet_events import FACTS, UnknownError, fleet_codec
from schemas.topology import EVENTS
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import BusError
from services.provisioner.provider_client.provider_errors import ProviderError
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

SUBJECT: Final = subjects.fleet_event(FACTS[UnknownError])
CODE_CHARS_MAX: Final = 200
MESSAGE_CHARS_MAX: Final = 500
TOLD_MAX: Final = 1_000
"""Codes told in all; beyond that somebody else than an error table is wrong."""
ID_CHARS: Final = 16


class UnknownErrors:
    """What has been told."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        """Tell over this bus."""
        self._bus = bus
        self._clock = clock
        self._told: set[tuple[str, str]] | None = None

    async def tell(self, provider: str, call: str, error: ProviderError) -> None:
        """Publish it if it is the first of its code; a bus that is away is no reason to fail."""
        code = error.unknown[:CODE_CHARS_MAX]
        try:
            told = await self._known()
            if (provider, code) in told or len(told) >= TOLD_MAX:
                return
            # Before the publish: calls that fail together tell once.
            told.add((provider, code))
            try:
                await self._publish(provider, code, call, error)
            except BusError:
                told.discard((provider, code))
                raise
        except BusError as reason:
            log.warning(
                "an unknown error is not told",
                extra={"provider": provider, "code": code, "reason": str(reason)},
            )

    async def _publish(self, provider: str, code: str, call: str, error: ProviderError) -> None:
        # A code may hold whatever a provider writes; the id must not.
        about = hashlib.sha256(f"{provider}/{code}".encode()).hexdigest()[:ID_CHARS]
        event = UnknownError(
            id=f"unknown-error-{about}",
            time=self._clock.now(),
            provider=provider,
            code=code,
            call=call,
            message=error.message[:MESSAGE_CHARS_MAX],
            treated_as=error.kind,
        )
        log.warning("an error without a row", extra={"provider": provider, "code": code})
        await publish_event(self._bus, event)

    async def _known(self) -> set[tuple[str, str]]:
        if self._told is None:
            stored = await self._bus.read(EVENTS.name, SUBJECT)
            events = (fleet_codec.decode(each.data) for each in stored)
            found = {(e.provider, e.code) for e in events if isinstance(e, UnknownError)}
            # Somebody else may have read them meanwhile, and told one more.
            self._told = found if self._told is None else self._told
        return self._told
