"""Calls to a provider end within their limits, and leave nothing behind when a service ends."""

import asyncio

import pytest

from schemas.termination_orders import Authority, TerminationOrder
from services.provisioner.provider_client.provider import Instance
from services.provisioner.provider_client.provider_calls import ProviderCalls, Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.simulator.engine.virtual_time import VirtualClock, run


class Slow:
    """A provider whose list never comes; notes what happens to it."""

    name = "slow"

    def __init__(self) -> None:
        self.listing = asyncio.Event()
        self.seen: list[str] = []

    async def list(self) -> list[Instance]:
        """Leave the list unanswered for ever."""
        self.listing.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.seen.append("list ended")
        return []

    async def close(self) -> None:
        """Note that it was closed."""
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


class Hanging:
    """A provider that does not answer about some instances."""

    name = "hanging"

    def __init__(self, *hanging: str) -> None:
        self.hanging = hanging
        self.accepted: list[str] = []

    async def terminate(self, provider_id: str) -> None:
        """Accept it, or never answer."""
        if provider_id in self.hanging:
            await asyncio.Event().wait()
        self.accepted.append(provider_id)


@pytest.mark.parametrize(
    ("hanging", "accepted"),
    [((), ["i-1", "i-2", "i-3"]), (("i-1", "i-2"), ["i-3"]), (("i-3",), ["i-1", "i-2"])],
)
def test_the_limit_of_an_order_is_that_of_all_its_instances(
    hanging: tuple[str, ...], accepted: list[str]
) -> None:
    """A proof holds for 20 s, whatever the number of its IDs; the others are asked for anyway."""
    order = TerminationOrder(
        provider="hanging",
        provider_ids=("i-1", "i-2", "i-3"),
        key="p.n",
        node="n",
        authority=Authority(kind="proof"),
    )

    async def work() -> None:
        provider = Hanging(*hanging)
        calls = ProviderCalls(provider, call_timeout_seconds=60.0)  # type: ignore[arg-type]
        began = VirtualClock().monotonic()
        outcome = await asyncio.gather(calls.terminate(order, 20.0), return_exceptions=True)
        assert isinstance(outcome[0], ProviderError if hanging else type(None))
        assert VirtualClock().monotonic() - began == (20.0 if hanging else 0.0)
        assert provider.accepted == accepted

    run(work)
