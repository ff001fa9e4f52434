"""Orders in the names of the gateway's callers: tried with each role's credentials on a server."""

import msgspec
import pytest

from schemas import operations, subjects
from schemas.hardware_denylist import HardwareForget, HardwareRecord
from schemas.permissions import GATEWAY
from services.bus.nats.nats_bus import NatsBus
from services.fleet_client.fleet_client import FleetClient
from tests.gateway.order_answers import Orders
from tests.support.secured import Secured

ORDERS = [each.name for each in operations.ORDERS if not each.is_query]


async def test_the_gateway_orders_as_itself_and_hears_no_order(secured: Secured) -> None:
    """The gateway gives no order in the name of a user of the bus either."""
    own = [("publish", subjects.order(each, GATEWAY)) for each in ORDERS]
    refused = [
        *(("publish", subjects.order(each, "bob")) for each in ORDERS),
        *(("subscribe", subjects.order_wildcard(each)) for each in ORDERS),
    ]

    assert set(refused) == await secured.refused(GATEWAY, [*own, *refused])


@pytest.mark.parametrize("who", ["viewer", "operator", "scheduler", "agent:training/n1"])
async def test_no_other_role_orders_as_the_gateway(secured: Secured, who: str) -> None:
    """A forged order would count as given by the user whom it names."""
    forged = [("publish", subjects.order(each, GATEWAY)) for each in ORDERS]

    assert set(forged) == await secured.refused(who, forged)


async def test_the_service_sees_for_whom_the_gateway_orders(secured: Secured) -> None:
    """The user's name reaches the service across the accounts of a real server."""
    orders = Orders()
    manager = await NatsBus.connect(secured.options("pool-manager"))
    name = subjects.order_wildcard("hardware-forget")
    await manager.serve("pool-manager", "a small one", {name: orders.endpoints()[name]})
    gateway = await NatsBus.connect(secured.options(GATEWAY))
    request = HardwareForget(kind="gpu", value="GPU-1", by="bob")
    [record] = await FleetClient(gateway, user=GATEWAY).perform(operations.FORGET_HARDWARE, request)
    for each in (manager, gateway):
        await each.close()

    assert isinstance(record, HardwareRecord)
    assert [("hardware-forget", "bob via gateway", msgspec.to_builtins(request))] == [
        (order, by, msgspec.to_builtins(asked)) for order, by, asked in orders.asked
    ]
