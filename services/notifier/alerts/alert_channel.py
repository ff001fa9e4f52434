"""The interface of alert channels: plugins that deliver alerts to operators."""

from typing import Protocol, runtime_checkable

from services.notifier.alerts.alert_rules import Alert


@runtime_checkable
class AlertChannel(Protocol):
    """A way to reach operators; constructed with `options=` and `clock=`, as notifiers are.

    A crash may cause an alert to be sent twice with the same `alert.key`; a channel that can
    deduplicate uses it.
    """

    @property
    def name(self) -> str:
        """The name in logs."""
        ...

    async def send(self, alert: Alert) -> None:
        """Deliver one alert; after an exception it is sent again later."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
