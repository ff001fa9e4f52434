"""An instance that a restored store has no record of is adopted, not launched a second time."""

from typing import Any

import pytest

from schemas.node_records import node_key
from schemas.topology import INSTANCES
from services.bus.nats.nats_bus import NatsBus
from services.provisioner.providers.fake import FakeFault
from tests.provisioner.provisioner_parts import fake, provision, steps


class Reconnected:
    """A bus that was connected so often."""

    def __init__(self, real: NatsBus) -> None:
        self._real = real
        self.connections = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_name_given_again_by_a_restored_store_is_not_launched_again(
    bus: NatsBus, idempotent: bool
) -> None:
    """The same replica runs on; another saga of the restored store brings the same node."""
    counted, provider = Reconnected(bus), fake(idempotent=idempotent)
    replica = steps(counted, provider)
    first = await replica.provision(provision("web-1"))
    await bus.purge(f"KV_{INSTANCES.name}", f"$KV.{INSTANCES.name}.>")
    counted.connections += 1
    again = await replica.provision(provision("web-1", saga="of-the-restored-store"))
    assert first.provider_id == again.provider_id
    assert provider.calls("provision") == ["web-1"]
    assert await bus.get(INSTANCES, node_key("web", "web-1")) is not None


async def test_each_connection_costs_one_list(bus: NatsBus) -> None:
    """A connection costs one list, however many instances are launched over it."""
    counted, provider = Reconnected(bus), fake()
    replica = steps(counted, provider)
    for number in range(1, 4):
        await replica.provision(provision(f"web-{number}"))
    assert len(provider.calls("list")) == 1
    counted.connections += 1
    for number in range(4, 6):
        await replica.provision(provision(f"web-{number}"))
    assert len(provider.calls("list")) == 2


async def test_nothing_is_launched_while_the_provider_cannot_be_listed(bus: NatsBus) -> None:
    """A failed list is tried again within the step, as any call is."""
    provider = fake()
    provider.inject_fault(FakeFault(call="list", times=2))
    await steps(bus, provider).provision(provision("web-1"))
    assert provider.calls("provision") == ["web-1"]
    assert len(provider.calls("list")) == 3
