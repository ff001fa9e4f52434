"""The pool-manager is tested on a real server, with scripted peers."""

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.messages import encode
from schemas.saga_log_entries import WHOLE, TimerDue
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.service import build
from tests.pool_manager.fleet import events, nodes, peers, settings, settled, under_way
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

__all__ = ["peers"]


async def test_pool_reaches_its_size(server: EmbeddedServer, bus: NatsBus, peers: Peers) -> None:
    """A new pool gets min_nodes nodes, each provisioned once."""
    async with Running(server.url, "pool-manager", build, settings()):
        names = await eventually(settled(bus, 3))

    assert 3 == len(names)
    assert Counter(dict.fromkeys(names, 1)) == peers.count("provision")


@pytest.mark.parametrize(
    ("order", "steps"),
    [
        (
            "terminate_first",
            ["cordon", "drain", "terminate", "provision", "bootstrap"],
        ),
        (
            "provision_first",
            ["cordon", "provision", "bootstrap", "drain", "terminate"],
        ),
    ],
)
async def test_unhealthy_node_is_replaced_in_the_pools_order(
    server: EmbeddedServer, bus: NatsBus, peers: Peers, order: str, steps: list[str]
) -> None:
    """One verdict gives one replacement; each step runs once, in the pool's order."""
    async with Running(server.url, "pool-manager", build, settings(replace_order=order)):
        before = await eventually(settled(bus, 3))
        peers.calls.clear()
        await peers.make_unhealthy("training", before[0])

        async def replaced() -> list[dict[str, Any]]:
            return await events(bus, "node-replaced")

        [event] = await eventually(replaced)
        after = await eventually(settled(bus, 3))

    assert before[0] == event["old_node"]
    assert before[0] not in after
    assert event["new_node"] in after
    assert steps == [step for step, _ in peers.calls]
    assert (4 if order == "provision_first" else 3) == peers.most_instances


async def test_repeated_verdict_starts_no_second_replacement(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """All five verdicts about one node, before and during its replacement, have one effect."""
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        for i in range(5):
            await peers.make_unhealthy("training", before[0], fault=f"f{i}")
        await eventually(settled(bus, 3))
        found = await eventually(lambda: events(bus, "node-replaced"))

    assert 1 == len(found)
    assert {before[0]: 1} == peers.count("terminate")


async def test_budget_holds_back_a_second_replacement(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """Two unhealthy nodes are replaced one after the other with a budget of one."""
    peers.hold["drain"] = asyncio.Event()
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        await peers.make_unhealthy("training", before[0])
        await peers.make_unhealthy("training", before[1])
        [opened] = await eventually(lambda: events(bus, "breaker-opened"))

        async def one() -> bool:
            return len(peers.count("cordon")) == 1

        assert 1 == opened["limit"]
        await eventually(one)

        peers.hold["drain"].set()

        async def both() -> bool:
            return len(await events(bus, "node-replaced")) == 2

        await eventually(both)
        await eventually(lambda: events(bus, "breaker-closed"))

    assert 3 == peers.most_instances


async def test_failed_launch_is_unwound_and_retried(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """A failed provision leaves no instance; the pool backs off, then retries."""
    peers.fail["provision"] = "no capacity"
    async with Running(server.url, "pool-manager", build, settings(min_nodes=1)):
        failed = await eventually(lambda: events(bus, "saga-failed"))
        peers.fail.clear()
        await eventually(settled(bus, 1))

    assert "no capacity" == failed[0]["reason"]
    assert 1 == len(peers.instances)


async def test_node_that_fails_admission_is_terminated(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """Seven GPUs instead of eight: the instance is terminated and another launched."""
    peers.gpus = 7
    async with Running(server.url, "pool-manager", build, settings(min_nodes=1)):
        [failed, *_] = await eventually(lambda: events(bus, "saga-failed"))
        peers.gpus = 8
        names = await eventually(settled(bus, 1))

    assert "admit" == failed["step"]
    assert "7 GPUs where 8 were promised" == failed["reason"]
    assert set(names) == peers.instances


@pytest.mark.parametrize(
    ("payload", "fact", "refusal"),
    [
        (b'{"nodes": 5}', "scaled", ""),
        (b'{"nodes": "x"}', "scale-refused", "invalid-request"),
        (b'{"nodes": 99}', "scale-refused", "above-maximum"),
        (b'{"nodes": 1}', "scale-refused", "below-minimum"),
        (b'{"node": 5}', "scale-refused", "invalid-request"),
        (b"not json", "scale-refused", "invalid-request"),
        (b"\xff\xfe", "scale-refused", "invalid-request"),
    ],
)
async def test_scale_requests_are_answered_with_an_event(
    server: EmbeddedServer,
    bus: NatsBus,
    peers: Peers,
    payload: bytes,
    fact: str,
    refusal: str,
) -> None:
    """An accepted request is applied; a refused one says why and changes nothing."""
    async with Running(server.url, "pool-manager", build, settings()):
        await eventually(settled(bus, 3))
        await bus.publish(subjects.pool_request("training", "scale"), payload)
        [event] = await eventually(lambda: events(bus, fact))
        after = await eventually(settled(bus, 5 if fact == "scaled" else 3))

    assert refusal == event.get("refusal", "")
    assert len(after) == len(peers.instances)


async def test_request_to_an_unknown_pool_is_refused(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The refusal is published on that pool's own subject."""
    async with Running(server.url, "pool-manager", build, settings()):
        await eventually(settled(bus, 3))
        await bus.publish(subjects.pool_request("nowhere", "scale"), b'{"nodes": 5}')
        [event] = await eventually(lambda: events(bus, "scale-refused"))

    assert ("nowhere", "unknown-pool") == (event["pool"], event["refusal"])
    assert 3 == len(peers.instances)


async def test_scaling_down_drains_before_it_terminates(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """Surplus nodes are cordoned, drained and terminated; the rest stay."""
    async with Running(server.url, "pool-manager", build, settings(min_nodes=1)):
        await eventually(settled(bus, 1))
        await bus.publish(subjects.pool_request("training", "scale"), b'{"nodes": 3}')
        await eventually(settled(bus, 3))
        peers.calls.clear()
        await bus.publish(subjects.pool_request("training", "scale"), b'{"nodes": 2}')
        await eventually(settled(bus, 2))

    assert ["cordon", "drain", "terminate"] == [step for step, _ in peers.calls]
    assert 2 == len(peers.instances)


async def test_operators_cordon_drain_and_uncordon(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """Each request is applied once and answered; a second drain exceeds the budget."""
    async with Running(server.url, "pool-manager", build, settings()):
        [first, second, _] = await eventually(settled(bus, 3))

        async def ask(verb: str, node: str) -> None:
            body = msgspec.json.encode({"node": node, "by": "test"})
            await bus.publish(subjects.pool_request("training", verb), body)

        async def shows(node: str, **wanted: bool) -> bool:
            for view in await nodes(bus):
                if view.id == node and not view.saga:
                    return all(getattr(view, k) == v for k, v in wanted.items())
            return False

        await ask("cordon", first)
        await eventually(lambda: shows(first, cordoned=True))
        await ask("drain", second)
        [refused] = await eventually(lambda: events(bus, "request-refused"))
        await ask("uncordon", first)
        await eventually(lambda: shows(first, cordoned=False))
        await ask("drain", second)
        await eventually(lambda: shows(second, cordoned=True, drained=True))

    assert "budget-exhausted" == refused["refusal"]
    assert [("cordon", first), ("uncordon", first), ("cordon", second), ("drain", second)] == [
        call for call in peers.calls if call[0] in ("cordon", "uncordon", "drain")
    ]


async def test_two_replicas_make_one_replacement(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """Two pool-managers: the pool reaches its size, one unhealthy node is replaced once."""
    async with (
        Running(server.url, "pool-manager", build, settings(), replica=1),
        Running(server.url, "pool-manager", build, settings(), replica=2),
    ):
        before = await eventually(settled(bus, 3))
        await peers.make_unhealthy("training", before[1])
        await eventually(lambda: events(bus, "node-replaced"))
        await eventually(settled(bus, 3))

    assert 4 == sum(peers.count("provision").values())
    assert {before[1]: 1} == peers.count("terminate")
    assert 3 == len(peers.instances)


async def test_server_restart_loses_no_saga(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """nats-server restarts during a replacement, and the replacement completes."""
    peers.hold["drain"] = asyncio.Event()
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        await peers.make_unhealthy("training", before[0])

        await eventually(under_way(peers, "drain"))
        await server.restart()
        peers.hold["drain"].set()

        async def replaced() -> bool:
            return bus.connected and bool(await events(bus, "node-replaced"))

        await eventually(replaced)
        await eventually(settled(bus, 3))

    assert {before[0]: 1} == peers.count("terminate")
    assert 3 == len(peers.instances)


async def test_event_about_an_unknown_node_changes_nothing(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """An agent that the pool did not launch registers: no node, no saga."""
    async with Running(server.url, "pool-manager", build, settings()):
        await eventually(settled(bus, 3))
        await peers.register("training", "stray-1")
        await peers.register("elsewhere", "stray-2")
        await eventually(settled(bus, 3))

        assert "stray-1" not in {view.id for view in await nodes(bus)}


async def test_only_logs_of_ended_sagas_age_out(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The log of an ended saga is deleted after its retention; that of an open one is kept."""
    async with Running(server.url, "pool-manager", build, settings(min_nodes=1, max_nodes=1)):
        [name] = await eventually(settled(bus, 1))
        peers.hold["drain"] = asyncio.Event()
        await peers.make_unhealthy("training", name)
        await eventually(lambda: bus.read("SAGAS", subjects.saga_step_wildcard("drain", "started")))
        for saga in (f"scale-up-{name}", f"replace-{name}-1"):
            over = TimerDue(id=f"over-{saga}", time=datetime.now(UTC), saga=saga, step=WHOLE)
            await bus.schedule("pool-manager", f"{saga}-saga", over.time, encode(over))

        async def gone() -> bool:
            return not await bus.read("SAGAS", subjects.saga_tree(f"scale-up-{name}"))

        await eventually(gone)
        assert await bus.read("SAGAS", subjects.saga_tree(f"replace-{name}-1"))
        peers.hold["drain"].set()
        await eventually(lambda: events(bus, "node-replaced"))
