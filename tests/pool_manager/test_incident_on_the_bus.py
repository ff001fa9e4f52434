"""One XID on many nodes of a pool, on a real server: one incident, held back as one."""

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import msgspec

from schemas import subjects
from schemas.duration import Duration
from schemas.node_events import Verdict
from schemas.settings import (
    BudgetSpec,
    HealthSpec,
    IncidentSpec,
    PluginSettings,
    PoolSpec,
    Settings,
)
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.service import build
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

SIZE = 8
UNHEALTHY = 6
HOLD_SECONDS = 3
SETTINGS = Settings(
    providers={"test": PluginSettings(type="fake")},
    pools={
        "training": PoolSpec(
            provider="test",
            instance_type="t",
            min_nodes=SIZE,
            max_nodes=SIZE,
            gpu_count=8,
            budget=BudgetSpec(
                max_quarantined=0, max_unavailable="100%", max_replacements="unlimited"
            ),
            health=HealthSpec(
                incident=IncidentSpec(hold=Duration(HOLD_SECONDS), stage=Duration(0))
            ),
        )
    },
)


async def pool_events(bus: NatsBus, fact: str) -> list[dict[str, Any]]:
    """Return every stored pool event of one type."""
    stored = await bus.read("EVENTS", subjects.pool_event_wildcard(fact))
    return [msgspec.json.decode(each.data) for each in stored]


async def test_wave_is_held_back_until_an_operator_closes_the_breaker(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """The budget would allow all at once; meanwhile the breaker names the incident.

    At most four may have started before the fifth made it an incident, and their success starts no
    other, however long the hold has passed.
    """
    async with Peers(bus) as peers, Running(server.url, "pool-manager", build, SETTINGS):
        peers.hold["drain"] = asyncio.Event()

        async def admitted() -> bool:
            found = await bus.read("EVENTS", subjects.node_event_wildcard("admitted"))
            return len(found) == SIZE

        await eventually(admitted)
        names = sorted(peers.instances)[:UNHEALTHY]
        peers.calls.clear()
        await asyncio.gather(
            *(
                peers.publish(
                    Verdict(
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
                )
                for name in names
            )
        )
        [incident] = await eventually(lambda: pool_events(bus, "incident"))
        [breaker] = await eventually(lambda: pool_events(bus, "breaker-opened"))
        begun = set(peers.count("cordon"))
        peers.hold["drain"].set()

        async def begun_replaced() -> bool:
            return len(await pool_events(bus, "node-replaced")) == len(begun)

        await eventually(begun_replaced)
        assert set(peers.count("cordon")) == begun
        body = msgspec.json.encode({"by": "ops", "reason": "they are broken"})
        await bus.publish(subjects.pool_request("training", "breaker-close"), body)

        async def all_replaced() -> bool:
            return len(await pool_events(bus, "node-replaced")) == UNHEALTHY

        await eventually(all_replaced)
        [closed] = await eventually(lambda: pool_events(bus, "breaker-closed"))
        incidents = await pool_events(bus, "incident")

    assert ["opened", "closed"] == [each["status"] for each in incidents]
    assert ("opened", "xid", 79) == (incident["status"], incident["kind"], incident["code"])
    assert " nodes with XID 79; none is repaired before " in breaker["reason"]
    assert ("wave", "wave") == (breaker["breaker_cause"], closed["breaker_cause"])
    assert len(begun) < 5
    order = [node for step, node in peers.calls if step == "cordon"]
    assert dict.fromkeys(names, 1) == Counter(order)
    assert set(order[: len(begun)]) == begun
