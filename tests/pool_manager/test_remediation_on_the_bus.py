"""Resets and reboots on a real server with scripted peers: sagas, records, events, requests."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.messages import decoder
from schemas.node_events import Verdict
from schemas.node_records import NodeRecord, node_key
from schemas.settings import BudgetSpec, HealthSpec, PluginSettings
from schemas.topology import NODES
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.service import build
from tests.pool_manager.fleet import ask, events, peers, settings, settled
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

__all__ = ["peers"]

LADDER = HealthSpec(remediation=PluginSettings(type="ladder"))
ROOM = BudgetSpec(max_unavailable=1, max_replacements="unlimited")
_node = decoder(NodeRecord)


def laddered(**changes: Any) -> Any:
    """Return settings of a pool of one with a ladder."""
    return settings(**{"min_nodes": 1, "health": LADDER, "budget": ROOM} | changes)


async def publish_verdict(peers: Peers, node: str, number: int) -> None:
    """Publish the health-monitor's verdict about the n-th fault."""
    await peers.publish(
        Verdict(
            id=f"verdict-{number}-{node}",
            time=datetime.now(UTC),
            pool="training",
            node=node,
            status="unhealthy",
            action="reset_gpu",
            reason="XID 95",
            kind="xid",
            code=95,
            gpu_index=3,
            fault=f"f{number}",
        )
    )


async def record_of(bus: NatsBus, node: str) -> NodeRecord:
    """Return a node's record."""
    entry = await bus.get(NODES, node_key("training", node))
    assert entry is not None
    record: NodeRecord = _node.decode(entry.value)
    return record


def attempts(bus: NatsBus, node: str, count: int) -> Any:
    """Return a check for so many ended attempts and no open one, which returns the record."""

    async def look() -> NodeRecord | None:
        record = await record_of(bus, node)
        ended = [each for each in record.attempts if each.outcome != "open"]
        return record if len(ended) == count and not record.saga else None

    return look


async def remediated(bus: NatsBus) -> list[dict[str, Any]]:
    """Every stored end of a reset or reboot."""
    found = await bus.read("EVENTS", subjects.node_event_wildcard("remediated"))
    return [msgspec.json.decode(each.data) for each in found]


async def test_failed_reset_is_followed_by_a_reboot(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The node stays cordoned in between; after the reboot it is in service, not replaced."""
    peers.fail["reset"] = "exit status 7: In use by another client"
    async with Running(server.url, "pool-manager", build, laddered()):
        [node] = await eventually(settled(bus, 1))
        await publish_verdict(peers, node, 1)
        record = await eventually(attempts(bus, node, 2))
        facts = await eventually(lambda: _two(bus))

    assert [
        ("reset-gpu", "failed", "exit status 7: In use by another client"),
        ("reboot", "recovered", ""),
    ] == [(each.kind, each.outcome, each.reason) for each in record.attempts]
    assert {"xid-95"} == {each.fault_signature for each in record.attempts}
    assert (False, "unknown", "after-b1") == (record.cordoned, record.health, record.boot_id)
    assert [("reset-gpu", "failed", 1, 3), ("reboot", "recovered", 2, 3)] == [
        (each["remediation"], each["outcome"], each["attempt"], each["attempts_max"])
        for each in facts
    ]
    steps = [step for step, name in peers.calls if name == node]
    assert ["cordon", "drain", "reset", "cordon", "drain", "reboot", "check", "uncordon"] == (
        steps[2:]
    )


async def _two(bus: NatsBus) -> list[dict[str, Any]] | None:
    found = await remediated(bus)
    return found if len(found) == 2 else None


async def test_reset_names_the_gpu_and_verifies_the_new_boot_checks(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The reset request has the GPU's UUID, and the check asks for the boot checks."""
    async with Running(server.url, "pool-manager", build, laddered()):
        [node] = await eventually(settled(bus, 1))
        await publish_verdict(peers, node, 1)
        record = await eventually(attempts(bus, node, 1))
    log = await bus.read("SAGAS", subjects.saga_tree(record.attempts[0].saga))
    inputs = {
        each["step"]: each["inputs"]
        for each in (msgspec.json.decode(stored.data) for stored in log)
        if each.get("inputs")
    }

    assert [f"GPU-{node}-3"] == inputs["reset"]["gpus"]
    assert ["boot"] == inputs["check"]["checks"]


@pytest.mark.parametrize(("verb", "step"), [("reset-gpu", "reset"), ("reboot", "reboot")])
async def test_operator_resets_a_healthy_node(
    server: EmbeddedServer, bus: NatsBus, peers: Peers, verb: str, step: str
) -> None:
    """The request works whatever the pool's remediator; it is no attempt of a ladder."""
    async with Running(server.url, "pool-manager", build, settings(min_nodes=1)):
        [node] = await eventually(settled(bus, 1))
        await ask(bus, verb, node=node, reason="a hunch")
        record = await eventually(attempts(bus, node, 1))
        [fact] = await eventually(lambda: remediated(bus))

    assert 1 == peers.count(step)[node]
    assert (verb, "recovered", "") == (
        record.attempts[0].kind,
        record.attempts[0].outcome,
        record.attempts[0].fault_signature,
    )
    assert (0, "a hunch") == (fact["attempt"], fact["reason"])


async def test_uncordon_unwinds_a_reset_before_its_pivot(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """While the node drains an operator may uncordon it; nothing is reset."""
    peers.hold["drain"] = asyncio.Event()
    async with Running(server.url, "pool-manager", build, laddered()):
        [node] = await eventually(settled(bus, 1))
        await publish_verdict(peers, node, 1)
        await eventually(lambda: _performed(peers, "drain", node))
        await ask(bus, "uncordon", node=node)
        record = await eventually(lambda: _back(bus, node))

    assert 0 == peers.count("reset")[node]
    assert ["cancelled"] == [each.outcome for each in record.attempts]


async def _performed(peers: Peers, step: str, node: str) -> int:
    return peers.count(step)[node]


async def _back(bus: NatsBus, node: str) -> NodeRecord | None:
    record = await record_of(bus, node)
    cancelled = any(each.outcome == "cancelled" for each in record.attempts)
    return record if cancelled and not record.cordoned and not record.saga else None


async def test_alert_remediation_publishes_once_and_performs_nothing(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """`remediation: alert`: one event, however often the pool is planned."""
    alert = HealthSpec(remediation=PluginSettings(type="alert"))
    async with Running(server.url, "pool-manager", build, laddered(health=alert)):
        [node] = await eventually(settled(bus, 1))
        await publish_verdict(peers, node, 1)
        [first] = await eventually(lambda: events(bus, "operator-needed"))
        await publish_verdict(peers, node, 1)
        await ask(bus, "scale", nodes=2)
        await eventually(settled(bus, 2))
        all_of_them = await events(bus, "operator-needed")

    assert [first] == all_of_them
    assert (node, "reset_gpu", "XID 95") == (first["node"], first["action"], first["reason"])
    assert 0 == peers.count("cordon")[node]
