"""An alert that is over is not sent, and the end of one that was sent is."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.event_subjects import Event, event_subject
from schemas.fleet_events import ConsumerLag
from schemas.messages import encode
from schemas.node_events import Lost, Returned, Terminated, Verdict
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import BreakerClosed, BreakerOpened, NodeReplaced, OperatorNeeded
from schemas.topology import NODES
from services.bus.port import Bus, Stored
from services.notifier.alerts.alert_dedup import EACH_MAX, QUIET_SECONDS
from services.notifier.alerts.alert_rules import Alert
from services.notifier.service import Alerting
from services.primitives.errors import Retry
from services.runtime.consumer_loop import Received

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NODE: dict[str, Any] = {"time": NOW, "pool": "training", "node": "n1"}
POOL: dict[str, Any] = {"time": NOW, "pool": "training"}
LAG: dict[str, Any] = {"time": NOW, "stream": "EVENTS", "durable": "d", "messages": 1, "seconds": 9}
LOST = Lost(id="lost-1", **NODE)
UNHEALTHY = Verdict(id="bad-1", **NODE, status="unhealthy", previous="healthy", reason="XID 79")
HEALTHY = Verdict(id="good-1", **NODE, status="healthy", previous="unhealthy")
LAGGING = ConsumerLag(id="lag-1", status="lagging", **LAG)
OPENED = BreakerOpened(id="opened-1", **POOL, unavailable=2, limit=2)
ENDS = [
    pytest.param(LOST, Returned(id="returned-1", **NODE), id="returned"),
    pytest.param(LOST, Terminated(id="gone-1", **NODE), id="terminated"),
    pytest.param(UNHEALTHY, HEALTHY, id="healthy"),
    pytest.param(OperatorNeeded(id="needed-1", **NODE), HEALTHY, id="no operator needed"),
    pytest.param(LAGGING, ConsumerLag(id="lag-2", status="caught-up", **LAG), id="caught up"),
    pytest.param(OPENED, BreakerClosed(id="closed-1", **POOL, unavailable=0, limit=2), id="closed"),
]


class Recorder:
    """An alert channel that keeps what it is sent."""

    name = "recorder"

    def __init__(self) -> None:
        self.sent: list[tuple[str, bool]] = []
        self.fails = False

    async def send(self, alert: Alert) -> None:
        if self.fails:
            raise RuntimeError("502")
        self.sent.append((alert.key, alert.resolved))

    async def close(self) -> None:
        pass


async def publish(bus: Bus, event: Event) -> Received[Any]:
    """Store an event, as its service does; the message that the notifier receives."""
    subject = event_subject(event)
    sequence = await bus.publish(subject, encode(event), msg_id=event.id)
    return Received(event, Stored(subject, b"", sequence, NOW))


async def alert(alerting: Alerting, received: Received[Any]) -> None:
    """Handle a message until it is settled, as its redeliveries would."""
    for deliveries in range(1, 4):
        again = Received(received.message, received.stored, deliveries=deliveries)
        try:
            return await alerting.handle(again)
        except Retry:
            continue
    raise AssertionError("held for ever")


@pytest.mark.parametrize(("begins", "ends"), ENDS)
async def test_what_is_over_is_not_sent(bus: Bus, begins: Event, ends: Event) -> None:
    """It was held, or the notifier was away: neither the beginning nor the end disturbs anyone."""
    channel = Recorder()
    alerting = Alerting([channel], bus)
    first, second = await publish(bus, begins), await publish(bus, ends)
    await alert(alerting, second)
    await alert(alerting, first)
    assert channel.sent == []


@pytest.mark.parametrize(("begins", "ends"), [each for each in ENDS if each.id != "terminated"])
async def test_the_end_of_what_was_sent_is_sent_once(bus: Bus, begins: Event, ends: Event) -> None:
    """Under the same key, by whichever replica receives it."""
    channel = Recorder()
    await alert(Alerting([channel], bus), await publish(bus, begins))
    ((key, resolved),) = channel.sent
    assert not resolved
    ended = await publish(bus, ends)
    await alert(Alerting([channel], bus), ended)
    await alert(Alerting([channel], bus), ended)
    assert channel.sent == [(key, False), (key, True)]


async def test_a_replacement_ends_every_alert_about_the_old_node(bus: Bus) -> None:
    """Each under its own key; a replacement that nothing was alerted about is no alert."""
    channel = Recorder()
    alerting = Alerting([channel], bus)
    replaced = NodeReplaced(id="r-1", **POOL, old_node="n1", new_node="n4", saga="replace-n1-1")
    other = NodeReplaced(id="r-2", **POOL, old_node="n2", new_node="n5", saga="replace-n2-1")
    for event in (LOST, UNHEALTHY, replaced, other):
        await alert(alerting, await publish(bus, event))
    keys = ["lost/training/n1", "health/training/n1"]
    assert channel.sent[:2] == [(key, False) for key in keys]
    assert sorted(channel.sent[2:]) == sorted((key, True) for key in keys)


async def test_an_end_waits_for_an_alert_that_is_being_sent(bus: Bus) -> None:
    """Else the alert would stay open: it was recorded and not yet delivered."""
    channel = Recorder()
    alerting = Alerting([channel], bus)
    first = await publish(bus, UNHEALTHY)
    channel.fails = True
    with pytest.raises(Retry, match="not delivered"):
        await alerting.handle(first)
    second = await publish(bus, HEALTHY)
    with pytest.raises(Retry, match="being sent"):
        await alerting.handle(second)
    # The first is over and not tried again; a channel may have it, so its end is sent.
    channel.fails = False
    await alerting.handle(first)
    await alerting.handle(second)
    assert channel.sent == [("health/training/n1", True)]


@pytest.mark.parametrize("state", ["registered", "leaving", "terminated"])
async def test_a_node_that_is_not_in_service_is_not_alerted_as_lost(bus: Bus, state: Any) -> None:
    """Its launch is being undone, or it is being removed: its saga reports what goes wrong."""
    channel = Recorder()
    record = NodeRecord(pool="training", node="n1", state=state)
    await bus.put(NODES, node_key("training", "n1"), encode(record))
    await alert(Alerting([channel], bus), await publish(bus, LOST))
    assert channel.sent == []


async def test_flapping_nodes_are_summarised_and_every_alert_ends(bus: Bus) -> None:
    """Twenty nodes, lost and returned four times: six alerts; the summary ends when all is well."""
    channel = Recorder()
    alerting = Alerting([channel], bus)
    for round_ in range(4):
        for fact in (Lost, Returned):
            for number in range(20):
                node = {**NODE, "node": f"n{number}"}
                event = fact(id=f"{fact.__name__}-{number}-{round_}", **node)
                await alert(alerting, await publish(bus, event))
    begun = [key for key, resolved in channel.sent if not resolved]
    assert len(begun) == EACH_MAX + 1
    lost = NodeRecord(pool="training", node="n7", state="active", lost=True)
    for record, resolved in ((lost, False), (replace(lost, lost=False), True)):
        await bus.put(NODES, node_key("training", "n7"), encode(record))
        await alerting.end_summaries(NOW + timedelta(seconds=2 * QUIET_SECONDS))
        assert ((begun[-1], True) in channel.sent) == resolved
    assert sorted(channel.sent) == sorted(
        [*((key, False) for key in begun), *((key, True) for key in begun)]
    )
