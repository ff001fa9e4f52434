"""Three hundred of a thousand nodes show one XID on a real server: one incident, one alert."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.alert_records import Alert
from schemas.duration import Duration
from schemas.messages import decoder, encode
from schemas.node_events import FACTS, Verdict
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import Incident, pool_codec
from schemas.pool_records import PoolRecord, pool_key
from schemas.settings import (
    AlertRoute,
    BudgetSpec,
    HealthSpec,
    IncidentSpec,
    PluginSettings,
    PoolSpec,
    Settings,
)
from schemas.topology import EVENTS, NODES, NOTIFIER_ALERTS, POOLS, SAGAS
from services.bus.leases import Lease
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.notifier.alerts.alert_dedup import HOLD_SECONDS
from services.notifier.alerts.alert_intake import AlertIntake
from services.notifier.alerts.alert_sender import AlertSender, RoutedChannel
from services.pool_manager.planner.disruption_budget import limit, rate
from services.pool_manager.service import build
from services.primitives.clock import SystemClock
from services.runtime.consumer_loop import ConsumerLoop
from services.runtime.process_metrics import Instruments
from services.runtime.tracing import Tracing
from tests.notifier.alert_desk import RecordingChannel
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers
from tests.support.settling import is_settled

NOW = datetime.now(UTC)
SIZE, UNHEALTHY = 1000, 300
SEEN = 20
"""2% of the pool: from so many on it is one incident."""
NAMES = [f"training-{number}" for number in range(SIZE)]
SPEC = PoolSpec(
    provider="test",
    instance_type="t",
    min_nodes=SIZE,
    max_nodes=SIZE,
    budget=BudgetSpec(max_quarantined=0),
    health=HealthSpec(incident=IncidentSpec(stage=Duration(0))),
)
SETTINGS = Settings(providers={"test": PluginSettings(type="fake")}, pools={"training": SPEC})
pools = decoder(PoolRecord)


async def fleet(bus: NatsBus) -> None:
    """Record a thousand nodes in service."""
    record = PoolRecord(name="training", spec=SPEC, desired=SIZE, serial=SIZE)
    await bus.create(POOLS, pool_key("training"), encode(record))
    await asyncio.gather(
        *(
            bus.create(
                NODES,
                node_key("training", name),
                encode(
                    NodeRecord(
                        pool="training",
                        node=name,
                        state="active",
                        health="healthy",
                        admitted_at=NOW,
                    )
                ),
            )
            for name in NAMES
        )
    )


async def make_unhealthy(bus: NatsBus, name: str) -> None:
    """Publish an unhealthy verdict as the health-monitor does."""
    verdict = Verdict(
        id=f"v-{name}",
        time=datetime.now(UTC),
        pool="training",
        node=name,
        status="unhealthy",
        action="replace",
        kind="xid",
        code=79,
        reason="XID 79",
        fault=f"f-{name}",
    )
    subject = subjects.node_event("training", name, FACTS[Verdict])
    await bus.publish(subject, encode(verdict), msg_id=verdict.id)


async def facts(bus: NatsBus) -> list[Any]:
    """Return every event about the pool."""
    stored = await bus.read(EVENTS.name, subjects.pool_events_of("training"))
    return [pool_codec.decode(each.data) for each in stored]


async def pool(bus: NatsBus) -> PoolRecord:
    """Return the pool's record."""
    entry = await bus.get(POOLS, pool_key("training"))
    assert entry is not None
    record: PoolRecord = pools.decode(entry.value)
    return record


async def ask(bus: NatsBus, verb: str, **payload: str) -> None:
    """Send the pool a request."""
    await bus.publish(subjects.pool_request("training", verb), msgspec.json.encode(payload))


@asynccontextmanager
async def alerting(bus: NatsBus) -> AsyncIterator[list[Alert]]:
    """Yield the notifier's alerts."""
    channel, clock, tracing = RecordingChannel(), SystemClock(), Tracing("notifier")
    loop = ConsumerLoop(bus, AlertIntake(bus).consumer(), clock, Instruments(), tracing)
    routed = [RoutedChannel(route=AlertRoute(name="recording"), channel=channel)]
    lease, failures = Lease(bus, clock, "notifier.leader", "r1"), Instruments().failures
    sender = AlertSender(routed, bus, clock, lease, failures)
    tasks = [asyncio.create_task(loop.run()), asyncio.create_task(sender.run())]
    yield channel.alerts
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.slow
async def test_wave_over_a_thousand_nodes_stops_the_pool_until_an_operator_acts(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """The breaker opens within its budget; uncordon works; once closed, repair goes on at its rate.

    Alerts are about the first node, at once, and then about the incident only.
    """
    async with Peers(bus) as peers, alerting(bus) as alerts:
        await fleet(bus)
        peers.hold["drain"] = asyncio.Event()
        async with Running(server.url, "pool-manager", build, SETTINGS):
            clock = asyncio.get_running_loop().time
            began = clock()
            await asyncio.gather(*(make_unhealthy(bus, name) for name in NAMES[:UNHEALTHY]))

            async def all_known() -> bool:
                entries = await bus.entries(NODES, "training.>")
                return sum(b'"unhealthy"' in each.value for each in entries) == UNHEALTHY

            await eventually(all_known)
            # Alerts of later nodes are delayed by this time; on a slow machine some are sent.
            quick = clock() - began < HOLD_SECONDS / 2
            published = [type(each).__name__ for each in await facts(bus)]
            assert ["BreakerOpened", "Incident"] == sorted(set(published) - {"SagaOpened"})
            assert (1, 1) == (published.count("BreakerOpened"), published.count("Incident"))
            before = await pool(bus)
            assert ("open", "wave") == (before.breaker.state, before.breaker.cause)
            assert len(before.open) < SEEN

            async def alerts_sent() -> bool:
                durable = NOTIFIER_ALERTS
                return bool(alerts) and await is_settled(bus, durable.stream, durable.name)

            await eventually(alerts_sent)
            first, *more = alerts
            [incident] = [each for each in more if each.key.startswith("incident/")]
            if quick:
                assert [incident] == more
            assert first.key.startswith("health/training/training-")
            assert incident.key.startswith("incident/training/xid-79-")

            well = NAMES[UNHEALTHY - 1]
            await ask(bus, "uncordon", node=well, reason="it is fine")

            async def uncordoned() -> bool:
                return bool(peers.count("uncordon")[well])

            await eventually(uncordoned)
            peers.hold["drain"].set()
            await ask(bus, "breaker-close", reason="the driver is rolled back", by="ops")

            async def replaced() -> bool:
                return sum(type(each).__name__ == "NodeReplaced" for each in await facts(bus)) > 60

            await eventually(replaced)
            after = await pool(bus)

    assert ("closed", "ops") == (after.breaker.state, after.breaker.by)
    assert after.breaker.ramp > 1
    begun = sum(after.disruptions.values())
    allowed = rate(SPEC.budget.max_replacements, SIZE)
    assert allowed is not None
    assert begun <= allowed
    assert len(after.open) <= limit(SPEC.budget.max_unavailable, SIZE)
    incidents = [each for each in await facts(bus) if isinstance(each, Incident)]
    assert "opened" == incidents[0].status
    # The incident may be closed by now: all of its nodes may have been replaced.
    assert ["closed"][: len(incidents) - 1] == [each.status for each in incidents[1:]]
    assert 1 == len({each.incident for each in incidents})
    assert begun <= len(await bus.read(SAGAS.name, subjects.saga_step_wildcard("saga", "started")))
