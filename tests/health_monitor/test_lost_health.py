"""HEALTH, HEARTBEATS or TIMERS is lost: silence is noticed, unhealthy stays, degraded ends."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from schemas.duration import Duration
from schemas.health_records import HealthRecord
from schemas.messages import encode
from schemas.node_events import Lost, Returned
from schemas.node_records import NodeRecord, node_key
from schemas.saga_params import LaunchSpec
from schemas.settings import AgentSettings, PoolSpec, Settings
from schemas.topology import HEALTH, HEARTBEATS, NODES
from services.bus.leases import Lease
from services.bus.nats.nats_bus import NatsBus
from services.health_monitor.fault_handler import EarlierFaults, FaultHandler
from services.health_monitor.health_audit import HealthAudit
from services.health_monitor.health_store import HealthStore
from services.health_monitor.rules.health_state import Condition, Working, working_of
from services.health_monitor.rules.job_faults import JobFaultHistory
from services.health_monitor.rules.lost_health import (
    may_begin,
    missing_return,
    missing_verdict,
    recovered_health,
)
from services.health_monitor.rules.policy_file import load_policy
from services.health_monitor.verdict_publisher import HealthInstruments, Performer
from services.primitives.clock import SystemClock
from tests.health_monitor.conftest import make_fault

NOW = datetime(2026, 11, 22, 1, 30, tzinfo=UTC)
NODE = NodeRecord(
    pool="training", node="training-7", state="active", registered_at=NOW, boot_id="boot-1"
)
UNHEALTHY = msgspec.structs.replace(
    NODE, health="unhealthy", health_action="replace", health_fault="fault-1", health_at=NOW
)
DEGRADED = msgspec.structs.replace(UNHEALTHY, health="degraded", health_action="inspect")
GONE = msgspec.structs.replace(
    NODE, state="terminated", launch=LaunchSpec(fleet="f", provider="p", instance_type="t")
)
REMOVED = msgspec.structs.replace(
    GONE, launch=LaunchSpec(fleet="", provider="p", instance_type="t")
)
SOON = datetime.now(UTC) + timedelta(days=1)
QUICK = Settings(agent=AgentSettings(heartbeat_interval=Duration(0.5), heartbeat_ttl=Duration(2)))
ADOPTED = PoolSpec(provider="p", instance_type="t", nodes="adopted", min_nodes=0, max_nodes=9)
ROOT = Path(__file__).parents[2]


def audit_of(bus: NatsBus, pool: PoolSpec = ADOPTED) -> HealthAudit:
    """Return an audit, with what it reviews through."""
    clock, instruments = SystemClock(), HealthInstruments(CollectorRegistry())
    store, performer = HealthStore(bus, clock), Performer(bus, instruments)
    lease = Lease(bus, clock, "health-monitor.leader", "replica-0")
    settings = Settings(pools={"training": pool})
    earlier = EarlierFaults(bus, clock)
    policy = load_policy(ROOT / "config" / "health-policy.yaml")
    jobs = JobFaultHistory()
    handler = FaultHandler(store, performer, lambda: policy, settings, instruments, jobs, earlier)
    return HealthAudit(bus, clock, store, performer, lease, handler.register_again, handler.review)


@pytest.mark.parametrize(
    ("node", "boot", "begins"),
    [
        (None, "boot-9", True),
        (NODE, "boot-1", True),
        (GONE, "boot-1", False),
        (GONE, "boot-9", False),
        (REMOVED, "boot-1", False),
        (REMOVED, "", False),
        (REMOVED, "boot-9", True),
    ],
)
def test_a_late_fact_of_a_node_that_is_gone_begins_nothing(node, boot, begins):
    """Others may give its name again, to a machine whose agent publishes before it is adopted."""
    assert may_begin(node, boot) is begins


async def is_lost(world) -> bool:
    """Return whether exactly the node was published as lost."""
    return [each.node for each in await world.events(Lost)] == ["training-7"]


async def test_a_node_without_a_health_record_that_falls_silent_is_lost(world, start, bus):
    """HEALTH is purged while the node beats."""
    await bus.put(NODES, node_key("training", "training-7"), encode(NODE))
    await start(QUICK)
    await world.register("training-7")
    await world.settled()
    await bus.purge(f"KV_{HEALTH.name}", ">")
    await world.beat("training-7", ttl_seconds=1)
    await world.until(lambda: is_lost(world))


async def test_a_node_that_fell_silent_before_a_restart_without_health_is_lost(world, start, bus):
    """No marker and no health record has it, and NODES does."""
    await bus.put(NODES, node_key("training", "training-7"), encode(NODE))
    await start(QUICK)
    await world.until(lambda: is_lost(world))


async def test_a_node_that_registers_and_never_beats_is_lost(world, start):
    """The agent ended in between; no heartbeat expires."""
    await start(QUICK)
    await world.beat("training-8", ttl_seconds=60)
    await world.settled()
    await world.register("training-7")
    await world.register("training-8")
    await world.until(lambda: is_lost(world))


async def test_purged_heartbeats_hide_no_silent_node(world, start, bus):
    """The purge leaves no marker of the node that never beats again."""
    await start(QUICK)
    for node in ("training-7", "training-8"):
        await world.register(node)
        await world.beat(node, ttl_seconds=60)
    await world.settled()
    await bus.purge(f"KV_{HEARTBEATS.name}", ">")
    await world.beat("training-8", ttl_seconds=60)
    await world.until(lambda: is_lost(world))


async def test_an_unhealthy_node_stays_so_without_its_health_record(world, start, bus):
    """Registering again must not make it healthy."""
    await bus.put(NODES, node_key("training", "training-7"), encode(UNHEALTHY))
    await start()
    await world.register("training-7")
    await world.settled()
    record = await world.health("training-7")
    assert (record.status, record.action, record.fault) == ("unhealthy", "replace", "fault-1")
    assert await world.events() == []


async def test_a_degraded_node_whose_timer_is_lost_is_reviewed(world, bus):
    """The cause has worn off, and no timer says so."""
    ended = (datetime.now(UTC) - timedelta(minutes=10)).timestamp()
    condition = Condition(
        action="inspect", rule="warm", reason="warm", fault="fault-1", gpu_index=0, until=ended
    )
    work = Working(conditions={"thermal:0:0": condition}, review=ended)
    record = HealthRecord(
        pool="training", node="training-7", status="degraded", detail=msgspec.to_builtins(work)
    )
    await bus.put(HEALTH, node_key("training", "training-7"), encode(record))
    await audit_of(bus).look()
    assert [each.status for each in await world.events()] == ["healthy"]
    assert (await world.health("training-7")).status == "healthy"


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param(UNHEALTHY, ("unhealthy", False), id="its last verdict"),
        pytest.param(msgspec.structs.replace(NODE, lost=True), ("unknown", True), id="silent"),
        pytest.param(
            msgspec.structs.replace(NODE, return_due=True), ("unknown", True), id="registered again"
        ),
        pytest.param(msgspec.structs.replace(NODE, state="terminated"), None, id="gone"),
        pytest.param(msgspec.structs.replace(NODE, registered_at=None), None, id="not registered"),
    ],
)
def test_what_is_recovered(node: NodeRecord, expected: tuple[str, bool] | None):
    """The status, the silence, and that it is expected to beat."""
    found = recovered_health(node, NOW)
    assert (found and (found.status, found.lost)) == expected
    assert found is None or working_of(found).registered


def test_what_degraded_a_node_wears_off_a_day_later():
    """The time that its rule had is lost."""
    found = recovered_health(DEGRADED, NOW + timedelta(hours=1))
    assert found is not None
    [condition] = working_of(found).conditions.values()
    assert condition.until == (NOW + timedelta(days=1)).timestamp()


SAYS_UNHEALTHY = HealthRecord(
    pool="training", node="training-7", status="unhealthy", action="replace", fault="f", since=NOW
)
HEALTHY = msgspec.structs.replace(NODE, health="healthy", health_at=NOW - timedelta(hours=1))


@pytest.mark.parametrize(
    ("health", "node", "age_seconds", "published"),
    [
        pytest.param(SAYS_UNHEALTHY, HEALTHY, 121, "unhealthy", id="lost"),
        pytest.param(SAYS_UNHEALTHY, NODE, 121, "unhealthy", id="the first one was lost"),
        pytest.param(SAYS_UNHEALTHY, HEALTHY, 119, None, id="may still be handled"),
        pytest.param(SAYS_UNHEALTHY, UNHEALTHY, 121, None, id="handled"),
        pytest.param(
            SAYS_UNHEALTHY,
            msgspec.structs.replace(HEALTHY, health_at=NOW),
            121,
            None,
            id="NODES has a later one",
        ),
        pytest.param(
            SAYS_UNHEALTHY,
            msgspec.structs.replace(HEALTHY, state="terminated"),
            121,
            None,
            id="gone",
        ),
        pytest.param(SAYS_UNHEALTHY, None, 121, None, id="no node of ours"),
        pytest.param(
            msgspec.structs.replace(SAYS_UNHEALTHY, detail={"boot": "earlier"}),
            msgspec.structs.replace(NODE, boot_id="later"),
            121,
            None,
            id="of the machine that had the name before",
        ),
    ],
)
def test_a_verdict_that_nodes_lacks_is_published_again(
    health: HealthRecord, node: NodeRecord | None, age_seconds: int, published: str | None
) -> None:
    """The return has its own time: NODES takes it if nothing later has come."""
    found = missing_verdict(health, node, NOW + timedelta(seconds=age_seconds))
    assert (found and (found.status, found.time)) == (published and (published, NOW))


async def test_a_lost_verdict_is_published_once(world, bus):
    """The verdict may be a message that ends every process that handles it."""
    since = datetime.now(UTC) - timedelta(minutes=10)
    health = msgspec.structs.replace(SAYS_UNHEALTHY, since=since)
    node = msgspec.structs.replace(NODE, health="healthy", health_at=since - timedelta(hours=1))
    await bus.put(HEALTH, node_key("training", "training-7"), encode(health))
    await bus.put(NODES, node_key("training", "training-7"), encode(node))
    audit = audit_of(bus)
    await audit.look()
    await audit.look()
    assert [(each.status, each.time) for each in await world.events()] == [("unhealthy", since)]


SILENT = msgspec.structs.replace(HEALTHY, lost=True, lost_at=NOW)


@pytest.mark.parametrize(
    ("lost", "node", "age_seconds", "published"),
    [
        pytest.param(False, SILENT, 121, True, id="its return was lost"),
        pytest.param(False, SILENT, 119, False, id="may still be handled"),
        pytest.param(True, SILENT, 121, False, id="silent"),
        pytest.param(False, HEALTHY, 121, False, id="not lost"),
        pytest.param(
            False, msgspec.structs.replace(SILENT, state="terminated"), 121, False, id="gone"
        ),
    ],
)
def test_a_return_that_nodes_lacks_is_published_again(
    lost: bool, node: NodeRecord, age_seconds: int, published: bool
) -> None:
    """An operator may replay a `lost` that was set aside, after the node has returned."""
    health = msgspec.structs.replace(SAYS_UNHEALTHY, status="healthy", lost=lost)
    found = missing_return(health, node, NOW + timedelta(seconds=age_seconds))
    assert (found is not None) == published


@pytest.mark.parametrize("beats", [True, False])
async def test_only_a_node_that_beats_is_back(world, bus, beats):
    """The record in HEALTH may be older than its silence."""
    at = datetime.now(UTC) - timedelta(minutes=10)
    health = HealthRecord(pool="training", node="training-7", status="healthy", since=at)
    node = msgspec.structs.replace(SILENT, lost_at=at, health_at=at)
    await bus.put(HEALTH, node_key("training", "training-7"), encode(health))
    await bus.put(NODES, node_key("training", "training-7"), encode(node))
    if beats:
        await world.beat("training-7", ttl_seconds=60)
    await audit_of(bus).look()
    assert len(await world.events(Returned)) == int(beats)


@pytest.mark.parametrize(
    ("node", "boot", "age_seconds", "left"),
    [
        pytest.param(GONE, "boot-1", 121, False, id="its end was set aside"),
        pytest.param(GONE, "boot-1", 119, True, id="its end may still be handled"),
        pytest.param(NODE, "boot-1", 121, True, id="in service"),
        pytest.param(REMOVED, "boot-1", 121, False, id="others removed it"),
        pytest.param(REMOVED, "boot-9", 121, True, id="the next machine of its name"),
    ],
)
async def test_what_health_has_of_a_node_that_is_gone_is_removed(
    bus, node: NodeRecord, boot: str, age_seconds: int, left: bool
):
    """Only its end removes it otherwise, which is a message like any other."""
    ended_at = datetime.now(UTC) - timedelta(seconds=age_seconds)
    detail = msgspec.to_builtins(Working(boot=boot))
    health = HealthRecord(pool="training", node="training-7", status="healthy", detail=detail)
    await bus.put(HEALTH, node_key("training", "training-7"), encode(health))
    ended = msgspec.structs.replace(node, changed_at=ended_at, health="healthy", health_at=NOW)
    await bus.put(NODES, node_key("training", "training-7"), encode(ended))
    await audit_of(bus).look()
    kept = await bus.get(HEALTH, node_key("training", "training-7"))
    assert (kept is not None) is left


@pytest.mark.parametrize(
    ("beats", "age_seconds", "left"),
    [
        pytest.param(False, 121, False, id="its maker removed it before it joined"),
        pytest.param(False, 119, True, id="its first heartbeat may come"),
        pytest.param(True, 121, True, id="it waits for its adoption"),
    ],
)
async def test_the_next_machine_of_a_name_is_known_while_it_beats(
    world, bus, beats: bool, age_seconds: int, left: bool
):
    """An operator replays the registration of one that is gone: no event reports its end."""
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    since = datetime.now(UTC) - timedelta(seconds=age_seconds)
    health = HealthRecord(
        pool="training",
        node="training-7",
        status="healthy",
        since=since,
        detail=msgspec.to_builtins(Working(boot="boot-9")),
    )
    await bus.put(HEALTH, node_key("training", "training-7"), encode(health))
    ended = msgspec.structs.replace(REMOVED, changed_at=long_ago)
    await bus.put(NODES, node_key("training", "training-7"), encode(ended))
    if beats:
        await world.beat("training-7", ttl_seconds=60)
    await audit_of(bus).look()
    kept = await bus.get(HEALTH, node_key("training", "training-7"))
    assert (kept is not None) is left


@pytest.mark.parametrize(
    ("boots", "changes", "status"),
    [
        pytest.param((), {}, "healthy", id="well"),
        pytest.param(("boot-1",), {}, "unhealthy", id="faulty"),
        pytest.param(("boot-0",), {}, "healthy", id="the first machine was"),
        pytest.param((), {"boot_id": "boot-2"}, "", id="its registration is not kept"),
        pytest.param((), {"health": "healthy"}, "", id="NODES has its health"),
        pytest.param((), {"state": "registered"}, "", id="not in service"),
        pytest.param((), {"admitted_at": SOON}, "", id="its own may still come"),
    ],
)
async def test_a_node_that_registered_as_another_is_registered_again(
    world, bus, boots: tuple[str, ...], changes: dict[str, Any], status: str
):
    """The name was still that of a node that left, and HEALTH forgot both."""
    await world.register("training-7", "boot-1")
    for boot in boots:
        await world.publish(make_fault(f"of-{boot}", boot_id=boot))
    long_ago = datetime.now(UTC) - timedelta(minutes=3)
    node = msgspec.structs.replace(NODE, registered_at=long_ago, admitted_at=long_ago)
    node = msgspec.structs.replace(node, **changes)
    await bus.put(NODES, node_key("training", "training-7"), encode(node))
    audit = audit_of(bus)
    for _ in range(2):
        await audit.look()
        found = await world.health("training-7")
        assert (found.status if found else "") == status
    assert len(await world.events()) == bool(status)


@pytest.mark.parametrize(("boot", "status"), [("boot-1", "unhealthy"), ("boot-0", "healthy")])
async def test_an_adopted_orphan_of_a_launched_pool_is_judged_by_what_its_boot_reported(
    world, bus, boot: str, status: str
):
    """The launch was undone after its GPU had failed: HEALTH forgot it, and people adopt it."""
    await world.register("training-7", "boot-1")
    await world.publish(make_fault(f"of-{boot}", boot_id=boot))
    long_ago = datetime.now(UTC) - timedelta(minutes=3)
    node = msgspec.structs.replace(NODE, registered_at=long_ago, admitted_at=long_ago)
    await bus.put(NODES, node_key("training", "training-7"), encode(node))
    launched = msgspec.structs.replace(ADOPTED, nodes="launched")
    for _ in range(2):
        await audit_of(bus, launched).look()
        found = await world.health("training-7")
        assert found is not None
        assert found.status == status


async def test_a_node_of_unknown_health_is_registered_again(world, bus):
    """The node fell silent before it was looked for: HEALTH was made again from NODES."""
    await world.register("training-7", "boot-1")
    await world.publish(make_fault("fault-1", boot_id="boot-1"))
    long_ago = datetime.now(UTC) - timedelta(minutes=3)
    node = msgspec.structs.replace(NODE, registered_at=long_ago, admitted_at=long_ago)
    await bus.put(NODES, node_key("training", "training-7"), encode(node))
    health = recovered_health(node, datetime.now(UTC))
    assert health is not None
    assert health.status == "unknown"
    await bus.put(HEALTH, node_key("training", "training-7"), encode(health))
    for _ in range(2):
        await audit_of(bus).look()
    found = await world.health("training-7")
    assert found is not None
    assert found.status == "unhealthy"
    assert len(await world.events()) == 1


async def test_an_unreadable_record_of_health_is_no_missing_one(world, bus):
    """An operator repairs it; the look at the other nodes goes on."""
    await world.register("training-7", "boot-1")
    long_ago = datetime.now(UTC) - timedelta(minutes=3)
    node = msgspec.structs.replace(NODE, registered_at=long_ago, admitted_at=long_ago)
    await bus.put(NODES, node_key("training", "training-7"), encode(node))
    await bus.put(HEALTH, node_key("training", "training-7"), b"x")
    await audit_of(bus).look()
    kept = await bus.get(HEALTH, node_key("training", "training-7"))
    assert kept is not None
    assert kept.value == b"x"
    assert await world.events() == []
