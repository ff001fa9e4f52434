"""Event sinks on a real nats-server, to a real HTTP server that reads with the CloudEvents SDK."""

import asyncio
import hashlib
import hmac
import json
from typing import Any

import pytest
from msgspec.structs import replace

from schemas import subjects
from schemas.duration import Duration
from schemas.event_sink_settings import EventSinkSpec
from schemas.fleet_events import FailureKind, ServiceFailure
from schemas.fleet_queries import CurrentFailure
from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.saga_params import LaunchSpec
from schemas.topology import EVENTS, NODES, SINKS
from services.bus.nats.nats_bus import NatsBus
from services.notifier.alerts.alert_rules import alert_of, ended_keys
from services.notifier.event_sinks import event_sinks
from services.primitives.errors import Refused
from tests.notifier.sink_site import (
    EventReceiver,
    FastClock,
    SinkReplica,
    delivering,
    event_receiver,
    http,
    publish,
    verdict,
)
from tests.redteam.test_account_walls import plain
from tests.support.secured import Secured

SECRET = "0123456789abcdef-secret"
HOUR = 3_600.0
COUNTER = "navarch_sink_events_total"


async def created(bus: NatsBus, name: str) -> dict[str, Any]:
    """Wait until a sink's durable exists; the server's account of it."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await bus.admin(f"CONSUMER.INFO.{EVENTS.name}.sink-{name}", {})
            except Refused:
                await asyncio.sleep(0.02)


async def settled(bus: NatsBus, name: str) -> None:
    """Wait until nothing waits for a sink."""
    async with asyncio.timeout(60):
        while True:
            info = await created(bus, name)
            if info["num_pending"] + info["num_ack_pending"] == 0:
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("mode", ["structured", "binary", "batch"])
async def test_each_mode_is_what_the_specification_says(bus: NatsBus, mode: str) -> None:
    """Content type, required attributes, extensions, data; read by the SDK, and signed."""
    async with event_receiver() as receiver:
        spec = http(receiver.url, mode=mode, secret=SECRET, headers={"Authorization": "Bearer abc"})
        async with delivering(bus, audit=spec):
            await created(bus, "audit")
            events = [verdict(1, status="degraded"), verdict(2), replace(verdict(3), id='a "b" %ä')]
            await publish(bus, *events)
            await receiver.until(lambda: len(receiver.ids) == 3)
            await settled(bus, "audit")
    assert receiver.ids == [each.id for each in events]
    kinds = {
        "structured": "application/cloudevents+json",
        "binary": "application/json",
        "batch": "application/cloudevents-batch+json",
    }
    for headers, body in zip(receiver.headers, receiver.bodies, strict=True):
        assert headers["content-type"] == kinds[mode]
        assert headers["authorization"] == "Bearer abc"
        signed = f"{headers['x-navarch-timestamp']}.".encode() + body
        digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
        assert headers["x-navarch-signature"] == f"sha256={digest}"
    found = [each for request in receiver.requests for each in request]
    for sent, got in zip(events, found, strict=True):
        assert got.get_specversion() == "1.0"
        assert got.get_type() == "io.navarch.health_monitor.event.v1.verdict"
        assert got.get_source() == "/navarch/tests"
        assert got.get_subject() == "training/n1"
        assert got.get_time() == sent.time
        assert got.get_datacontenttype() == "application/json"
        assert got.get_data() == json.loads(encode(sent))
    sequences = [each.get_extension("sequence") for each in found]
    assert sequences == sorted(set(sequences))
    assert found[0].get_extension("severity") == "warning"


async def test_after_an_hour_without_receiver_everything_is_delivered_once_in_order(
    bus: NatsBus,
) -> None:
    """Reported meanwhile, in metrics and as an alert, and the end of it too."""
    clock = FastClock(600)
    async with event_receiver() as receiver:
        receiver.down = True
        async with delivering(bus, clock, audit=http(receiver.url)) as replica:
            await created(bus, "audit")
            began = clock.monotonic()
            for number in range(12):
                await publish(bus, verdict(number, node=f"n{number % 3}"))
                await clock.sleep(HOUR / 12)
            hours = (clock.monotonic() - began) / HOUR
            assert hours >= 1
            assert receiver.ids == []
            assert receiver.tries < 80 * hours
            (failure,) = replica.failures.current
            assert (failure.failure, failure.about) == ("sink-undelivered", "event sink audit")
            assert "503" in failure.reason
            assert replica.metric("navarch_sink_pending_events", sink="audit") == 12
            assert replica.metric("navarch_sink_oldest_seconds", sink="audit") > HOUR / 2
            receiver.down = False
            await receiver.until(lambda: len(receiver.ids) == 12)
            await settled(bus, "audit")
            await ended(replica)
            assert replica.metric("navarch_sink_pending_events", sink="audit") == 0
            sent = replica.metric(COUNTER, sink="audit", outcome="delivered")
            assert sent == 12
    assert receiver.ids == [f"verdict-n{number % 3}-{number}" for number in range(12)]


async def ended(replica: SinkReplica) -> None:
    """Wait until nothing fails."""
    async with asyncio.timeout(60):
        while replica.failures.current:
            await asyncio.sleep(0.02)


async def failing(replica: SinkReplica, kind: str, says: str = "") -> CurrentFailure:
    """Wait until something fails, and says so; what it is."""
    async with asyncio.timeout(60):
        while True:
            for each in replica.failures.current:
                if each.failure == kind and says in each.reason:
                    return each
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("mode", ["structured", "batch"])
async def test_content_that_is_refused_is_counted_reported_and_skipped(
    bus: NatsBus, mode: str
) -> None:
    """The events around it are delivered, of the same batch too."""
    clock = FastClock(600)
    async with event_receiver() as receiver:

        def answer(events: list[Any]) -> int:
            return 422 if any(each.get_id().endswith("-2") for each in events) else 200

        receiver.answer = answer
        async with delivering(bus, clock, audit=http(receiver.url, mode=mode)) as replica:
            await created(bus, "audit")
            await publish(bus, *(verdict(number) for number in range(5)))
            await receiver.until(lambda: len(set(receiver.ids)) == 4)
            await settled(bus, "audit")
            failure = await failing(replica, "sink-refused")
            assert "1 events were skipped" in failure.reason
            assert "verdict-n1-2" in failure.reason
            assert "422" in failure.reason
            refused = replica.metric(COUNTER, sink="audit", outcome="refused")
            assert refused == 1
            await ended(replica)
    assert receiver.ids == [f"verdict-n1-{number}" for number in (0, 1, 3, 4)]


@pytest.mark.parametrize("code", [301, 401, 403, 404, 408, 425, 429, 500, 503])
async def test_an_answer_about_the_url_the_credentials_or_the_load_loses_nothing(
    bus: NatsBus, code: int
) -> None:
    """The same event is sent again until it is taken."""
    clock = FastClock(600)
    async with event_receiver() as receiver:
        receiver.answer = lambda _: code
        async with delivering(bus, clock, audit=http(receiver.url)) as replica:
            await created(bus, "audit")
            await publish(bus, verdict(1), verdict(2))
            await failing(replica, "sink-undelivered", str(code))
            receiver.answer = lambda _: 204
            await receiver.until(lambda: len(receiver.ids) == 2)
            await ended(replica)
    assert receiver.ids == ["verdict-n1-1", "verdict-n1-2"]


async def test_what_is_too_old_or_too_large_is_skipped_and_reported(bus: NatsBus) -> None:
    """Neither holds up what comes after it."""
    clock = FastClock(600)
    async with event_receiver() as receiver:
        receiver.down = True
        spec = http(receiver.url, max_age=Duration(120), max_bytes=1024)
        async with delivering(bus, clock, audit=spec) as replica:
            await created(bus, "audit")
            await publish(bus, verdict(1))
            failure = await failing(replica, "sink-refused")
            assert "max_age" in failure.reason
            assert replica.metric(COUNTER, sink="audit", outcome="expired") == 1
        receiver.down = False
        async with delivering(bus, name="r2", audit=replace(spec, max_age=Duration(HOUR))) as next_:
            await publish(bus, verdict(2, reason="x" * 2_000), verdict(3))
            await receiver.until(lambda: len(receiver.ids) == 1)
            await settled(bus, "audit")
            assert next_.metric(COUNTER, sink="audit", outcome="too-large") == 1
    assert receiver.ids == ["verdict-n1-3"]


async def test_a_new_sink_begins_with_what_is_new_unless_all_is_wanted(bus: NatsBus) -> None:
    """A sink that comes back into the configuration continues where it was."""
    await publish(bus, verdict(1))
    async with event_receiver() as receiver, event_receiver() as whole:
        sinks = {"audit": http(receiver.url), "lake": http(whole.url, begin="all")}
        async with delivering(bus, **sinks):
            await created(bus, "audit")
            await publish(bus, verdict(2))
            await receiver.until(lambda: len(receiver.ids) == 1)
            await whole.until(lambda: len(whole.ids) == 2)
            await settled(bus, "audit")
        await publish(bus, verdict(3))
        only = {"audit": http(receiver.url, events=["verdict"], begin="all")}
        async with delivering(bus, name="r2", **only):
            await receiver.until(lambda: len(receiver.ids) == 2)
            await settled(bus, "audit")
    assert receiver.ids == ["verdict-n1-2", "verdict-n1-3"]
    assert whole.ids == ["verdict-n1-1", "verdict-n1-2"]


async def test_a_sinks_position_is_removed_with_its_configuration(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position is kept for a while.

    A replica with the configuration before may deliver once more.
    """
    async with event_receiver() as receiver:
        async with delivering(bus, audit=http(receiver.url), lake=http(receiver.url)):
            await created(bus, "audit")
            await created(bus, "lake")
        monkeypatch.setattr(event_sinks, "REMOVE_SECONDS", 0.5)
        async with delivering(bus, name="r2", lake=http(receiver.url)), asyncio.timeout(60):
            while await durables(bus) != ["sink-lake"]:
                await asyncio.sleep(0.05)
        known = (await bus.admin(f"CONSUMER.NAMES.{EVENTS.name}", {}))["consumers"]
        assert "notifier-alerts" in known


async def durables(bus: NatsBus) -> list[str]:
    page = await bus.admin(f"CONSUMER.NAMES.{EVENTS.name}", {})
    return sorted(each for each in page["consumers"] if each.startswith("sink-"))


async def test_a_durable_that_is_deleted_while_the_sink_is_served_is_created_again(
    bus: NatsBus,
) -> None:
    """The new durable continues where the old one was; nothing is lost, and it is reported."""
    clock = FastClock(20)
    async with (
        event_receiver() as receiver,
        delivering(bus, clock, audit=http(receiver.url)) as replica,
    ):
        await created(bus, "audit")
        await publish(bus, verdict(1))
        await settled(bus, "audit")
        await clock.sleep(25)
        await bus.admin(f"CONSUMER.DELETE.{EVENTS.name}.sink-audit", {})
        await publish(bus, verdict(2))
        failure = await failing(replica, "consumer-missing")
        assert "sink-audit" in failure.about
        await receiver.until(lambda: len(receiver.ids) == 2)
    assert receiver.ids == ["verdict-n1-1", "verdict-n1-2"]


async def test_labels_are_those_of_the_nodes_launch(bus: NatsBus) -> None:
    """Read from its record; a node without that label is left out."""
    launch = LaunchSpec(fleet="tests", provider="p", instance_type="t", labels={"team": "a"})
    record = NodeRecord(pool="training", node="n1", launch=launch)
    await bus.put(NODES, "training.n1", encode(record))
    async with event_receiver() as receiver:
        spec = http(receiver.url, labels={"team": "a"})
        async with delivering(bus, audit=spec) as replica:
            await created(bus, "audit")
            await publish(bus, verdict(1, node="n2"), verdict(2))
            await receiver.until(lambda: len(receiver.ids) == 1)
            await settled(bus, "audit")
            filtered = replica.metric(COUNTER, sink="audit", outcome="filtered")
            assert filtered == 1
    assert receiver.ids == ["verdict-n1-2"]


async def test_a_subject_is_sent_the_same_and_keeps_it(bus: NatsBus) -> None:
    """Stored in SINKS, so that a reader which was away finds it."""
    async with delivering(bus, lake=EventSinkSpec(type="subject")):
        await created(bus, "lake")
        await publish(bus, verdict(1), verdict(2))
        await settled(bus, "lake")
    stored = await bus.read(SINKS.name, subjects.sink("lake"))
    events = [json.loads(each.data) for each in stored]
    assert [each["id"] for each in events] == ["verdict-n1-1", "verdict-n1-2"]
    assert {each["specversion"] for each in events} == {"1.0"}
    assert {each.headers["Content-Type"] for each in stored} == {"application/cloudevents+json"}


async def test_of_two_replicas_one_delivers_and_the_other_continues(bus: NatsBus) -> None:
    """The second delivers what the first held when it ended in order, and in order."""
    receiver: EventReceiver
    async with event_receiver() as receiver:
        receiver.down = True
        async with delivering(bus, name="r2", audit=http(receiver.url)):
            async with delivering(bus, name="r1", audit=http(receiver.url)):
                await created(bus, "audit")
                await publish(bus, *(verdict(number) for number in range(10)))
                await receiver.until(lambda: receiver.tries > 0)
            await publish(bus, *(verdict(number) for number in range(10, 20)))
            receiver.down = False
            await receiver.until(lambda: len(receiver.ids) >= 20)
            await settled(bus, "audit")
    assert receiver.ids == [f"verdict-n1-{number}" for number in range(20)]


@pytest.mark.parametrize("kind", ["sink-undelivered", "sink-refused"])
def test_what_fails_in_a_sink_is_an_alert_with_an_end(kind: FailureKind) -> None:
    """A sink's failure becomes an alert, as every failure of a service does."""
    begun = ServiceFailure(
        id="f-1",
        time=verdict(1).time,
        status="failing",
        service="notifier",
        failure=kind,
        about="event sink audit",
        reason="503",
        remedy="look",
    )
    alert = alert_of(begun)
    assert alert is not None
    assert alert.severity == "critical"
    assert ended_keys(replace(begun, status="recovered")) == (alert.key,)


async def test_roles_permit_a_sink_its_work_and_its_reader_that_alone(secured: Secured) -> None:
    """The notifier delivers on a server with accounts.

    A reader receives the event when it is published, and can read it later.
    """
    notifier = await NatsBus.connect(secured.options("notifier"))
    monitor = await NatsBus.connect(secured.options("health-monitor"))
    subject = subjects.sink("lake")
    async with delivering(notifier, lake=EventSinkSpec(type="subject")):
        await created(notifier, "lake")
        reader = await plain(secured, "sink-reader")
        heard = await reader.subscribe(subject)
        await reader.flush()
        await publish(monitor, verdict(1))
        message = await heard.next_msg(timeout=60)
        await settled(notifier, "lake")
    again = await reader.request(f"$JS.API.DIRECT.GET.SINKS.{subject}", b"", timeout=30)
    await notifier.admin(f"CONSUMER.DELETE.{EVENTS.name}.sink-lake", {})
    for each in (reader, notifier, monitor):
        await each.close()

    assert json.loads(message.data)["id"] == "verdict-n1-1"
    assert again.data == message.data
