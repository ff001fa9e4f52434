"""A server that stores nothing is reported, with what to do, and so is the end of that."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.fleet_events import ServiceFailure
from schemas.settings import AlertRoute
from schemas.topology import (
    DURABLES,
    EVENTS,
    EVERY_STREAM,
    EVIDENCE,
    HARDWARE,
    HEARTBEATS,
    LEASES,
    NODES,
    SAGAS,
    STREAMS,
)
from services.bus.leases import Lease
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.notifier.alerts.alert_rules import alert_of
from services.notifier.alerts.alert_sender import AlertSender, RoutedChannel
from services.notifier.alerts.store_alerts import StoreAlerts
from services.notifier.store_losses import LOSSES, SHOWN, ObservedStream, loss_between
from services.notifier.store_watch import HEARD, LOOK_SECONDS, StoreWatch
from services.primitives.errors import Conflict, Unavailable
from services.runtime.durable_watch import LOOK_SECONDS as DURABLE_SECONDS
from services.runtime.durable_watch import DurableWatch
from services.runtime.failure_register import FailureRegister, unwritable
from services.simulator.engine import virtual_time
from services.simulator.engine.virtual_time import VirtualClock
from tests.notifier.alert_desk import RecordingChannel

LEASES_STREAM = f"KV_{LEASES.name}"


@asynccontextmanager
async def watching() -> AsyncIterator[tuple[MemoryServer, FailureRegister, RecordingChannel]]:
    """Yield a watched server, its failures, and a channel for its alerts."""
    clock = VirtualClock()
    server = MemoryServer(clock)
    bus = MemoryBus(server, PerfectLink())
    await set_up(bus, clock, replicas=1)
    failures, channel = FailureRegister(CollectorRegistry()), RecordingChannel()
    channels = [RoutedChannel(route=AlertRoute(name="recording"), channel=channel)]
    lease = Lease(bus, clock, "notifier.leader", "r1")
    tasks = [
        asyncio.ensure_future(StoreWatch(bus, clock, failures).run()),
        asyncio.ensure_future(StoreAlerts(channels, bus, clock, failures).run()),
        asyncio.ensure_future(AlertSender(channels, bus, clock, lease, failures).run()),
    ]
    yield server, failures, channel
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    server.close()


def test_a_store_that_takes_nothing_is_alerted_without_it() -> None:
    """Only what lasts: one refused write is a leader's election."""

    async def run() -> None:
        async with watching() as (server, failures, channel):
            await asyncio.sleep(LOOK_SECONDS + 1)
            server.refusing[LEASES_STREAM] = 1
            await asyncio.sleep(LOOK_SECONDS)
            assert failures.current == ()
            await asyncio.sleep(3 * LOOK_SECONDS)
            [found] = failures.current
            assert (found.failure, found.about) == ("store-unwritable", "nats-server")
            assert "restart nats-server" in found.remedy
            del server.refusing[LEASES_STREAM]
            await asyncio.sleep(3 * LOOK_SECONDS)
            assert failures.current == ()
            assert [(each.resolved, each.title) for each in channel.alerts] == [
                (False, "nats-server: not writable"),
                (True, "nats-server: writable again"),
            ]
            assert len({each.key for each in channel.alerts}) == 1

    virtual_time.run(run)


def test_a_stream_that_refuses_another_services_writes_is_alerted_although_the_probe_is_taken() -> (
    None
):
    """A full disk stops streams one by one; of two replicas only the one that writes knows.

    The alert ends when no replica has reported it for a while.
    """

    async def run() -> None:
        async with watching() as (server, failures, channel):
            writing, waiting = (FailureRegister(CollectorRegistry()) for _ in range(2))
            subject = subjects.query("failures-pool-manager")
            for each in (waiting, writing, waiting):
                await MemoryBus(server, PerfectLink()).answer(subject, each.endpoint())
            await asyncio.sleep(LOOK_SECONDS / 2)
            writing.update("writes", [unwritable((SAGAS.name, "no answer in 5 s"))])
            await asyncio.sleep(LOOK_SECONDS)
            [found] = failures.current
            assert (found.failure, found.about) == ("store-unwritable", "stream SAGAS")
            assert "restart nats-server" in found.remedy
            writing.update("writes", [])
            await asyncio.sleep(HEARD.total_seconds() + 2 * LOOK_SECONDS)
            assert failures.current == ()
            await asyncio.sleep(LOOK_SECONDS)
            assert [each.resolved for each in channel.alerts] == [False, True]

    virtual_time.run(run)


def test_what_two_observers_find_ends_when_neither_finds_it() -> None:
    """Otherwise an alert would end and begin again every few seconds."""
    register, found = FailureRegister(CollectorRegistry()), unwritable((SAGAS.name, "no answer"))
    for observer in ("store", "writes"):
        register.update(observer, [found])
    register.update("writes", [])
    assert register.current == (found,)
    register.update("store", [])
    assert register.current == ()


def test_a_process_reports_streams_that_refuse_its_own_writes() -> None:
    """A conflict is an answer and no refusal; a message that is stored ends it."""

    async def run() -> None:
        server = MemoryServer(VirtualClock())
        bus = MemoryBus(server, PerfectLink())
        await set_up(bus, VirtualClock(), replicas=1)
        key = "training.n1"
        await bus.create(NODES, key, b"{}")
        server.refusing[NODES.stream().name] = 1
        for _ in range(4):
            with pytest.raises(Unavailable):
                await bus.put(NODES, key, b"{}")
            await asyncio.sleep(5)
        assert list(bus.unwritable_streams()) == [NODES.stream().name]
        del server.refusing[NODES.stream().name]
        with pytest.raises(Conflict):
            await bus.create(NODES, key, b"{}")
        assert list(bus.unwritable_streams()) == [NODES.stream().name]
        await bus.put(NODES, key, b"{}")
        assert list(bus.unwritable_streams()) == []
        server.close()

    virtual_time.run(run)


def test_what_is_kept_in_memory_is_created_again_and_not_reported() -> None:
    """Every server restarted: heartbeats are rebuilt as the nodes beat."""

    async def run() -> None:
        async with watching() as (server, failures, _):
            await asyncio.sleep(LOOK_SECONDS + 1)
            server.lose_memory()
            assert f"KV_{HEARTBEATS.name}" not in server.state.streams
            await asyncio.sleep(LOOK_SECONDS)
            assert f"KV_{HEARTBEATS.name}" in server.state.streams
            assert failures.current == ()

    virtual_time.run(run)


def test_a_full_stream_is_reported_before_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """SAGAS takes no entry beyond its size: every saga would stop."""
    small = msgspec.structs.replace(SAGAS, bytes_max=1_000)
    kept = (small, *(each for each in EVERY_STREAM if each not in STREAMS))
    monkeypatch.setattr("services.bus.topology_setup.EVERY_STREAM", kept)
    monkeypatch.setattr("services.notifier.store_watch.EVERY_STREAM", kept)
    monkeypatch.setattr("services.bus.topology_setup.DURABLES", ())

    async def run() -> None:
        async with watching() as (server, failures, _):
            server.publish("navarch.v1.saga.a.drain.started", b"x" * 900, {})
            await asyncio.sleep(2 * LOOK_SECONDS)
            [found] = failures.current
            assert found.about == "stream SAGAS"
            assert "nats stream purge SAGAS" in found.remedy

    virtual_time.run(run)


def test_a_stream_that_is_gone_is_created_again_and_its_loss_named() -> None:
    """While the services run; the failure says what the loss means, and ends after a while."""

    async def run() -> None:
        async with watching() as (server, failures, _):
            await asyncio.sleep(LOOK_SECONDS + 1)
            for stream in (f"KV_{HARDWARE.name}", EVIDENCE.stream_name):
                server.admin(f"STREAM.DELETE.{stream}", {})
            await asyncio.sleep(LOOK_SECONDS)
            assert server.admin(f"STREAM.INFO.KV_{HARDWARE.name}", {})["config"]["deny_delete"]
            found = {each.about: each for each in failures.current}
            assert set(found) == {"stream KV_HARDWARE", "stream OBJ_EVIDENCE"}
            lost = found["stream KV_HARDWARE"]
            assert lost.failure == "store-lost"
            assert "deleted and created again" in lost.reason
            assert "navarch hardware add" in lost.remedy
            await asyncio.sleep(SHOWN.total_seconds())
            assert failures.current == ()

    virtual_time.run(run)


def test_a_stream_that_is_gone_with_its_durables_is_one_failure() -> None:
    """The failure is one, whichever watch creates the stream again.

    A durable that is deleted alone is named.
    """

    async def run() -> None:
        async with watching() as (server, failures, _):
            bus, clock = MemoryBus(server, PerfectLink()), VirtualClock()
            durables = [each for each in DURABLES if each.stream == EVENTS.name]
            watches = [
                asyncio.ensure_future(DurableWatch(bus, clock, each, failures, 1).run())
                for each in durables
            ]
            server.publish(subjects.node_event("training", "n", "lost"), b"{}", {})
            await asyncio.sleep(2 * DURABLE_SECONDS + 1)
            server.admin(f"STREAM.DELETE.{EVENTS.name}", {})
            found: set[tuple[str, str]] = set()
            for _ in range(2 * int(DURABLE_SECONDS)):
                await asyncio.sleep(1)
                found |= {(each.failure, each.about) for each in failures.current}
            assert found == {("store-lost", "stream EVENTS")}
            for each in durables:
                server.admin(f"CONSUMER.INFO.{EVENTS.name}.{each.name}", {})
            server.admin(f"CONSUMER.DELETE.{EVENTS.name}.{durables[0].name}", {})
            await asyncio.sleep(DURABLE_SECONDS)
            assert [each.failure for each in failures.current] == ["store-lost", "consumer-missing"]
            for each in watches:
                each.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    virtual_time.run(run)


SPECS = {each.name: each for each in EVERY_STREAM}
BEFORE = ObservedStream(created="t0", first=5, last=9, messages=4)


@pytest.mark.parametrize(
    ("stream", "now", "expected"),
    [
        ("EVENTS", ObservedStream("t0", 5, 12, 7), ""),
        ("EVENTS", ObservedStream("t1", 1, 12, 12), "was deleted and created again"),
        ("KV_NODES", ObservedStream("t0", 5, 8, 3), "was rolled back from message 9 to 8"),
        ("KV_NODES", ObservedStream("t0", 10, 9, 0), "lost all 4 messages that it had"),
        ("KV_NODES", ObservedStream("t0", 10, 13, 4), ""),
        ("TELEMETRY", ObservedStream("t0", 1, 2, 1), ""),
        ("TIMERS", ObservedStream("t0", 10, 9, 0), ""),
    ],
)
def test_what_a_stream_has_lost(stream: str, now: ObservedStream, expected: str) -> None:
    """A loss shows between two observations; a work queue that is empty has lost nothing."""
    spec = SPECS[stream]
    assert loss_between(spec, BEFORE, now) == expected
    assert loss_between(spec, None, now) == ""


def test_every_stream_has_a_row() -> None:
    """Each row says what the stream's loss means, and what to do."""
    assert set(LOSSES) == set(SPECS)


def test_the_event_alone_raises_no_second_alert() -> None:
    """The event is stored when the store works again, perhaps long after the alert."""
    event = ServiceFailure(
        id="a",
        time=datetime(2026, 1, 1, tzinfo=UTC),
        status="failing",
        service="notifier",
        failure="store-unwritable",
        about="nats-server",
        reason="x",
        remedy="y",
    )
    assert alert_of(event) is None
    other = msgspec.structs.replace(event, failure="record-unreadable")
    assert (found := alert_of(other)) is not None
    assert found.severity == "critical"
