"""Pools that operators create and remove at run time: decisions, then on a real server."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.messages import decoder, encode
from schemas.node_records import NodeRecord
from schemas.operator_requests import ApplyRequest, RemoveRequest
from schemas.pool_events import RequestAccepted, RequestRefused
from schemas.pool_records import OpenSaga, PoolRecord, RemovedPool, pool_key, removed_key
from schemas.settings import HealthSpec, PoolSpec, Settings
from schemas.topology import POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.requests.pool_apply import ParsedApply, applied, is_empty, removed
from services.pool_manager.requests.request_replies import QueuedRequest
from services.pool_manager.service import build
from tests.pool_manager.fleet import events, nodes, peers, pools, settings
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

__all__ = ["peers"]

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ASKED = QueuedRequest(id="request-7", time=NOW, pool="extra", verb="apply", payload=b"")
SPEC = PoolSpec(provider="test", instance_type="t", min_nodes=0, max_nodes=4)


def snapshot(**changes: Any) -> PoolSnapshot:
    """The pool as an earlier request created it, with two of its nodes."""
    record = PoolRecord(name="extra", spec=SPEC, desired=2, serial=2, applied="request-3")
    record = msgspec.structs.replace(record, **changes)
    both = tuple(NodeRecord(pool="extra", node=each, state="active") for each in ("n1", "n2"))
    return PoolSnapshot(fleet="f", record=record, revision=1, nodes=Nodes(both))


def wants(nodes: int | None = None, **changes: Any) -> ParsedApply:
    """Return the requested spec as it was parsed."""
    spec = msgspec.structs.replace(SPEC, **changes)
    return ParsedApply(ApplyRequest(spec={}, nodes=nodes), spec)


def test_pool_is_created_with_the_requested_size() -> None:
    """The default size is min_nodes; the pool has the fleet's mode, and is marked as requested."""
    made = applied(ASKED, wants(3), None, NOW, configured=False, mode="observe").record
    least = applied(ASKED, wants(min_nodes=1), None, NOW, configured=False).record

    assert made is not None
    assert least is not None
    assert (3, "request-7", "observe", 1) == (
        made.desired,
        made.applied,
        made.spec.mode,
        least.desired,
    )


def test_pool_that_its_workload_system_sizes_takes_no_number() -> None:
    """The number would count as a gap that nothing fills."""
    refused = applied(ASKED, wants(1, workload_names="a-[1-2]"), None, NOW, configured=False)
    made = applied(ASKED, wants(workload_names="a-[1-2]"), None, NOW, configured=False)
    assert isinstance(refused.event, RequestRefused)
    assert made.record is not None


def test_change_keeps_size_serial_and_open_sagas() -> None:
    """The size is kept if the request names none and the new bounds allow it."""
    opened = {"s": OpenSaga(kind="drain", node="n1", since=NOW)}
    before = snapshot(open=opened)
    after = applied(ASKED, wants(instance_type="u"), before, NOW, configured=False).record
    fewer = applied(ASKED, wants(max_nodes=1), before, NOW, configured=False).record

    assert after is not None
    assert fewer is not None
    assert ("u", 2, 2, opened) == (
        after.spec.instance_type,
        after.desired,
        after.serial,
        after.open,
    )
    assert 1 == fewer.desired


@pytest.mark.parametrize(
    ("wanted", "there", "configured", "says"),
    [
        (wants(), None, True, "pool extra is defined in the configuration"),
        (wants(9), None, False, "9 nodes asked for, which is not between min_nodes 0 and max_nod"),
        (wants(mode="observe"), None, False, "mode: a pool made by request acts as the fleet"),
        (wants(health=HealthSpec(unhealthy_after=3)), None, False, "health.unhealthy_after"),
        (
            wants(health=HealthSpec(cordon_scope="gpu")),
            None,
            False,
            "health.cordon_scope is set in the configuration",
        ),
        (ParsedApply(ApplyRequest(spec={}), None, "min_nodes: bad"), None, False, "min_nodes: bad"),
        (wants(), snapshot(removing="request-5"), False, "is being removed; wait until it is gone"),
    ],
)
def test_invalid_change_is_refused_with_the_reason(
    wanted: ParsedApply, there: PoolSnapshot | None, configured: bool, says: str
) -> None:
    """Nothing is written."""
    answer = applied(ASKED, wanted, there, NOW, configured=configured)

    assert isinstance(answer.event, RequestRefused)
    assert answer.event.reason.startswith(says) or says in answer.event.reason
    assert answer.record is None


def test_redelivered_request_changes_nothing() -> None:
    """A repeated request changes nothing, whatever other requests were applied in between."""
    first = applied(ASKED, wants(3), None, NOW, configured=False)
    scaled = msgspec.structs.replace(first.record, desired=1)
    again = applied(ASKED, wants(3), snapshot(**_fields(scaled)), NOW, configured=False)

    assert isinstance(again.event, RequestAccepted)
    assert (first.event.id, 1) == (again.event.id, again.record and again.record.desired)


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def test_removed_pool_shrinks_to_zero_and_is_deleted() -> None:
    """A repeated removal may change the drain mode."""
    request = RemoveRequest(mode="immediate")
    answer = removed(ASKED, request, snapshot(), NOW, configured=False)
    record = answer.record

    assert record is not None
    assert (0, 0, "immediate") == (record.desired, record.spec.max_nodes, record.spec.drain)
    assert [False, True] == [is_empty(record, 2), is_empty(record, 0)]
    opened = {"s": OpenSaga(kind="scale-down", node="n1", since=NOW)}
    assert not is_empty(msgspec.structs.replace(record, open=opened), 0)
    assert not is_empty(snapshot().record, 0)


# --- on a real server ----------------------------------------------------------------------------


async def ask(bus: NatsBus, verb: str, **payload: Any) -> None:
    """Publish a request to the pool `extra`."""
    await bus.publish(subjects.pool_request("extra", verb), msgspec.json.encode(payload))


async def names(bus: NatsBus) -> list[str]:
    """Nodes of the pool `extra` that are in service."""
    return [
        each.id for each in await nodes(bus) if each.pool == "extra" and each.status == "active"
    ]


def two(bus: NatsBus) -> Any:
    """Return a check whether the pool has two nodes."""

    async def look() -> list[str]:
        found = await names(bus)
        return found if len(found) == 2 else []

    return look


def gone(bus: NatsBus, times: int = 1) -> Any:
    """Return a check whether the pool was removed this many times."""

    async def look() -> bool:
        return len(await events(bus, "pool-removed")) == times

    return look


def forgotten(bus: NatsBus) -> Any:
    """Return a check whether the pool's record is deleted, which follows the event."""

    async def look() -> bool:
        return await bus.get(POOLS, pool_key("extra")) is None

    return look


def plain(**changes: Any) -> Settings:
    """A fleet whose configuration has one pool without nodes."""
    return settings(min_nodes=0, **changes)


RAW = {"provider": "test", "instance_type": "t", "min_nodes": 0, "max_nodes": 2}


async def test_applied_pool_survives_restart_until_removed(
    bus: NatsBus, server: EmbeddedServer, peers: Peers
) -> None:
    """The configuration does not name the pool; its nodes never share a name."""
    async with Running(server.url, "pool-manager", build, plain()):
        await ask(bus, "apply", spec=RAW, nodes=2)
        first = await eventually(two(bus))
    async with Running(server.url, "pool-manager", build, plain()):
        assert first == await eventually(two(bus))
        view = next(each for each in await pools(bus) if each.name == "extra")
        assert (True, False, 2) == (view.requested, view.removing, view.desired)
        await ask(bus, "remove")
        await eventually(gone(bus))
        await eventually(forgotten(bus))
        assert set() == peers.instances
        await ask(bus, "apply", spec=RAW, nodes=2)
        second = await eventually(two(bus))
        assert set() == set(first) & set(second)
        await ask(bus, "remove")
        await eventually(gone(bus, 2))
    assert 2 == peers.most_instances
    left = await bus.get(POOLS, removed_key("extra"))
    assert left is not None
    removal = decoder(RemovedPool).decode(left.value).removal
    assert removal is not None
    assert ("remove", "pool") == (removal.verb, removal.about)


async def test_removal_cancels_a_launch_under_way(
    bus: NatsBus, server: EmbeddedServer, peers: Peers
) -> None:
    """No launch continues for a node that would be removed on arrival."""
    peers.hold["bootstrap"] = asyncio.Event()
    async with Running(server.url, "pool-manager", build, plain()):
        await ask(bus, "apply", spec=RAW, nodes=1)

        async def launched() -> bool:
            return bool(peers.instances)

        await eventually(launched)
        await ask(bus, "remove")
        await eventually(gone(bus))
    assert set() == peers.instances


async def test_launch_missed_by_the_removal_is_cancelled_later(
    bus: NatsBus, server: EmbeddedServer, peers: Peers
) -> None:
    """The log had not begun or had advanced, or the replica died: the records are enough."""
    peers.hold["bootstrap"] = asyncio.Event()
    opened = OpenSaga(kind="scale-up", new_node="extra-1", since=datetime.now(UTC))
    record = PoolRecord(
        name="extra",
        spec=PoolSpec(provider="test", instance_type="t", min_nodes=0, max_nodes=0),
        desired=0,
        serial=1,
        open={"scale-up-extra-1": opened},
        applied="request-1",
        removing="request-2",
    )
    await bus.create(POOLS, pool_key("extra"), encode(record))
    async with Running(server.url, "pool-manager", build, plain()):
        await eventually(gone(bus))
        [cancelled] = await events(bus, "saga-cancelled")
    assert set() == peers.instances
    assert "pool extra is being removed" == cancelled["reason"]


async def test_request_is_validated_like_the_configuration(
    bus: NatsBus, server: EmbeddedServer, peers: Peers
) -> None:
    """The refusal names the key; pools of the configuration cannot be changed by requests."""
    del peers
    async with Running(server.url, "pool-manager", build, plain()):
        await ask(bus, "apply", spec=RAW | {"min_nodes": 3})
        await ask(bus, "apply", spec=RAW | {"provider": "unknown"})
        await ask(bus, "apply", spec=RAW | {"gpus": 8})
        await ask(bus, "apply", spec=RAW | {"health": {"remediation": "prayer"}})
        await ask(bus, "apply", spec="all of them")
        await ask(bus, "remove")
        body = msgspec.json.encode({"spec": RAW})
        await bus.publish(subjects.pool_request("training", "apply"), body)

        async def answered() -> list[str]:
            found = await events(bus, "request-refused")
            refusals = sorted(found, key=lambda each: each["pool"])
            return [each["reason"] for each in refusals] if len(refusals) == 7 else []

        reasons = await eventually(answered)
    beginnings = (
        "min_nodes: 3 is above max_nodes 2",
        "provider: no provider 'unknown' under `providers:` (known: test)",
        "gpus: unknown key; known here: provider, ",
    )
    for beginning, reason in zip(beginnings, reasons, strict=False):
        assert reason.startswith(beginning)
    assert reasons[3].startswith("health.remediation.type: ")
    assert "write {" in reasons[4]
    assert "there is no pool 'extra'" in reasons[5]
    assert "pool training is defined in the configuration" in reasons[6]
