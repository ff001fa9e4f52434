"""Alerts about a store that takes no event and no record: sent to every channel without it."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from schemas.alert_records import Alert
from schemas.fleet_queries import CurrentFailure
from services.notifier.alerts.alert_channel import AlertChannel
from services.notifier.alerts.alert_rules import store_alert
from services.primitives.clock import Clock
from services.primitives.redaction import redacted
from services.runtime.failure_register import FailureRegister

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
SEND_SECONDS_MAX: Final = 30.0


class StoreAlerts:
    """Sends the beginning and the end of each such failure."""

    def __init__(
        self, channels: Sequence[AlertChannel], clock: Clock, failures: FailureRegister
    ) -> None:
        """Send what `failures` reports of the store to `channels`."""
        self._channels = channels
        self._clock = clock
        self._failures = failures
        self._sent: dict[tuple[int, str], tuple[CurrentFailure, str]] = {}
        """Channel and what fails -> the failure as it was sent, and the channel's receipt."""

    async def run(self) -> None:
        """Look for ever, for each channel: one that does not answer delays no other."""
        await asyncio.gather(*(self._serve_for_ever(each) for each in range(len(self._channels))))

    async def _serve_for_ever(self, number: int) -> None:
        while True:
            await self.serve(number)
            await self._clock.sleep(LOOK_SECONDS)

    async def serve(self, number: int) -> None:
        """Send what one channel lacks."""
        failing = [each for each in self._failures.current if each.failure == "store-unwritable"]
        found = {each.about: each for each in failing}
        for about, failure in found.items():
            if (number, about) not in self._sent:
                alert = store_alert(failure, self._clock.now(), failing=True)
                receipt = await self._send(number, alert, "")
                if receipt is not None:
                    self._sent[number, about] = failure, receipt
        for (channel, about), (failure, receipt) in list(self._sent.items()):
            if channel == number and about not in found:
                alert = store_alert(failure, self._clock.now(), failing=False)
                if await self._send(number, alert, receipt) is not None:
                    del self._sent[number, about]

    async def _send(self, number: int, alert: Alert, receipt: str) -> str | None:
        """Return the receipt; None: it was not sent."""
        channel = self._channels[number]
        try:
            async with asyncio.timeout(SEND_SECONDS_MAX):
                return (await channel.send(alert, receipt)).receipt
        except Exception as error:  # noqa: BLE001 - a channel may be a third party's code
            log.warning("%s cannot be sent an alert: %s", channel.name, redacted(str(error)))
            return None
