"""The interface of alert channels: plugins that deliver alerts to operators."""

from typing import NamedTuple, Protocol, runtime_checkable

from schemas.alert_records import Alert

RECEIPT_CHARS_MAX = 512


class AlertDelivery(NamedTuple):
    """Names what a channel returns for an alert that it has delivered."""

    receipt: str = ""
    """What it needs to update or end the alert: kept on the bus, at most RECEIPT_CHARS_MAX."""
    answer: str = ""
    """What the other side answered, for `navarch alerts test`."""


@runtime_checkable
class AlertChannel(Protocol):
    """A way to reach operators; constructed with `options=` and `clock=`, as notifiers are.

    One replica sends at a time, one alert after another. A crash may cause an alert to be sent
    twice with the same `alert.key` and `alert.event`; a channel that can deduplicate uses them.
    """

    @property
    def name(self) -> str:
        """The kind of channel, in logs."""

    @property
    def repeat_seconds(self) -> float:
        """Return after how long an open alert is sent again, as receivers forget; 0: never."""

    async def send(self, alert: Alert, receipt: str) -> AlertDelivery:
        """Deliver an alert, news of it, or its end (`alert.resolved`).

        `receipt`: what the last call for this alert returned; empty: this is the first.
        ChannelRefusalError: the other side refuses this alert; after any other exception the
        channel counts as down for a while. Either way it is sent again later.
        """

    async def close(self) -> None:
        """Close all connections."""


class ChannelRefusalError(Exception):
    """The other side refuses an alert; others may pass."""
