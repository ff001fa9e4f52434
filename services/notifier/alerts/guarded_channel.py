"""Puts an alert channel behind the boundary of plugins."""

from typing import Final

from schemas.alert_records import Alert
from schemas.plugin_kinds import ALERT_CHANNEL
from services.notifier.alerts.alert_channel import (
    AlertChannel,
    AlertDelivery,
    ChannelRefusalError,
)
from services.primitives.errors import ConfigurationError
from services.primitives.plugin_boundary import GuardedPlugin, PluginFailedError
from services.primitives.plugin_contract import PluginContract

CONTRACT: Final = PluginContract(
    kind=ALERT_CHANNEL,
    protocols=(AlertChannel,),
    errors=(ChannelRefusalError,),
    passes=True,
)


class GuardedChannel:
    """A channel, whatever its plugin does."""

    def __init__(self, plugin: GuardedPlugin) -> None:
        """Read what does not change: the plugin's attributes are asked for here alone."""
        self._plugin = plugin
        try:
            self.name = str(plugin.plugin.name)
            self.repeat_seconds = max(float(plugin.plugin.repeat_seconds), 0.0)
        except Exception as error:
            problem = f"{plugin.source.text(plugin.kind)} has no name or repeat_seconds: {error}"
            raise ConfigurationError(problem) from error

    async def send(self, alert: Alert, receipt: str) -> AlertDelivery:
        """Deliver an alert, news of it, or its end.

        A plugin that returned, and not a delivery, has sent the alert: it is reported, and the
        alert is not sent again, which would page people for ever.
        """
        try:
            sent: AlertDelivery = await self._plugin.call("send", alert, receipt)
        except PluginFailedError as error:
            if error.kind == "answer":
                return AlertDelivery()
            raise
        return sent

    async def close(self) -> None:
        """Close all connections."""
        await self._plugin.close()
