"""Reports provider errors that have no row in the error table: once for each code.

Such an error is treated as transient and tried again; only an operator can judge whether that is
right. Reported codes are read back from the event log, so that a restart does not repeat them.
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
CODES_MAX: Final = 1_000
"""Codes reported in all; with more, something else than an error table is wrong."""
ID_CHARS: Final = 16


class UnknownErrors:
    """The codes that have been reported."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._reported: set[tuple[str, str]] | None = None

    async def report(self, provider: str, call: str, error: ProviderError) -> None:
        """Publish the first error of each code; an unreachable bus is only logged."""
        code = error.unknown[:CODE_CHARS_MAX]
        try:
            reported = await self._read_reported()
            if (provider, code) in reported or len(reported) >= CODES_MAX:
                return
            # Before the publish: calls that fail together report once.
            reported.add((provider, code))
            try:
                await self._publish(provider, code, call, error)
            except BusError:
                reported.discard((provider, code))
                raise
        except BusError as reason:
            log.warning(
                "an unknown error could not be reported",
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
        log.warning("an error without a table row", extra={"provider": provider, "code": code})
        await publish_event(self._bus, event)

    async def _read_reported(self) -> set[tuple[str, str]]:
        if self._reported is None:
            stored = await self._bus.read(EVENTS.name, SUBJECT)
            events = (fleet_codec.decode(each.data) for each in stored)
            found = {(e.provider, e.code) for e in events if isinstance(e, UnknownError)}
            # A concurrent call may have read them meanwhile, and added one.
            self._reported = found if self._reported is None else self._reported
        return self._reported
