"""What calls to a provider leave behind when a service ends."""

import asyncio

import pytest

from services.provisioner.provider_client.provider import Instance
from services.provisioner.provider_client.provider_calls import ProviderCalls, Providers


class Slow:
    """A provider whose list never comes; notes what happens to it."""

    name = "slow"

    def __init__(self) -> None:
        self.listing = asyncio.Event()
        self.seen: list[str] = []

    async def list(self) -> list[Instance]:
        """Never answer."""
        self.listing.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.seen.append("list ended")
        return []

    async def close(self) -> None:
        """Note it."""
        self.seen.append("closed")


async def test_a_list_without_a_caller_ends_before_its_provider_is_closed() -> None:
    """The caller was cancelled and the list continued for others: it must not reconnect."""
    provider = Slow()
    calls = ProviderCalls(provider, call_timeout_seconds=60.0)  # type: ignore[arg-type]
    asking = [asyncio.create_task(calls.list_instances()) for _ in range(2)]
    await provider.listing.wait()
    asking.append(asyncio.create_task(calls.list_instances()))
    await asyncio.sleep(0)
    for each in asking:
        each.cancel()
    await asyncio.wait(asking)
    await Providers({"slow": calls}).close()
    assert ["list ended", "closed"] == provider.seen
    with pytest.raises(asyncio.CancelledError):
        asking[0].result()
