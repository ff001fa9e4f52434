"""Calls to a provider, bounded in time, with every failure turned into the taxonomy.

A plugin is somebody else's code: whatever it raises beside ProviderError, and its silence, count as
TRANSIENT and leave in doubt whether the call took effect. Lists are shared: callers that ask while
one is under way all get the next one, which began after each of them asked.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from schemas.launch_offers import Market
from schemas.offering_records import KnownPrice
from services.provisioner.provider_client.provider import (
    Bootstraps,
    Instance,
    Prices,
    Provider,
    ProvisionRequest,
    Reboots,
    Resumes,
)
from services.provisioner.provider_client.provider_errors import ProviderError

log = logging.getLogger(__name__)

T = TypeVar("T")

ReportUnknownError = Callable[[str, str, ProviderError], Awaitable[None]]
"""Tells people of an error without a row: of which provider, in which call."""


async def ignore_unknown_error(provider: str, call: str, error: ProviderError) -> None:
    """For whoever has nobody to tell."""
    del provider, call, error


class ProviderCalls:
    """One provider, called with time-outs."""

    def __init__(
        self,
        provider: Provider,
        *,
        call_timeout_seconds: float,
        tell: ReportUnknownError = ignore_unknown_error,
    ) -> None:
        """Give `terminate` and `list` so long; `provision` is told how long it has."""
        self.provider = provider
        self._tell = tell
        self._timeout = call_timeout_seconds
        self._running: asyncio.Task[list[Instance]] | None = None
        self._next: asyncio.Task[list[Instance]] | None = None

    async def provision(self, request: ProvisionRequest, *, timeout_seconds: float) -> Instance:
        """Make an instance, or raise ProviderError."""
        return await self._bounded("provision", self.provider.provision(request), timeout_seconds)

    async def terminate(self, provider_id: str) -> None:
        """Begin to remove an instance, or raise ProviderError."""
        await self._bounded("terminate", self.provider.terminate(provider_id), self._timeout)

    async def bootstrap(self, instance: Instance, *, timeout_seconds: float) -> None:
        """Bring the agent onto the instance where it does not come up by itself."""
        if isinstance(self.provider, Bootstraps):
            await self._bounded("bootstrap", self.provider.bootstrap(instance), timeout_seconds)

    @property
    def can_reboot(self) -> bool:
        """Whether it can reboot an instance."""
        return self.provider.capabilities.reboot and isinstance(self.provider, Reboots)

    async def reboot(self, instance: Instance) -> None:
        """Begin to reboot an instance, or raise ProviderError."""
        if not isinstance(self.provider, Reboots):
            raise ProviderError("INVALID", f"{self.provider.name} cannot reboot an instance")
        await self._bounded("reboot", self.provider.reboot(instance), self._timeout)

    async def resume(self) -> None:
        """Start what was stopped with the host."""
        if isinstance(self.provider, Resumes):
            await self._bounded("resume", self.provider.resume(), self._timeout)

    @property
    def has_prices(self) -> bool:
        """Whether its API tells prices, or where there is capacity."""
        return isinstance(self.provider, Prices)

    async def prices(self, instance_types: Sequence[str]) -> Sequence[KnownPrice]:
        """What it says of these types, or raise ProviderError; nothing where it tells nothing."""
        if not isinstance(self.provider, Prices):
            return ()
        return await self._bounded("prices", self.provider.prices(instance_types), self._timeout)

    async def list_instances(self) -> list[Instance]:
        """What the provider lists in a call that began no earlier than this one."""
        if self._next is None:
            self._next = asyncio.create_task(self._list_after(self._running))
        return await asyncio.shield(self._next)

    async def close(self) -> None:
        """End the lists that nobody waits for any more, then close the provider: in this order."""
        lists = [each for each in (self._running, self._next) if each is not None]
        for each in lists:
            each.cancel()
        await asyncio.gather(*lists, return_exceptions=True)
        await self.provider.close()

    async def _list_after(self, earlier: "asyncio.Task[list[Instance]] | None") -> list[Instance]:
        if earlier is not None:
            await asyncio.wait([earlier])
        self._running, self._next = self._next, None
        return await self._bounded("list", self.provider.list(), self._timeout)

    async def _bounded(self, what: str, call: Awaitable[T], timeout_seconds: float) -> T:
        name = self.provider.name
        try:
            async with asyncio.timeout(timeout_seconds):
                return await call
        except ProviderError as error:
            if error.unknown:
                await self._tell(name, what, error)
            raise
        except TimeoutError as error:
            raise ProviderError(
                "TRANSIENT", f"{name} did not answer {what} within {timeout_seconds:g} s"
            ) from error
        except Exception as error:
            # A plugin's defect must not end the service; it is shown, and tried again.
            log.exception("provider failed", extra={"provider": name, "call": what})
            kind = type(error).__name__
            failed = ProviderError(
                "TRANSIENT", f"{name} failed in {what}: {kind}: {error}", unknown=kind
            )
            await self._tell(name, what, failed)
            raise failed from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTraits:
    """What an allocation must know of a configured provider."""

    kind: str
    """Its plugin: `aws`."""
    region: str = ""
    """The only one it serves; empty: several, or none."""
    market: Market = "on-demand"
    """Of a launch that names none."""
    spot: bool = False
    """Whether it has a spot market."""


class Providers:
    """The configured providers, by name."""

    def __init__(
        self, calls: Mapping[str, ProviderCalls], kinds: Mapping[str, str] | None = None
    ) -> None:
        """Know these; `kinds`: their plugins, where they are called otherwise."""
        self.calls = dict(calls)
        self._kinds = dict(kinds or {})

    def traits(self) -> dict[str, ProviderTraits]:
        """What choosing between them must know."""
        return {
            name: ProviderTraits(
                kind=self._kinds.get(name, name),
                region=each.provider.capabilities.region,
                market=each.provider.capabilities.market,
                spot=each.provider.capabilities.spot,
            )
            for name, each in self.calls.items()
        }

    def get(self, name: str) -> ProviderCalls:
        """The provider of this name; INVALID where the configuration has none."""
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
