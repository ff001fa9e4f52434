"""NODES or POOLS lost while the services run: recorded again, and nothing is launched for it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.instance_records import InstanceRecord
from schemas.node_events import NodeEvent, NodeHeld, Registered, Verdict
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import PoolRecord, pool_key
from schemas.saga_params import LaunchSpec, SagaParams
from schemas.settings import PoolSpec
from schemas.stream_specs import BucketSpec
from schemas.topology import NODES, POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.planner.node_reconstruction import (
    NodeSources,
    StoredEvent,
    adopted_node,
    is_missed,
    reconstructed_node,
)
from services.pool_manager.planner.sizing.open_sagas import highest_serial, without_name
from services.pool_manager.service import build
from services.saga.saga_state import SagaState, StepState
from tests.pool_manager.fleet import ask, nodes, peers, settings, settled
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers
from tests.support.saga_states import saga_state

__all__ = ["peers"]

NOW = datetime(2026, 11, 22, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
SUCCEEDED = StepState(status="succeeded", ended_at=NOW)
LAUNCH = LaunchSpec(fleet="f", provider="p", instance_type="t")
INSTANCE = InstanceRecord(
    pool="p", instance="n1", state="running", provider="p", token="t", launch=LAUNCH,
    intended_at=NOW, running_at=NOW,
)  # fmt: skip


def saga(kind: Any, sequence: int, status: Any = "done", **changes: Any) -> SagaState:
    """A saga about node n1 whose named steps have succeeded."""
    steps = dict.fromkeys(changes.pop("steps", ()), SUCCEEDED)
    params = SagaParams(pool="p", launch=LAUNCH, **changes)
    return saga_state(
        saga=f"{kind}-n1-{sequence}", kind=kind, params=params, started_at=NOW,
        sequence=sequence, status=status, steps=steps,
    )  # fmt: skip


BROUGHT = saga("scale-up", 1, new_node="n1", steps=("provision", "register", "admit"))
CORDONED = saga("cordon", 2, node="n1", steps=("cordon",))
UNCORDONED = saga("uncordon", 3, node="n1", steps=("uncordon",))
DRAINING = saga("drain", 4, "running", node="n1", steps=("cordon",))
REPLACED = saga("replace", 5, node="n1", new_node="n2", steps=("cordon", "drain", "terminate"))


JOINED = msgspec.structs.replace(
    INSTANCE, launch=msgspec.structs.replace(LAUNCH, fleet=""), running_at=LATER
)


@pytest.mark.parametrize(
    ("registered_at", "launched", "beats", "missed"),
    [
        pytest.param(None, False, False, False, id="its agent may not have started"),
        pytest.param(None, True, False, True, id="its agent was there when its record was lost"),
        pytest.param(NOW, False, False, True, id="its agent registered, and fell silent"),
        pytest.param(NOW, False, True, False, id="its agent beats"),
        pytest.param(LATER, False, False, False, id="its first heartbeat is on its way"),
        pytest.param(LATER, True, False, False, id="launched, and just registered"),
    ],
)
def test_a_node_that_is_adopted_is_missed_only_where_nothing_else_misses_it(
    registered_at: datetime | None, launched: bool, beats: bool, missed: bool
) -> None:
    """Agents that wait for a bus register a moment before their first heartbeat is taken."""
    made = msgspec.structs.replace(adopted_node(None, INSTANCE, LATER), registered_at=registered_at)
    now, ttl = LATER + timedelta(seconds=1), timedelta(seconds=30)
    assert is_missed(made, launched=launched, beats=beats, now=now, expected=ttl) == missed


def event(kind: type[NodeEvent], at: datetime = LATER, **fields: Any) -> StoredEvent:
    """Return an event about n1."""
    return StoredEvent(9, at, kind(id="e", time=at, pool="p", node="n1", **fields))


@pytest.mark.parametrize(
    ("record", "sources", "expected"),
    [
        pytest.param(None, NodeSources(None, [], []), None, id="nothing is known"),
        pytest.param(
            None,
            NodeSources(INSTANCE, [], []),
            {"state": "active", "admitted_at": NOW},
            id="its logs are not kept any more",
        ),
        pytest.param(
            None,
            NodeSources(None, [BROUGHT, CORDONED], []),
            {"state": "active", "cordoned": True, "sagas": 2, "saga_entry": 2},
            id="its instance's record is lost as well",
        ),
        pytest.param(
            None,
            NodeSources(INSTANCE, [DRAINING, BROUGHT], []),
            {"cordoned": True, "saga": "drain-n1-4"},
            id="an open saga goes on",
        ),
        pytest.param(
            NodeRecord(pool="p", node="n1", state="active", saga_entry=1),
            NodeSources(INSTANCE, [BROUGHT, REPLACED], []),
            {"state": "terminated"},
            id="the record is older than its logs",
        ),
        pytest.param(
            NodeRecord(pool="p", node="n1", state="active"),
            NodeSources(msgspec.structs.replace(INSTANCE, state="terminated"), [], []),
            {"state": "terminated"},
            id="its instance is gone",
        ),
        pytest.param(
            None,
            NodeSources(
                INSTANCE,
                [BROUGHT],
                [
                    event(Registered, instance="n1", boot_id="b"),
                    event(Verdict, status="unhealthy", action="replace", reason="r"),
                    event(NodeHeld, until=LATER),
                ],
            ),
            {"boot_id": "b", "health": "unhealthy", "held_until": LATER},
            id="its last events count",
        ),
        pytest.param(
            None,
            NodeSources(
                INSTANCE,
                [BROUGHT, CORDONED, UNCORDONED],
                [event(Verdict, NOW, status="unhealthy", action="replace", reason="r")],
            ),
            {"health": "unknown", "cordoned": False},
            id="an uncordon has cleared the verdict",
        ),
        pytest.param(
            None,
            NodeSources(JOINED, [REPLACED], []),
            {"state": "active", "sagas": 5, "saga_entry": 5},
            id="others gave it the name of one that was replaced",
        ),
        pytest.param(
            None,
            NodeSources(msgspec.structs.replace(INSTANCE, state="terminating"), [REPLACED], []),
            {"state": "terminated"},
            id="others made it, and a saga removed it",
        ),
        pytest.param(
            None,
            NodeSources(
                msgspec.structs.replace(JOINED, created_at=LATER),
                [],
                [
                    event(Verdict, NOW, status="unhealthy", action="replace", reason="r"),
                    event(Registered, instance="n1", boot_id="b"),
                ],
            ),
            {"boot_id": "b", "health": "unknown"},
            id="others made it, and the verdict is older",
        ),
        pytest.param(
            None,
            NodeSources(
                msgspec.structs.replace(JOINED, created_at=NOW + timedelta(seconds=30)),
                [],
                [
                    event(Verdict, NOW, status="unhealthy", reason="r")._replace(stored_at=LATER),
                    event(Registered, instance="n1", boot_id="b"),
                ],
            ),
            {"boot_id": "b", "health": "unknown"},
            id="others made it, and the verdict of the first was replayed",
        ),
    ],
)
def test_what_is_recorded_again(
    record: NodeRecord | None, sources: NodeSources, expected: dict[str, Any] | None
) -> None:
    """The record is made from what else is stored; doing it twice changes nothing more."""
    found = reconstructed_node(record, "n1", sources, NOW)
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert {name: getattr(found, name) for name in expected} == expected
    assert reconstructed_node(found, "n1", sources, NOW) == found


def test_the_highest_serial_of_a_pool() -> None:
    """Names of other pools and of other shapes do not count."""
    names = ["a-2-0f0f", "a-11-ffff", "a-b-99-ffff", "b-50-ffff", "a-77", "by-hand"]
    assert highest_serial("a", names) == 11
    assert highest_serial("c", names) == 0


async def _lost(bus: NatsBus, bucket: BucketSpec) -> None:
    """Delete a bucket and create it again, as the notifier does."""
    await bus.admin(f"STREAM.DELETE.KV_{bucket.name}", {})
    await bus.admin(f"STREAM.CREATE.KV_{bucket.name}", bucket.stream().config(1))


async def test_nodes_without_records_are_recorded_again_and_not_launched_once_more(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """A decision made meanwhile waits for them."""
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        await ask(bus, "cordon", node=before[0])

        async def cordoned() -> bool:
            return any(each.cordoned and not each.saga for each in await nodes(bus))

        await eventually(cordoned)
        await _lost(bus, NODES)
        await ask(bus, "uncordon", node=before[0])

        async def as_before() -> bool:
            views = [each for each in await nodes(bus) if not each.cordoned and not each.saga]
            return sorted(each.id for each in views) == sorted(before)

        await eventually(as_before)
        await eventually(settled(bus, 3))
    assert peers.count("provision").total() == 3
    assert await bus.get(NODES, node_key("training", before[1])) is not None


async def test_a_lost_pool_is_recorded_again_and_names_no_node_twice(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The record counts the nodes that there are; the next node gets a new name."""

    async def sweep(_data: bytes, _: object) -> bytes:
        return b"{}"

    await bus.serve("provisioner", "", {subjects.order_wildcard("sweep-now"): sweep})
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        await _lost(bus, POOLS)

        async def recorded() -> bool:
            return await bus.get(POOLS, pool_key("training")) is not None

        await eventually(recorded)
        await ask(bus, "scale", nodes=4)
        after = await eventually(settled(bus, 4))
    assert set(before) < set(after)
    assert peers.count("provision").total() == 4


@pytest.mark.parametrize(
    ("name", "serial"), [("training-10-5ecb", 10), ("training-3-0ed2", 7), ("gpu-99", 7)]
)
def test_a_pool_gives_no_name_again_that_an_operator_adopts(name: str, serial: int) -> None:
    """The pool's record may be of before it gave the name."""
    spec = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=9)
    record = PoolRecord(name="training", spec=spec, desired=0, serial=7)
    assert without_name(record, name).serial == serial
