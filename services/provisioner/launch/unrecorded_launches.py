"""Finds instances that were launched before the store was set back, and have no record any more.

A restored store gives the name of such an instance again, and nothing in it says so. A server whose
store is restored has lost every connection, so each provider is listed once after each connection:
what is in that list is adopted and not launched a second time.
"""

from schemas.instance_records import InstanceRecord
from services.bus.port import Bus
from services.provisioner.provider_client.provider_calls import ProviderCalls

Names = frozenset[tuple[str, str]]
"""Pool and name of instances."""


class UnrecordedLaunches:
    """Remembers which instances each provider had when the bus was last connected."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._listed: dict[str, tuple[int, Names]] = {}
        """Provider -> which connection it was listed after, and what it had."""

    async def may_include(self, record: InstanceRecord, calls: ProviderCalls) -> bool:
        """Return whether an instance of this name may exist; ProviderError where it is unknown."""
        connection, provider = self._bus.connections, calls.provider.name
        known = self._listed.get(provider)
        if known is None or known[0] != connection:
            names = frozenset((each.pool, each.name) for each in await calls.list_instances())
            known = self._listed[provider] = connection, names
        return (record.pool, record.instance) in known[1]
