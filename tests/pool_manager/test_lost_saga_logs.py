"""Saga logs that are lost, cut short, or ahead of the records: all come to agree again."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.messages import decoder, encode
from schemas.node_records import NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord, pool_key
from schemas.saga_log_entries import WHOLE, SagaStarted, StepStarted, TimerDue
from schemas.saga_params import SagaParams
from schemas.settings import PoolSpec
from schemas.topology import NODES, POOLS, SAGAS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.notifier.alerts.alert_rules import ended_keys
from services.pool_manager.planner import saga_audit
from services.pool_manager.planner.saga_projection import coming_node, leaving_node
from services.pool_manager.service import build
from services.saga.saga_state import SagaState, fold
from tests.pool_manager.fleet import ask, nodes, peers, settings, settled, under_way
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

__all__ = ["peers"]

NOW = datetime(2026, 11, 22, tzinfo=UTC)
REPLACE = OpenSaga(kind="replace", node="n1", new_node="n2", since=NOW)
DRAIN = OpenSaga(kind="drain", node="n1", since=NOW)
POOL = PoolRecord(
    name="p",
    spec=PoolSpec(provider="p", instance_type="t", min_nodes=1, max_nodes=9),
    desired=1,
    open={"drain-n1-1": DRAIN},
)


def node(name: str, state: Any, **changes: Any) -> NodeRecord:
    """Return a node of the pool."""
    return NodeRecord(pool="p", node=name, state=state, **changes)


@pytest.mark.parametrize(
    ("opened", "states", "expected"),
    [
        pytest.param(REPLACE, {"n1": "leaving"}, {"saga": "replace"}, id="nothing is done yet"),
        pytest.param(REPLACE, {}, {"saga": "replace"}, id="the node's record is lost as well"),
        pytest.param(
            REPLACE, {"n1": "terminated"}, {"scale-up-n2": "scale-up"}, id="the old node is gone"
        ),
        pytest.param(REPLACE, {"n1": "terminated", "n2": "active"}, {}, id="both are done"),
        pytest.param(DRAIN, {"n1": "active"}, {"saga": "drain"}, id="a drain begins again"),
        pytest.param(DRAIN, {"n1": "terminated"}, {}, id="a drain of a node that is gone"),
    ],
)
def test_what_follows_an_open_saga_without_a_log(
    opened: OpenSaga, states: dict[str, Any], expected: dict[str, str]
) -> None:
    """The saga begins again, or what is left of it; no step is performed on a node that is gone."""
    found = {name: node(name, state) for name, state in states.items()}
    made = saga_audit.restarted("saga", opened, found)
    assert expected == {saga: each.kind for saga, each in made.items()}


def test_a_saga_that_is_not_begun_again_ends_the_alerts_about_its_node() -> None:
    """The saga, without its log, will never say that the node was replaced."""
    new = saga_audit.completion("n2", spare=False, since=NOW)
    event = saga_audit.abandoned("p", "replace-n1-1", REPLACE, new, NOW)
    assert event.then == "scale-up-n2"
    assert {"health/p/n1", "lost/p/n1", "saga/replace-n1-1"} <= {*ended_keys(event)}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (node("n1", "leaving", saga="drain-n1-1"), False),
        (node("n2", "active"), False),
        (node("n2", "active", saga="drain-n2-1"), True),
        (node("n2", "leaving"), True),
        (node("n2", "launching"), True),
        (node("n2", "terminated", saga="drain-n2-1"), False),
    ],
)
def test_which_nodes_wait_for_a_saga_that_their_pool_does_not_know(
    record: NodeRecord, *, expected: bool
) -> None:
    """Nodes that an open saga is about are its own."""
    assert saga_audit.is_stranded(record, POOL) is expected


def log_of(saga: str, params: SagaParams) -> SagaState:
    """A saga's log that is cut below the end of its cordon."""
    about: dict[str, Any] = {"time": NOW, "saga": saga}
    state = fold(None, SagaStarted(id="s", kind="replace", params=params, **about), 11, {})
    return fold(state, StepStarted(id="c", step="cordon", **about), 12, {})


@pytest.mark.parametrize(
    ("record", "step", "found"),
    [
        (node("n1", "terminated", saga="replace-n1-1"), "terminate", True),
        (node("n1", "leaving", saga="replace-n1-1"), "terminate", False),
        (node("n1", "terminated", saga="drain-n1-2"), "terminate", False),
        (node("n1", "terminated", saga="replace-n1-1"), "drain", False),
        (None, "terminate", False),
    ],
)
def test_a_termination_that_a_record_has_seen_has_ended(
    record: NodeRecord | None, step: str, *, found: bool
) -> None:
    """The log was cut below its end, and its participant, which has answered, says no more."""
    params = SagaParams(pool="p", node="n1", new_node="n2")
    about: dict[str, Any] = {"time": NOW, "saga": "replace-n1-1"}
    state = fold(None, SagaStarted(id="s", kind="replace", params=params, **about), 11, {})
    state = fold(state, StepStarted(id="c", step=step, **about), 12, {})
    end = saga_audit.recorded_end(state, record, NOW)
    assert (end is not None) is found
    if end is not None:
        assert fold(state, end, 13, {}).step("terminate").status == "succeeded"


@pytest.mark.parametrize(
    ("record", "ended"),
    [
        (node("n1", "active", sagas=2), True),
        (node("n1", "terminated", sagas=1), True),
        (node("n1", "active", sagas=1, saga="replace-n1-1"), False),
        (node("n1", "active"), False),
        (None, False),
    ],
)
def test_which_sagas_ended_by_their_nodes_records(
    record: NodeRecord | None, *, ended: bool
) -> None:
    """A saga that ended does not change the record again, even one that has forgotten the log."""
    state = log_of("replace-n1-1", SagaParams(pool="p", node="n1", new_node="n2"))
    assert saga_audit.has_ended(state, record, None) is ended
    if ended:
        assert leaving_node(record, state) == record


@pytest.mark.parametrize(
    ("record", "ended"),
    [
        (node("n2", "active"), True),
        (node("n2", "terminated"), True),
        (node("n2", "active", saga="scale-up-n2"), False),
        (node("n2", "registered", saga="scale-up-n2"), False),
        (node("n2", "launching"), False),
        (None, False),
    ],
)
def test_which_launches_ended_by_their_nodes_records(
    record: NodeRecord | None, *, ended: bool
) -> None:
    """A node that came is brought no further by what is left of a log."""
    state = log_of("scale-up-n2", SagaParams(pool="p", new_node="n2"))
    assert saga_audit.has_ended(state, None, record) is ended
    if ended:
        assert coming_node(record, state) == record


def test_a_node_that_is_gone_stays_gone_when_its_log_is_cut() -> None:
    """The replacement goes on; in the record nothing is left of the node that could fall silent."""
    gone = node("n1", "terminated", saga="replace-n1-1", cordoned=True)
    state = log_of("replace-n1-1", SagaParams(pool="p", node="n1", new_node="n2"))
    after = leaving_node(gone, state)
    assert after is not None
    assert after.state == "terminated"


async def test_what_is_left_of_an_ended_sagas_log_does_nothing_and_is_removed(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The log of a drain lost all but its cordon; its timer comes when the node is in service."""
    async with Running(server.url, "pool-manager", build, settings()):
        [name, *_] = await eventually(settled(bus, 3))
        await ask(bus, "drain", node=name)
        saga = f"drain-{name}-1"

        async def drained() -> bool:
            return bool(await bus.read(SAGAS.name, subjects.saga_entry(saga, WHOLE, "done")))

        await eventually(drained)
        await ask(bus, "uncordon", node=name)
        await eventually(under_way(peers, "uncordon"))
        await eventually(settled(bus, 3))
        before = list(peers.calls)
        stored = await bus.read(SAGAS.name, subjects.saga_tree(saga))
        for each in stored[3:]:
            await bus.admin(f"STREAM.MSG.DELETE.{SAGAS.name}", {"seq": each.sequence})
        now = datetime.now(UTC)
        due = TimerDue(id="due", time=now, saga=saga, step="drain")
        await bus.schedule("pool-manager", "due", now, encode(due))

        async def removed() -> bool:
            return not await bus.read(SAGAS.name, subjects.saga_tree(saga))

        await eventually(removed)
        assert name in await eventually(settled(bus, 3))
    assert [each.subject.rpartition(".")[2] for each in stored[:3]][-1] == "succeeded"
    assert peers.calls == before


async def test_a_replacement_whose_log_is_purged_begins_again_and_ends(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The duplicate window lasts: its first entry is stored again, and its node replaced."""
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        peers.hold["drain"] = asyncio.Event()
        await ask(bus, "replace", node=before[0])
        await eventually(under_way(peers, "drain"))
        await bus.purge(SAGAS.name, ">")
        peers.hold.pop("drain").set()
        after = await eventually(settled(bus, 3))
        views = await nodes(bus)
    assert before[0] not in after
    assert not [each.saga for each in views if each.saga]


async def test_a_launch_whose_log_is_purged_while_it_is_given_up_is_undone(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The node has registered: the log that begins again first has the launch, then undoes it."""
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        held = asyncio.Event()
        peers.hold |= {"bootstrap": held, "undo-provision": held}
        await ask(bus, "scale", nodes=4)
        await eventually(under_way(peers, "bootstrap"))
        await ask(bus, "scale", nodes=3)
        await eventually(under_way(peers, "undo-provision"))
        await bus.purge(SAGAS.name, ">")
        peers.hold.clear()
        held.set()

        async def gone() -> bool:
            return peers.instances == set(before) and len(await nodes(bus)) == len(before)

        await eventually(gone)
        after = await eventually(settled(bus, 3))
    assert sorted(before) == sorted(after)


async def test_an_ended_saga_leaves_a_pool_record_that_was_rolled_back(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The pool's record has it open, the log is done: the record follows the log."""
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        peers.hold["cordon"] = asyncio.Event()
        await ask(bus, "cordon", node=before[0])
        await eventually(under_way(peers, "cordon"))
        older = await bus.get(POOLS, pool_key("training"))
        assert older is not None
        peers.hold.pop("cordon").set()
        await eventually(settled(bus, 3))
        await bus.put(POOLS, pool_key("training"), older.value)
        await ask(bus, "uncordon", node=before[0])

        async def uncordoned() -> bool:
            [view] = [each for each in await nodes(bus) if each.id == before[0]]
            return not view.cordoned and not view.saga

        await eventually(uncordoned)
        await eventually(settled(bus, 3))


async def test_a_node_that_claims_a_lost_saga_is_decided_on_again(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """Neither its pool nor SAGAS knows the saga: the node is in service again."""
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        done = peers.count("cordon")
        key = f"training.{before[0]}"
        entry = await bus.get(NODES, key)
        assert entry is not None
        record = decoder(NodeRecord).decode(entry.value)
        lost = msgspec.structs.replace(
            record, state="leaving", saga="replace-lost-1", saga_entry=10_000
        )
        await bus.put(NODES, key, encode(lost))

        async def free() -> bool:
            [view] = [each for each in await nodes(bus) if each.id == before[0]]
            return view.status == "active" and not view.saga

        await eventually(free)
    assert peers.count("cordon") == done
