"""A pool's record that was rolled back is not decided on, by whichever replica reads it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.breaker_state import Breaker, OpenIncident
from schemas.enums import BreakerCause
from schemas.fault_signature import RACK
from schemas.instance_records import InstanceRecord
from schemas.messages import Message, encode
from schemas.node_events import Terminated
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import (
    BreakerClosed,
    BreakerHalfOpened,
    BreakerOpened,
    Incident,
    NodeReplaced,
    OnDemandShort,
    OperatorNeeded,
    PoolCondition,
    PoolRemoved,
    QuarantineFull,
)
from schemas.pool_records import AwaitedSuccessor, OpenCondition, OpenSaga, PoolRecord, pool_key
from schemas.saga_log_entries import (
    WHOLE,
    SagaDone,
    SagaEntry,
    SagaStarted,
    SagaUnwinding,
    SagaUnwound,
)
from schemas.saga_params import LaunchSpec, SagaParams
from schemas.settings import BudgetSpec, FleetBudgetSpec, PoolSpec
from schemas.stored_messages import message_subject
from schemas.topology import INSTANCES, NODES, POOLS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import set_up
from services.pool_manager.node_rebuilder import NodeRebuilder
from services.pool_manager.planner.disruption_budget import Rate, counted, recounted
from services.pool_manager.planner.safety.published_conditions import with_published
from services.pool_manager.planner.sizing.open_sagas import numbered
from services.pool_manager.pool_store import Store
from services.primitives.clock import SystemClock

NOW = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)
WINDOW = 3600.0
SPEC = PoolSpec(
    provider="p", instance_type="t", min_nodes=1, max_nodes=9, budget=BudgetSpec(window=WINDOW)
)
BEFORE = PoolRecord(name="training", spec=SPEC, desired=3, openings=4)
SAGA = OpenSaga(kind="replace", node="n1", since=NOW)
OPENED = msgspec.structs.replace(BEFORE, open={"replace-n1-1": SAGA}, openings=5)


async def test_a_replica_that_never_read_the_newer_record_knows_that_it_was_rolled_back(
    bus: NatsBus,
) -> None:
    """The saga of the newer record has begun; another replica sees only the older record."""
    one, other = Store(bus, FleetBudgetSpec()), Store(bus, FleetBudgetSpec())
    await one.create_pool(OPENED)
    await one.record_openings(OPENED)
    watching = asyncio.create_task(other.nodes.run())
    other.trust(other.losses)
    await other.snapshot("training")
    assert other.trusted
    await bus.put(POOLS, pool_key("training"), encode(BEFORE))
    await other.snapshot("training")
    assert not other.trusted
    watching.cancel()
    await asyncio.wait([watching])


async def test_another_record_of_the_same_revision_is_a_loss() -> None:
    """A store that was set back gives revisions again; a decision on the old record would win."""
    server = MemoryServer(SystemClock())
    bus = MemoryBus(server, PerfectLink())
    await set_up(bus, SystemClock(), replicas=1)
    stream, store = f"KV_{POOLS.name}", Store(bus, FleetBudgetSpec())
    empty = server.state.back_up(stream)
    await store.create_pool(OPENED)
    assert await store.pool("training") == (OPENED, 1)
    losses = store.losses
    server.restore(stream, empty)
    await bus.put(POOLS, pool_key("training"), encode(BEFORE))
    assert (await store.pool("training"), store.losses) == ((BEFORE, 1), losses + 1)


async def test_what_happens_meanwhile_hides_no_rollback(bus: NatsBus) -> None:
    """A change that opens a saga in the older record leaves it known as rolled back."""
    store = Store(bus, FleetBudgetSpec())
    await store.create_pool(BEFORE)
    await store.record_openings(OPENED)
    more = {"uncordon-n2-1": msgspec.structs.replace(SAGA, kind="uncordon", node="n2")}
    await store.change_pool("training", lambda each: msgspec.structs.replace(each, open=more))
    found = await store.pool("training")
    assert found is not None
    assert await store.openings_lost(found[0]) == 1
    await store.restore_openings("training")
    found = await store.pool("training")
    assert found is not None
    assert (found[0].openings, await store.openings_lost(found[0])) == (5, 0)


async def test_a_pool_that_was_removed_may_be_made_again(bus: NatsBus) -> None:
    """The pool's new record is not taken for one that was rolled back."""
    store = Store(bus, FleetBudgetSpec())
    await store.create_pool(BEFORE)
    await store.record_openings(OPENED)
    found = await store.pool("training")
    assert found is not None
    await store.forget_pool(*found)
    assert await store.openings_lost(PoolRecord(name="training", spec=SPEC, desired=1)) == 0


@pytest.mark.parametrize(
    ("after", "openings"),
    [
        pytest.param(BEFORE, 4, id="nothing opened"),
        pytest.param(msgspec.structs.replace(OPENED, openings=4), 5, id="a saga opened"),
    ],
)
def test_openings_are_counted(after: PoolRecord, openings: int) -> None:
    """Each write that opens sagas counts once."""
    assert numbered(BEFORE, after).openings == openings


@pytest.mark.parametrize(
    ("known", "began", "expected"),
    [
        pytest.param(0, 2, 2, id="rolled back"),
        pytest.param(3, 2, 3, id="the record knows more"),
        pytest.param(2, 2, 2, id="the record knows the same"),
    ],
)
def test_the_rate_survives_a_rollback(known: int, began: int, expected: int) -> None:
    """The rate counts as many replacements as the logs show, or the record has."""
    slot = str(int(NOW.timestamp()) - 60)
    record = msgspec.structs.replace(BEFORE, disruptions={slot: known} if known else {})
    kinds: list[tuple[datetime, Rate]] = [
        (NOW - timedelta(minutes=each + 1), "disruptions") for each in range(began)
    ]
    old: tuple[datetime, Rate] = (NOW - timedelta(hours=3), "disruptions")
    found = recounted(record, 0.0, NOW, [*kinds, old])
    assert counted(found.disruptions, WINDOW, NOW) == expected


REFUSED: tuple[tuple[type[SagaEntry], str], ...] = (
    (SagaUnwinding, "unwinding"),
    (SagaUnwound, "unwound"),
)
"""The end of a saga whose node the workload system did not cordon."""


@pytest.mark.parametrize(
    ("params", "ends", "expected"),
    [
        pytest.param([{}, {}], (), 2, id="begun in one decision"),
        pytest.param(
            [{"fault_signature": RACK, "reason": f"rack {rack}"} for rack in ("r1", "r1", "r2")],
            (),
            2,
            id="the nodes of two racks",
        ),
        pytest.param([{}, {"by": "operator"}], (), 1, id="an operator requested one"),
        pytest.param([{}, {"notice": "i-1"}], (), 1, id="the cloud announced one"),
        pytest.param([{}, {"gone": True}], (), 1, id="the instance of one was gone"),
        pytest.param([{}, {}], REFUSED, 0, id="they were refused their cordons"),
    ],
)
async def test_a_lost_record_counts_what_the_logs_show(
    bus: NatsBus,
    params: list[dict[str, Any]],
    ends: tuple[tuple[type[Any], str], ...],
    expected: int,
) -> None:
    """Each decision that the rate counted, of which several are made at the same moment."""
    began, store = datetime.now(UTC), Store(bus, FleetBudgetSpec())
    await store.create_pool(BEFORE)
    for number, more in enumerate(params):
        saga = f"replace-n{number}-1"
        about: dict[str, Any] = {"time": began, "saga": saga}
        named = SagaParams(pool="training", node=f"n{number}", **more)
        started = SagaStarted(id=f"{saga}.started", kind="replace", params=named, **about)
        await bus.publish(subjects.saga_entry(saga, WHOLE, "started"), encode(started))
        for entry, status in ends:
            end = entry(id=f"{saga}.{status}", step="cordon", reason="refused", **about)
            await bus.publish(subjects.saga_entry(saga, WHOLE, status), encode(end))
    found = await _rebuilt(bus, store, BEFORE)
    assert counted(found.disruptions, WINDOW, began) == expected


async def _rebuilt(bus: NatsBus, store: Store, pool: PoolRecord) -> PoolRecord:
    watching = asyncio.create_task(store.nodes.run())
    await NodeRebuilder(bus, SystemClock(), store).rebuild([pool], outdated=False)
    watching.cancel()
    await asyncio.wait([watching])
    found = await store.pool(pool.name)
    assert found is not None
    return found[0]


ADOPTED = msgspec.structs.replace(SPEC, nodes="adopted")
REMOVED_BY = "replace-n1-1"
ENDED = Terminated(id="ended", time=NOW, pool="training", node="n1", saga=REMOVED_BY)
JOINED = NodeReplaced(
    id=f"replaced-{REMOVED_BY}", time=NOW, pool="training", old_node="n1", new_node="n2",
    saga=REMOVED_BY, reason="XID 79", duration_seconds=9.0,
)  # fmt: skip
MISSING = OperatorNeeded(
    id=f"no-successor-{REMOVED_BY}", time=NOW, pool="training", node="n1", removed=True
)
AWAITED = AwaitedSuccessor(saga=REMOVED_BY, since=NOW, began_at=NOW, reason="XID 79")


@pytest.mark.parametrize(
    ("spec", "published", "expected"),
    [
        pytest.param(ADOPTED, [ENDED], AWAITED, id="none has joined"),
        pytest.param(ADOPTED, [ENDED, JOINED], None, id="it has joined"),
        pytest.param(
            ADOPTED,
            [ENDED, MISSING],
            msgspec.structs.replace(AWAITED, overdue=True),
            id="operators know that none has joined in time",
        ),
        pytest.param(ADOPTED, [], None, id="EVENTS has no end of the node either"),
        pytest.param(SPEC, [ENDED], None, id="Navarch launches the nodes"),
    ],
)
async def test_a_lost_record_awaits_successors_again(
    bus: NatsBus, spec: PoolSpec, published: list[Message], expected: AwaitedSuccessor | None
) -> None:
    """POOLS was lost after a node's removal, before the node that others make in its place."""
    store, pool = Store(bus, FleetBudgetSpec()), msgspec.structs.replace(BEFORE, spec=spec)
    await store.create_pool(pool)
    params = SagaParams(pool="training", node="n1", reason="XID 79")
    entries = (
        SagaStarted(id="1", time=NOW, saga=REMOVED_BY, kind="replace", params=params),
        SagaDone(id="2", time=NOW, saga=REMOVED_BY),
    )
    for event in (*entries, *published):
        await bus.publish(message_subject(event), encode(event))
    found = await _rebuilt(bus, store, pool)
    assert found.awaited.get("n1") == expected


SINCE = NOW - timedelta(minutes=5)
LATER = NOW + timedelta(minutes=1)
COUNTS: dict[str, Any] = {"pool": "training", "unavailable": 1, "limit": 1}
BY_HAND = BreakerOpened(
    id="b1", time=NOW, cause="r1", reason="we look", by="ada", breaker_cause="operator", **COUNTS
)
BY_ITSELF = BreakerOpened(id="b2", time=NOW, reason="spent", breaker_cause="rate", **COUNTS)
HALF_OPEN = BreakerHalfOpened(
    id="b3", time=LATER, pool="training", saga="reboot-n1-1", breaker_cause="rate"
)
RESTORED = BreakerOpened(id="b4", time=NOW, reason="old", breaker_cause="restored", **COUNTS)
CLOSED = BreakerClosed(id="b5", time=LATER, by="ada", **COUNTS)
REMOVED = PoolRemoved(id="gone", time=LATER, pool="training")
FULL = QuarantineFull(id="q1", time=NOW, pool="training", status="opened", quarantined=1, limit=1)
ROOM = msgspec.structs.replace(FULL, id="q2", status="closed")
SHORT = OnDemandShort(id="o1", time=NOW, pool="training", status="opened", nodes=0, required=1)
ENOUGH = msgspec.structs.replace(SHORT, id="o2", status="closed")
BELOW = PoolCondition(
    id="c1", time=NOW, pool="training", condition="below-minimum", status="opened", reason="few"
)
BELOW_OPEN = OpenCondition(since=NOW, reported=True, reason="few")
ABOVE = msgspec.structs.replace(BELOW, id="c2", status="closed")
WAVE = Incident(
    id="i1", time=NOW, cause="f1", pool="training", incident="xid-79-1795316100",
    status="opened", kind="xid", code=79, nodes=3, first=SINCE, last=NOW,
)  # fmt: skip
WAVE_OVER = msgspec.structs.replace(WAVE, id="i2", status="closed")
OF_RACK = msgspec.structs.replace(
    WAVE, id="i3", incident="fabric-r-1-1795316100", scope="rack", within="r-1"
)
OPEN_WAVE = OpenIncident(kind="xid", code=79, nodes=3, since=SINCE, last=NOW, fault="f1")
OPEN_RACK = msgspec.structs.replace(OPEN_WAVE, scope="rack", within="r-1", as_unit=True)


def _with(**changes: object) -> PoolRecord:
    return msgspec.structs.replace(BEFORE, **changes)


def _open(cause: BreakerCause, reason: str, *, forced: bool, since: datetime = NOW) -> Breaker:
    return Breaker(state="open", since=since, cause=cause, reason=reason, forced=forced)


FORCED = msgspec.structs.replace(_open("operator", "we look", forced=True), by="ada", request="r1")


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        pytest.param([BY_HAND], _with(breaker=FORCED), id="an operator opened the breaker"),
        pytest.param([BY_HAND, CLOSED], BEFORE, id="and closed it"),
        pytest.param([BY_HAND, REMOVED], BEFORE, id="of an earlier pool of the name"),
        pytest.param(
            [BY_ITSELF], _with(breaker=_open("rate", "spent", forced=False)), id="it opened"
        ),
        pytest.param(
            [BY_ITSELF, HALF_OPEN],
            _with(breaker=_open("rate", "", forced=False, since=LATER)),
            id="a probe was under way",
        ),
        pytest.param(
            [RESTORED], _with(breaker=_open("restored", "old", forced=True)), id="a restored store"
        ),
        pytest.param([FULL], _with(quarantine_full=True), id="the quarantine was full"),
        pytest.param([FULL, ROOM], BEFORE, id="and has room again"),
        pytest.param([SHORT], _with(on_demand_short=True), id="too few nodes on demand"),
        pytest.param([SHORT, ENOUGH], BEFORE, id="and enough again"),
        pytest.param([BELOW], _with(conditions={"below-minimum": BELOW_OPEN}), id="too few nodes"),
        pytest.param([BELOW, ABOVE], BEFORE, id="which is over"),
        pytest.param([WAVE], _with(incidents={"xid-79": OPEN_WAVE}), id="an incident"),
        pytest.param([WAVE, WAVE_OVER], BEFORE, id="that is over"),
        pytest.param(
            [WAVE, CLOSED],
            _with(incidents={"xid-79": msgspec.structs.replace(OPEN_WAVE, released=True)}),
            id="that an operator let go",
        ),
        pytest.param(
            [OF_RACK, CLOSED], _with(incidents={"fabric-r-1": OPEN_RACK}), id="a rack's incident"
        ),
    ],
)
async def test_a_lost_record_knows_what_is_open_by_its_events(
    bus: NatsBus, published: list[Message], expected: PoolRecord
) -> None:
    """An operator's order holds, and what is over is published: else its alert would stay."""
    store = Store(bus, FleetBudgetSpec())
    await store.create_pool(BEFORE)
    for event in published:
        await bus.publish(message_subject(event), encode(event))
    assert await _rebuilt(bus, store, BEFORE) == expected


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(Breaker(since=LATER), id="closed since, which is not published yet"),
        pytest.param(FORCED, id="open by an operator's order"),
        pytest.param(_open("level", "", forced=False), id="open by itself"),
    ],
)
def test_a_breaker_that_is_known_stays_as_it_is(known: Breaker) -> None:
    """The last event of a breaker is no news to a record that was not lost."""
    record = _with(breaker=known)
    assert with_published(record, [BY_ITSELF]) == record


def test_an_operators_order_is_kept_where_the_record_was_rolled_back() -> None:
    """The breaker of the older record had opened by itself."""
    record = _with(breaker=_open("level", "", forced=False, since=SINCE))
    found = with_published(record, [BY_HAND]).breaker
    assert (found.forced, found.by, found.since) == (True, "ada", SINCE)


async def _runs(bus: NatsBus, *names: str) -> None:
    """Have INSTANCES record these instances."""
    for name in names:
        record = InstanceRecord(
            pool="training", instance=name, state="running", provider="p", token=name,
            launch=LaunchSpec(fleet="f", provider="p", instance_type="t"), intended_at=NOW,
            running_at=NOW,
        )  # fmt: skip
        await bus.create(INSTANCES, node_key("training", name), encode(record))


@pytest.mark.parametrize(
    ("openings", "desired"),
    [
        pytest.param(0, 3, id="the record was made again, without NODES"),
        pytest.param(4, 1, id="the record is that of before"),
    ],
)
async def test_no_node_is_surplus_where_both_nodes_and_pools_were_lost(
    bus: NatsBus, openings: int, desired: int
) -> None:
    """A pool that is recorded before its nodes are has the least size."""
    store, pool = Store(bus, FleetBudgetSpec()), _with(desired=1, openings=openings)
    await store.create_pool(pool)
    await _runs(bus, "n1", "n2", "n3")
    assert (await _rebuilt(bus, store, pool)).desired == desired


async def test_a_spare_that_is_being_promoted_counts_where_the_pool_was_lost(bus: NatsBus) -> None:
    """Neither it nor the node in whose place it comes was counted when the pool was recorded."""
    store, pool = Store(bus, FleetBudgetSpec()), _with(desired=1, openings=0)
    await store.create_pool(pool)
    await _runs(bus, "n1", "n2", "s1")
    spare = NodeRecord(pool="training", node="s1", state="active", spare=True, cordoned=True)
    await bus.create(NODES, node_key("training", "s1"), encode(spare))
    params = SagaParams(pool="training", node="n1", promotes="s1", new_node="n4", spare=True)
    began = SagaStarted(id="1", time=NOW, saga=REMOVED_BY, kind="replace", params=params)
    await bus.publish(message_subject(began), encode(began))
    assert (await _rebuilt(bus, store, pool)).desired == 2


@pytest.mark.parametrize(
    ("sagas", "expected"),
    [pytest.param(0, [REMOVED_BY], id="open"), pytest.param(1, [], id="it has ended")],
)
async def test_a_saga_whose_log_lost_its_end_is_not_opened_again(
    bus: NatsBus, sagas: int, expected: list[str]
) -> None:
    """POOLS and the end of SAGAS were lost: the node's record says whether its saga goes on."""
    store = Store(bus, FleetBudgetSpec())
    await store.create_pool(BEFORE)
    node = NodeRecord(pool="training", node="n1", state="active", sagas=sagas)
    await bus.create(NODES, node_key("training", "n1"), encode(node))
    await _runs(bus, "n1", "n2")
    params = SagaParams(pool="training", node="n1")
    began = SagaStarted(id="1", time=NOW, saga=REMOVED_BY, kind="replace", params=params)
    await bus.publish(message_subject(began), encode(began))
    assert sorted((await _rebuilt(bus, store, BEFORE)).open) == expected


async def test_a_launch_that_outlived_a_set_back_is_recorded_as_a_node(bus: NatsBus) -> None:
    """The saga that it was for is forgotten, and its instance is recorded as it comes up."""
    store = Store(bus, FleetBudgetSpec())
    launch = LaunchSpec(fleet="f", provider="p", instance_type="t")
    await store.create_pool(BEFORE)
    now = datetime.now(UTC)
    for name, seconds in (("training-8-aaaa", 90), ("training-9-bbbb", 30)):
        at = now - timedelta(seconds=seconds)
        record = InstanceRecord(
            pool="training", instance=name, state="running", provider="p", launch=launch,
            token=name, saga="replace-n1-7", intended_at=at, running_at=at, provider_id=f"i-{name}",
        )  # fmt: skip
        await bus.put(INSTANCES, node_key("training", name), encode(record))
    watching = asyncio.create_task(store.nodes.run())
    rebuilder = NodeRebuilder(bus, SystemClock(), store)
    await rebuilder.rebuild_missing()
    assert [each.node for each in store.nodes_of("training")] == ["training-8-aaaa"]
    await bus.purge(f"KV_{NODES.name}", ">")
    await rebuilder.rebuild_missing()
    assert await bus.entries(NODES) == []
    watching.cancel()
    await asyncio.wait([watching])
