"""A node that floods: other nodes are evaluated meanwhile, and its own serious fault is too."""

import asyncio
from collections.abc import Awaitable, Callable

from services.runtime.sender_quota import SENDER_MAX
from tests.health_monitor.conftest import Monitor, World, make_fault
from tests.support.settling import without_shares

FLOOD = 1_500


async def test_a_flooding_node_delays_no_other_and_hides_no_fault_of_its_own(
    world: World, start: Callable[..., Awaitable[Monitor]]
) -> None:
    """All different, so that none equals another; the GPU that falls off the bus is the last."""
    await without_shares(world.bus)
    flood = [make_fault(f"flood-{n}", node="loud", code=1_000 + n) for n in range(FLOOD)]
    await asyncio.gather(*(world.publish(each) for each in flood))
    await world.publish(make_fault("serious", node="loud", code=79))
    await world.publish(make_fault("other", node="quiet", code=79))
    monitor = await start()
    await world.settled()
    for node in ("loud", "quiet"):
        verdicts = await world.events(node=node)
        assert [each.fault for each in verdicts if each.status == "unhealthy"] == [
            "serious" if node == "loud" else "other"
        ]
    withheld = monitor.context.instruments.handled.labels("health-events", "withheld")
    # The first beyond the quota is more serious than none.
    assert withheld._value.get() == FLOOD - SENDER_MAX - 1
