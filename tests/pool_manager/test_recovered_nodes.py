"""A node that is replaced only for its silence and returns is kept, if it still can be."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.duration import Duration
from schemas.enums import HealthStatus
from schemas.node_events import Lost, Returned
from schemas.node_records import CloudNotice, NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import BudgetSpec, HealthSpec, PoolSpec
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.planner.node_counts import is_for_silence
from services.pool_manager.planner.remediation.recovered_nodes import (
    HEALTHY,
    HEARD,
    recovered,
    unfounded,
)
from services.pool_manager.planner.sizing.open_sagas import begin
from services.pool_manager.service import build
from tests.pool_manager.fleet import events, nodes, peers, settings, settled, under_way
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

__all__ = ["peers"]

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPEC = PoolSpec(provider="test", instance_type="t", min_nodes=2, max_nodes=2)
SILENT = OpenSaga(kind="replace", node="n1", new_node="n3", fault_signature="silence", since=NOW)
QUICK = settings(health=HealthSpec(lost_after=Duration(0.1)), budget=BudgetSpec(max_unavailable=1))


@pytest.mark.parametrize(
    ("opened", "node", "kept"),
    [
        ({}, {}, True),
        ({"kind": "reboot", "new_node": ""}, {}, True),
        ({}, {"health": "degraded"}, True),
        ({}, {"lost": True}, False),
        ({}, {"health": "unhealthy"}, False),
        ({}, {"notices": {"a": CloudNotice(at=NOW)}}, False),
        ({}, {"notices": {"a": CloudNotice(at=NOW, withdrawn=True)}}, True),
        ({"fault_signature": "xid-79"}, {}, False),
        ({"cause": "request-5"}, {}, False),
        ({"kind": "scale-down"}, {}, False),
        ({"fault_signature": "", "notice": "a"}, {}, False),
    ],
)
def test_only_a_replacement_for_silence_is_cancelled(
    opened: dict[str, Any], node: dict[str, Any], kept: bool
) -> None:
    """Not one that the node's health, an operator or a notice caused."""
    saga = msgspec.structs.replace(SILENT, **opened)
    record = PoolRecord(name="training", spec=SPEC, desired=2, open={"s": saga})
    heard = NodeRecord(pool="training", node="n1", **({"health": "healthy"} | node))

    assert ([("s", heard)] if kept else []) == list(recovered(record, {"n1": heard}))


@pytest.mark.parametrize(
    ("health", "down_reason", "expected"),
    [
        pytest.param("healthy", "", True, id="silent"),
        pytest.param("degraded", "", True, id="degraded, then silent"),
        pytest.param("degraded", "stopped", True, id="degraded, then stopped"),
        pytest.param("unhealthy", "", False, id="unhealthy, then silent"),
    ],
)
def test_what_degraded_a_node_is_no_reason_to_repair_it(
    health: HealthStatus, down_reason: str, expected: bool
) -> None:
    """Such a node is given back when it is heard again."""
    record = PoolRecord(name="training", spec=SPEC, desired=2)
    node = NodeRecord(
        pool="training",
        node="n1",
        state="active",
        lost=True,
        lost_at=NOW,
        provider_state="present",
        down_reason=down_reason,
        health=health,
        health_fault="f",
        health_kind="maintenance",
    )
    _, opened, _ = begin("f", record, "reboot", NOW, node=node)
    assert is_for_silence(opened.kind, opened) == expected


@pytest.mark.parametrize(
    ("opened", "node", "expected"),
    [
        ({}, {}, HEARD),
        ({}, {"health": "unhealthy"}, ""),
        ({}, {"notices": {"a": CloudNotice(at=NOW)}}, ""),
        ({"fault_signature": "xid-79", "fault": "f"}, {}, HEALTHY),
        ({"fault_signature": "xid-79", "fault": "f", "kind": "reset-gpu"}, {}, HEALTHY),
        ({"fault_signature": "xid-79", "fault": "f"}, {"health": "unhealthy"}, ""),
        ({"fault_signature": "xid-79", "fault": "f"}, {"health": "degraded"}, ""),
        ({"fault_signature": "xid-79", "fault": "f"}, {"health": "unknown"}, ""),
        ({"fault_signature": "xid-79", "fault": "f"}, {"lost": True}, ""),
        ({"fault_signature": "xid-79", "fault": "f", "by": "ops"}, {}, ""),
        ({"kind": "scale-down"}, {}, ""),
    ],
)
def test_a_remediation_begins_only_for_what_still_is(
    opened: dict[str, Any], node: dict[str, Any], expected: str
) -> None:
    """Where its beginning had to wait the node may beat again, or be judged healthy."""
    saga = msgspec.structs.replace(SILENT, **opened)
    now = NodeRecord(pool="training", node="n1", **({"health": "healthy"} | node))

    assert expected == unfounded(saga.kind, saga, now)


def about(name: str) -> dict[str, Any]:
    """The fields that every event about the node has."""
    return {"time": datetime.now(UTC), "pool": "training", "node": name}


@pytest.mark.parametrize("away", [False, True])
async def test_node_that_returns_while_draining_is_uncordoned(
    server: EmbeddedServer, bus: NatsBus, peers: Peers, away: bool
) -> None:
    """Nothing is launched, and no launch counts as failed.

    Also if no replica was running when it returned.
    """
    peers.hold["drain"] = asyncio.Event()

    async def heard() -> None:
        await peers.publish(Returned(id="returned-1", **about(before[0])))

    async with Running(server.url, "pool-manager", build, QUICK):
        before = await eventually(settled(bus, 3))
        peers.calls.clear()
        await peers.publish(Lost(id="lost-1", **about(before[0])))
        await eventually(under_way(peers, "drain"))
        if not away:
            await heard()
            await eventually(lambda: events(bus, "saga-cancelled"))
    if away:
        await heard()
    async with Running(server.url, "pool-manager", build, QUICK):
        [cancelled] = await eventually(lambda: events(bus, "saga-cancelled"))
        await eventually(lambda: bus.read("EVENTS", subjects.node_event_wildcard("uncordoned")))
        after = await eventually(settled(bus, 3))
        views = {each.id: each for each in await nodes(bus)}

    assert sorted(before) == sorted(after)
    assert "the node is heard again" == cancelled["reason"]
    assert not views[before[0]].cordoned
    assert not peers.count("provision")
    assert not peers.count("terminate")
    assert [] == await events(bus, "saga-failed")


async def test_replacement_past_its_pivot_continues(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """A heartbeat that arrives while the instance is terminated changes nothing."""
    peers.hold["terminate"] = asyncio.Event()

    async def ending() -> bool:
        return bool(peers.count("terminate"))

    async with Running(server.url, "pool-manager", build, QUICK):
        before = await eventually(settled(bus, 3))
        await peers.publish(Lost(id="lost-1", **about(before[0])))
        await eventually(ending)
        await peers.publish(
            Returned(
                id="returned-1",
                **about(before[0]) | {"time": datetime.now(UTC) + timedelta(seconds=1)},
            )
        )
        # It is processed when the consumer of events has nothing pending.
        await eventually(lambda: _heard(bus, before[0]))
        peers.hold["terminate"].set()
        [replaced] = await eventually(lambda: events(bus, "node-replaced"))

    assert before[0] == replaced["old_node"]
    assert [] == await events(bus, "saga-cancelled")


async def _heard(bus: NatsBus, name: str) -> bool:
    return any(each.id == name and not each.lost for each in await nodes(bus))


SPARED = settings(
    min_nodes=2,
    spares=1,
    health=HealthSpec(lost_after=Duration(0.1)),
    budget=BudgetSpec(max_unavailable=1),
)


async def _spare(bus: NatsBus) -> str:
    found = [each.id for each in await nodes(bus) if each.spare and each.status == "active"]
    return found[0] if len(found) == 1 else ""


async def test_returned_spare_stays_a_spare(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The spare was never in service, so it is not uncordoned."""
    peers.hold["drain"] = asyncio.Event()

    async with Running(server.url, "pool-manager", build, SPARED):
        before = await eventually(settled(bus, 3))
        spare = await _spare(bus)
        peers.calls.clear()
        await peers.publish(Lost(id="lost-1", **about(spare)))
        await eventually(under_way(peers, "drain"))
        await peers.publish(Returned(id="returned-1", **about(spare)))
        await eventually(lambda: events(bus, "saga-cancelled"))
        after = await eventually(settled(bus, 3))

        assert spare == await _spare(bus)
    assert sorted(before) == sorted(after)
    assert not peers.count("uncordon")


async def test_returned_node_is_removed_after_a_spare_replaced_it(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The node's work was drained already, so no other node is disrupted."""
    peers.hold["drain"] = asyncio.Event()

    async with Running(server.url, "pool-manager", build, SPARED):
        before = await eventually(settled(bus, 3))
        spare = await _spare(bus)
        silent, other = (each for each in before if each != spare)
        peers.calls.clear()
        await peers.publish(Lost(id="lost-1", **about(silent)))
        await eventually(under_way(peers, "drain"))
        await peers.publish(Returned(id="returned-1", **about(silent)))
        await eventually(lambda: events(bus, "saga-cancelled"))
        peers.hold["drain"].set()

        async def gone() -> list[str]:
            found = await eventually(settled(bus, 3))
            return [] if silent in found else found

        after = await eventually(gone)
        serving = {each.id for each in await nodes(bus) if each.id in after and not each.cordoned}

    assert {spare, other} == serving
    assert {silent: 1} == dict(peers.count("terminate"))
