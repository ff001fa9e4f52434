"""One node's flood: nothing of others waits behind more than a share of it."""

from collections.abc import Awaitable, Callable

from schemas import subjects
from schemas.topology import EVENTS, FACTS_WAITING_MAX
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Stored
from services.health_monitor.fact_intake import INTERVAL_SECONDS
from tests.health_monitor.conftest import Monitor, World, make_fault

FLOOD = 20_000
LOUD = subjects.node_event("training", "loud", "fault")


async def flooded(bus: NatsBus, subject: str, count: int) -> None:
    """Publish so many messages without waiting for an answer, as fast as the connection takes."""
    for number in range(count):
        await bus._client.publish(subject, b"%d" % number, headers={"Nats-Msg-Id": f"f-{number}"})
    await bus._client.flush(timeout=60)


def seconds_of(stored: list[Stored]) -> float:
    """Return how long the messages took to be stored."""
    return (stored[-1].time - stored[0].time).total_seconds()


async def test_a_flood_holds_up_no_fault_of_another_node(
    world: World, bus: NatsBus, start: Callable[..., Awaitable[Monitor]]
) -> None:
    """One share of the flood is judged before the other's fault, counted and not timed.

    The flood is what an agent's credentials permit: distinct messages, none acknowledged.
    """
    await start()
    await flooded(bus, LOUD, FLOOD)
    await world.publish(make_fault("other", node="quiet", code=79))
    await world.settled()
    stored = await bus.read(EVENTS.name, subjects.NODE_EVENTS)
    before = [each.subject for each in stored].index(
        subjects.node_event("training", "quiet", "fault")
    )
    (verdict,) = await world.events(node="quiet")
    shares = 2 + seconds_of(stored[: before + 1]) / INTERVAL_SECONDS
    assert verdict.status == "unhealthy"
    assert before <= FACTS_WAITING_MAX * shares
    assert before < FLOOD / 20
