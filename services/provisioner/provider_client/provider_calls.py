"""Calls to a provider with a time limit, with every failure mapped to an error kind.

A plugin is third-party code: exceptions beside ProviderError, and calls without an answer, count as
TRANSIENT and leave in doubt whether the call took effect. Lists are shared: callers that arrive
during one list all get the next one, which starts afterwards.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import msgspec

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Market, Offering
from schemas.offering_records import OfferingPrice, OfferingQuota
from schemas.plugin_kinds import PROVIDER
from schemas.termination_orders import TerminationOrder
from schemas.value_limits import Address, Identifier, Plain
from services.primitives.coalesce import Joined
from services.primitives.plugin_boundary import GuardedPlugin, PluginFailedError
from services.primitives.plugin_contract import PluginContract, PluginSource
from services.primitives.redaction import redacted
from services.provisioner.provider_client.instance_list import InstanceList
from services.provisioner.provider_client.provider import (
    Bootstraps,
    ColdRestarts,
    HostReport,
    IdentifiesPods,
    Instance,
    JoinsFabric,
    NamesInstances,
    Prices,
    Provider,
    ProvisionRequest,
    QueuedNotice,
    QueuesNotices,
    Quotas,
    Reboots,
    ReportsFaultyHosts,
    ReportsHosts,
    Resumes,
)
from services.provisioner.provider_client.provider_errors import ProviderError

log = logging.getLogger(__name__)

LIST_REST_SECONDS_MAX: Final = 5.0
FAULTY_HOST_SECONDS_MAX: Final = 120.0
"""How long the removal of an instance waits at most for the report of its host."""

CONTRACT: Final = PluginContract(
    kind=PROVIDER,
    protocols=(
        *(Provider, NamesInstances, Bootstraps, Reboots, ColdRestarts, ReportsHosts, QueuesNotices),
        *(ReportsFaultyHosts, Prices, Quotas, JoinsFabric, IdentifiesPods, Resumes),
    ),
    errors=(ProviderError,),
)

ReportUnknownError = Callable[[str, str, ProviderError], Awaitable[None]]
"""Reports an error without a table row, with its provider and call."""


async def ignore_unknown_error(provider: str, call: str, error: ProviderError) -> None:
    """Report nothing about the error."""
    del provider, call, error


class ProviderCalls:
    """One provider, called with time limits."""

    def __init__(
        self,
        provider: Provider,
        *,
        call_timeout_seconds: float,
        report_unknown: ReportUnknownError = ignore_unknown_error,
        plugin: GuardedPlugin | None = None,
    ) -> None:
        """Allow `call_timeout_seconds` for each call, except where the call names its own.

        `plugin`: the guard of `provider`; None: it is called on the event loop of its caller.
        """
        self.provider = provider
        self.plugin = plugin or GuardedPlugin(CONTRACT, provider, PluginSource(name=provider.name))
        self._report_unknown = report_unknown
        self._timeout = call_timeout_seconds
        self._lists = Joined(self._list, rest_seconds_max=LIST_REST_SECONDS_MAX)

    async def provision(self, request: ProvisionRequest, *, timeout_seconds: float) -> Instance:
        """Launch an instance, or raise ProviderError."""
        made = await self._call("provision", request, seconds=timeout_seconds)
        return self._usable(made)

    def canonical_id(self, provider_id: str) -> str:
        """Return the form of an ID by which this provider's instances are compared."""
        if provider_id and isinstance(self.provider, NamesInstances):
            return self.plugin.immediately("canonical_id", provider_id, otherwise=provider_id)
        return provider_id

    def canonical_record(self, record: InstanceRecord) -> InstanceRecord:
        """Return a record of an earlier release or answer with its IDs in that form."""
        ids = self.canonical_id(record.provider_id), tuple(map(self.canonical_id, record.ordered))
        if ids == (record.provider_id, record.ordered):
            return record
        return msgspec.structs.replace(record, provider_id=ids[0], ordered=ids[1])

    async def terminate(self, order: TerminationOrder, seconds_max: float = inf) -> None:
        """Begin to remove the instances of an order, or raise the first one's ProviderError.

        The limit is the whole order's, and an ID that is not answered delays no other.
        `seconds_max`: after that what the order was given for may no longer hold.
        """
        timeout = min(self._timeout, seconds_max)
        calls = [self._call("terminate", each, seconds=timeout) for each in order.provider_ids]
        if len(calls) == 1:
            await calls[0]
            return
        for failed in await asyncio.gather(*calls, return_exceptions=True):
            if failed is not None:
                raise failed

    async def bootstrap(self, instance: Instance, *, timeout_seconds: float) -> None:
        """Start the agent on the instance, if it does not start by itself."""
        if isinstance(self.provider, Bootstraps):
            await self._call("bootstrap", instance, seconds=timeout_seconds)

    @property
    def can_reboot(self) -> bool:
        """Return whether it can reboot an instance."""
        return self.provider.capabilities.reboot and isinstance(self.provider, Reboots)

    async def reboot(self, instance: Instance) -> None:
        """Begin to reboot an instance, or raise ProviderError."""
        if not isinstance(self.provider, Reboots):
            raise ProviderError("INVALID", f"{self.provider.name} cannot reboot an instance")
        await self._call("reboot", instance, seconds=self._timeout)

    def can_restart_cold(self, instance: Instance) -> bool:
        """Return whether an instance's machine can be switched off and on."""
        return isinstance(self.provider, ColdRestarts) and self.plugin.immediately(
            "can_restart_cold", instance, otherwise=False
        )

    async def restart_cold(self, instance: Instance, *, timeout_seconds: float) -> None:
        """Switch an instance's machine off and on, or raise ProviderError."""
        if not isinstance(self.provider, ColdRestarts):
            raise ProviderError("INVALID", f"{self.provider.name} cannot switch a machine off")
        await self._call("restart_cold", instance, seconds=timeout_seconds)

    @property
    def reports_hosts(self) -> bool:
        """Return whether its API reports events of its hosts."""
        return isinstance(self.provider, ReportsHosts)

    async def report_hosts(self) -> HostReport:
        """Return what it reports of its hosts, or raise ProviderError."""
        if not isinstance(self.provider, ReportsHosts):
            return HostReport()
        found: HostReport = await self._call("report_hosts", seconds=self._timeout)
        return found

    @property
    def queues_notices(self) -> bool:
        """Return whether it has a queue of notices."""
        has_queue = self.provider.capabilities.queued_notices
        return has_queue and isinstance(self.provider, QueuesNotices)

    async def queued_notices(self) -> Sequence[QueuedNotice]:
        """Return some messages of its queue, or raise ProviderError."""
        if not isinstance(self.provider, QueuesNotices):
            return ()
        found: Sequence[QueuedNotice] = await self._call("queued_notices", seconds=self._timeout)
        return found

    async def delete_notices(self, receipts: Sequence[str]) -> None:
        """Remove messages from its queue, or raise ProviderError."""
        if isinstance(self.provider, QueuesNotices):
            await self._call("delete_notices", receipts, seconds=self._timeout)

    async def report_faulty_host(self, provider_id: str, fault: str) -> bool:
        """Report an instance's host as faulty, or raise ProviderError; False: it takes none."""
        if not isinstance(self.provider, ReportsFaultyHosts):
            return False
        return bool(
            await self._call(
                "report_faulty_host", provider_id, fault, seconds=FAULTY_HOST_SECONDS_MAX
            )
        )

    async def resume(self) -> None:
        """Start the instances that stopped with the host."""
        if isinstance(self.provider, Resumes):
            await self._call("resume", seconds=self._timeout)

    @property
    def reports_offerings(self) -> bool:
        """Return whether its API reports prices, capacity or quotas."""
        return isinstance(self.provider, Prices | Quotas)

    async def prices(self, instance_types: Sequence[str]) -> Sequence[OfferingPrice]:
        """Return its prices of these types, or raise ProviderError; empty if it reports none."""
        if not isinstance(self.provider, Prices):
            return ()
        found: Sequence[OfferingPrice] = await self._call(
            "prices", instance_types, seconds=self._timeout
        )
        return found

    async def quotas(self, offerings: Sequence[Offering]) -> Sequence[OfferingQuota]:
        """Return the quotas of these offerings, or raise ProviderError; empty if it has none."""
        if not isinstance(self.provider, Quotas):
            return ()
        found: Sequence[OfferingQuota] = await self._call(
            "quotas", offerings, seconds=self._timeout
        )
        return found

    async def node_of_pod(self, token: str) -> str:
        """Return the instance on which an agent's pod runs, or raise ProviderError."""
        if not isinstance(self.provider, IdentifiesPods):
            raise ProviderError("INVALID", f"{self.provider.name} has no agents in pods")
        found: str = await self._call("node_of_pod", token, seconds=self._timeout)
        return found

    async def list_instances(self) -> InstanceList:
        """Return the provider's list, from a call that started no earlier than this one.

        It is shared with other callers; a list is as long apart from the next as it takes.
        """
        return await self._lists("")

    async def close(self) -> None:
        """Cancel running lists, then close the provider."""
        await self._lists.close()
        await self.plugin.close()

    async def _list(self, _: str) -> InstanceList:
        found = await self._call("list", seconds=self._timeout)
        return InstanceList(map(self._usable, found))

    def _usable(self, instance: Instance) -> Instance:
        found = usable(instance, self.provider.name)
        canonical = self.canonical_id(found.provider_id)
        if canonical == found.provider_id:
            return found
        return msgspec.structs.replace(found, provider_id=canonical)

    async def _call(self, method: str, *arguments: Any, seconds: float) -> Any:
        name = self.provider.name
        try:
            return await self.plugin.call(method, *arguments, seconds=seconds)
        except ProviderError as error:
            error.reword(redacted)
            if error.unknown:
                await self._report_unknown(name, method, error)
            raise
        except PluginFailedError as error:
            # A defect of a plugin must not end the service; it is reported, and tried again.
            unknown = "" if error.kind in ("timeout", "out") else error.kind
            failed = ProviderError("TRANSIENT", str(error), unknown=unknown)
            if unknown:
                await self._report_unknown(name, method, failed)
            raise failed from error


def usable(instance: Instance, provider: str) -> Instance:
    """The instance as it can be recorded: what no record may contain counts as not reported."""
    if not _is(Identifier, instance.provider_id):
        raise ProviderError(
            "TRANSIENT",
            f"{provider} reports an instance with the ID {instance.provider_id[:80]!r}, which is "
            "not one: look at its API's answer",
        )
    kinds = {"region": Plain, "zone": Plain, "host": Identifier, "address": Address}
    bad = {name: "" for name, kind in kinds.items() if not _is(kind, getattr(instance, name))}
    if bad:
        log.warning(
            "what a provider reports of an instance cannot be used",
            extra={"provider": provider, "id": instance.provider_id, "fields": ", ".join(bad)},
        )
    return msgspec.structs.replace(instance, **bad) if bad else instance


def _is(kind: Any, value: str) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTraits:
    """The traits are what an allocation needs to know of a configured provider."""

    kind: str
    """Its plugin: `aws`."""
    region: str = ""
    """The only one it serves; empty: several, or none."""
    market: Market = "on-demand"
    """The market of a launch that names none."""
    spot: bool = False
    """Whether it has a spot market."""
    reserved: bool = False
    """Whether its options name reserved capacity."""
    fixed_capacity: bool = False
    """Whether it has so many machines, of which one that leaves is room for the next."""


class Providers:
    """Holds the configured providers, by name."""

    def __init__(
        self, calls: Mapping[str, ProviderCalls], kinds: Mapping[str, str] | None = None
    ) -> None:
        """`kinds`: the plugin of each provider whose name differs from it."""
        self.calls = dict(calls)
        self._kinds = dict(kinds or {})

    def traits(self) -> dict[str, ProviderTraits]:
        """Return what an allocation needs to know of each."""
        return {
            name: ProviderTraits(
                kind=self._kinds.get(name, name),
                region=each.provider.capabilities.region,
                market=each.provider.capabilities.market,
                spot=each.provider.capabilities.spot,
                reserved=each.provider.capabilities.reserved,
                fixed_capacity=each.provider.capabilities.fixed_capacity,
            )
            for name, each in self.calls.items()
        }

    def get(self, name: str) -> ProviderCalls:
        """Return the provider of this name; INVALID if none is configured."""
        try:
            return self.calls[name]
        except KeyError:
            known = ", ".join(sorted(self.calls)) or "none"
            raise ProviderError(
                "INVALID", f"no provider {name!r} under `providers:` (known: {known}); add it"
            ) from None

    async def close(self) -> None:
        """Close every provider."""
        for each in self.calls.values():
            await each.close()
