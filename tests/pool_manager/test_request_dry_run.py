"""`--dry-run` on a real server: what a request would do, without performing it."""

from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.dry_run import DryRun
from schemas.messages import encode
from schemas.node_work import NODE_WORK, NodeWorkAnswer, NodeWorkQuery, OwnedWork
from schemas.settings import AdmissionSpec
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Headers
from services.cli.dry_run_output import page
from services.pool_manager.service import build
from tests.pool_manager.fleet import ask, events, nodes, peers, settings, settled
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

__all__ = ["peers"]

POOL = settings(
    min_nodes=1, spares=1, zones=("a", "b"), region="r", admission=AdmissionSpec(diagnostic="boot")
)


async def dry_run(bus: NatsBus, verb: str, node: str, **fields: Any) -> DryRun:
    """Ask what a request would do."""
    asked = {"verb": verb, "node": node, "request": fields}
    subject = subjects.query("dry-run")
    reply = await bus.request(subject, msgspec.json.encode(asked), timeout_seconds=30)
    return msgspec.json.decode(reply.data, type=DryRun)


async def test_dry_run_of_a_replacement_lists_its_steps(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The saga, the spare, the offering and each step's deadline; nothing is performed."""
    async with Running(server.url, "pool-manager", build, POOL):
        await eventually(settled(bus, 2))
        before = {view.id: view.spare for view in await nodes(bus)}
        peers.calls.clear()
        last = await bus.last_sequence("EVENTS")
        [name] = [each for each, spare in before.items() if not spare]
        [spare] = [each for each, is_spare in before.items() if is_spare]
        reply = await dry_run(bus, "replace", name, mode="deadline", timeout="10m")
        again = await dry_run(bus, "replace", name, mode="deadline", timeout="10m")
        after = {view.id: view.spare for view in await nodes(bus)}
        late = await bus.last_sequence("EVENTS")

    assert (True, f"replace-{name}-1", spare) == (reply.accepted, reply.saga, reply.promotes)
    assert ["cordon", "promote", "drain", "terminate", "provision"] == [
        each.step for each in reply.steps[:5]
    ]
    assert {"drain": 600.0, "provision": 1200.0} == {
        each.step: each.deadline_seconds
        for each in reply.steps
        if each.step in ("drain", "provision")
    }
    offering = reply.offering
    assert offering is not None
    assert ("test", "r", ("a", "b")) == (offering.provider, offering.region, offering.zones)
    assert all(gate.passed for gate in reply.gates)
    assert (reply, before, last, []) == (again, after, late, peers.calls)
    assert f"The spare {spare} would take its place at once." in page(reply)
    assert "It can be cancelled until terminate begins" in page(reply)


@pytest.mark.parametrize(
    ("changes", "held", "verb", "refusal", "stops"),
    [
        ({}, False, "replace", None, []),
        ({}, True, "drain", "held", ["hold and mode"]),
        ({"mode": "observe"}, False, "replace", "observing", ["hold and mode"]),
    ],
)
async def test_dry_run_reports_each_gate_separately(
    server: EmbeddedServer,
    bus: NatsBus,
    peers: Peers,
    changes: dict[str, Any],
    held: bool,
    verb: str,
    refusal: str | None,
    stops: list[str],
) -> None:
    """The words are those of the refusal itself."""
    async with Running(server.url, "pool-manager", build, settings(min_nodes=1)):
        [name] = await eventually(settled(bus, 1))
    peers.calls.clear()
    pool = settings(min_nodes=1, **changes)
    async with Running(server.url, "pool-manager", build, pool):
        if held:
            await ask(bus, "hold", node=name, reason="bisecting", **{"for": "1h"})
            await eventually(lambda: events(bus, "request-accepted"))
        reply = await dry_run(bus, verb, name)

    assert refusal == reply.refusal
    assert stops == [gate.name for gate in reply.gates if not gate.passed]
    assert ("bisecting" in reply.reason) == held
    assert page(reply).startswith(f"{verb} {name} would be ")
    assert [] == peers.calls


async def test_a_dry_run_says_whose_work_would_end(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """A saga and a smaller size name owners; a cordon, and what would be refused, name none."""
    owners = (OwnedWork(owner="alice", work=("job 1",), total=2),)
    asked: list[tuple[str, ...]] = []

    async def work(data: bytes, _: Headers) -> bytes:
        asked.append(msgspec.json.decode(data, type=NodeWorkQuery).nodes)
        return encode(NodeWorkAnswer(busy=asked[-1], owners=owners))

    async with Running(server.url, "pool-manager", build, settings(min_nodes=1)):
        await eventually(settled(bus, 1))
        await ask(bus, "scale", nodes=2)
        await eventually(settled(bus, 2))
        peers.calls.clear()
        names = [view.id for view in await nodes(bus)]
        unanswered = await dry_run(bus, "replace", names[0])
        await bus.serve("notifier", "", {subjects.query(NODE_WORK): work})
        replies = {
            verb: await dry_run(bus, verb, names[0])
            for verb in ("replace", "drain", "terminate", "cordon")
        }
        refused = await dry_run_of_pool(bus, "remove")
        shrunk = await dry_run_of_pool(bus, "scale", nodes=1)
        grown = await dry_run_of_pool(bus, "scale", nodes=3)

    assert unanswered.accepted
    assert "the notifier does not answer" in unanswered.owners_unknown
    assert "Whose work it would end is unknown: the notifier does not" in page(unanswered)
    for verb, reply in replies.items():
        assert reply.owners == (() if verb == "cordon" else owners), verb
    assert "It would end the work of:\n  alice: job 1 and 1 more" in page(replies["replace"])
    assert [refused.accepted, shrunk.accepted, grown.accepted] == [False, True, True]
    assert [refused.owners, shrunk.owners, grown.owners] == [(), owners, ()]
    assert len(asked[-1]) == 1, "one node leaves"


async def dry_run_of_pool(bus: NatsBus, verb: str, **fields: Any) -> DryRun:
    """Ask what a request about the pool would do."""
    asked = {"verb": verb, "pool": "training", "request": fields}
    subject = subjects.query("dry-run")
    reply = await bus.request(subject, msgspec.json.encode(asked), timeout_seconds=30)
    return msgspec.json.decode(reply.data, type=DryRun)
