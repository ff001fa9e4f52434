"""The health-monitor on a real server turns a fault into a verdict and a record."""

import asyncio
import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from schemas.duration import Duration
from schemas.messages import encode
from schemas.node_events import BootChecked, CheckResult, Lost, Returned, Terminated, Uncordoned
from schemas.node_records import NodeRecord, node_key
from schemas.settings import AgentSettings, HealthSpec, PoolSpec, Settings
from schemas.subjects import dead, node_event
from schemas.topology import DEAD, HEALTH, HEARTBEATS, NODES
from services.primitives.errors import BusError, ConfigurationError
from tests.support.json_log import json_log

NOW = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
FAST = Settings(agent=AgentSettings(heartbeat_interval=Duration(0.3), heartbeat_ttl=Duration(1)))

SHORT_LIVED = """
version: 1
rules:
  - name: warm
    description: too warm
    condition: event.event_type == "thermal"
    result: degraded
    action: inspect
    sticky: 1s
  - name: rest
    condition: true
    result: healthy
"""


async def test_fatal_xid_makes_a_healthy_node_unhealthy(world, start, fault):
    """An XID 79 causes one verdict, unhealthy with rule and policy, and a record."""
    await start()
    await world.register("training-7")
    await world.publish(fault())
    await world.settled()
    verdicts = await world.events(node="training-7")
    assert [(v.status, v.previous, v.id) for v in verdicts] == [
        ("healthy", "unknown", "verdict-registered-training-7-boot-1-healthy-none"),
        ("unhealthy", "healthy", "verdict-fault-1-unhealthy-replace"),
    ]
    verdict, record = verdicts[1], await world.health("training-7")
    assert (verdict.rule, verdict.fault, verdict.cause) == (record.rule, "fault-1", "fault-1")
    assert len(verdict.policy) == 12
    assert (record.status, record.policy) == ("unhealthy", verdict.policy)
    assert record.trace.startswith("00-")


async def test_repeated_fatal_faults_publish_one_verdict(world, start, fault):
    """Further fatal faults of an unhealthy node are recorded and change nothing."""
    await start()
    await world.register("training-7")
    for number in range(5):
        await world.publish(fault(f"fault-{number}"))
    await world.settled()
    verdicts = await world.events(node="training-7")
    assert [v.status for v in verdicts] == ["healthy", "unhealthy"]
    record = await world.health("training-7")
    assert [note.id for note in record.recent] == [f"fault-{number}" for number in range(5)]


async def test_only_an_uncordon_makes_an_unhealthy_node_healthy(world, start, fault):
    """A new registration does not."""
    await start()
    await world.register("training-7")
    await world.publish(fault())
    await world.register("training-7", boot="boot-2")
    await world.settled()
    assert (await world.health("training-7")).status == "unhealthy"
    await world.publish(Uncordoned(id="uncordoned-1", time=NOW, pool="training", node="training-7"))
    await world.settled()
    assert (await world.health("training-7")).status == "healthy"
    assert [v.status for v in await world.events()] == ["healthy", "unhealthy", "healthy"]


async def test_terminated_node_has_no_health_record(world, start, fault, bus):
    """The record of a terminated node is deleted, and a late fault does not restore it."""
    await start()
    await world.register("training-7")
    await world.publish(Terminated(id="terminated-1", time=NOW, pool="training", node="training-7"))
    await world.settled()
    assert await world.health("training-7") is None
    gone = NodeRecord(pool="training", node="training-7", state="terminated")
    await bus.put(NODES, node_key("training", "training-7"), encode(gone))
    await world.publish(fault())
    await world.settled()
    assert await world.health("training-7") is None
    assert [v.status for v in await world.events()] == ["healthy"]


async def test_unhealthy_after_counts_results(world, start, fault, tmp_path):
    """`unhealthy_after: 2` waits for a second result, except after a fatal fault."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\nrules:\n"
        "  - {name: all, condition: true, result: unhealthy, action: reset_gpu}\n"
    )
    pool = PoolSpec(
        provider="local",
        instance_type="gpu-8",
        min_nodes=1,
        max_nodes=9,
        health=HealthSpec(unhealthy_after=2),
    )
    await start(Settings(health_policy=str(policy), pools={"training": pool}))
    for node in ("training-1", "training-2"):
        await world.register(node)
    await world.publish(fault("a", node="training-1", code=119))
    await world.publish(fault("b", node="training-2", code=79))
    await world.settled()
    assert (await world.health("training-1")).status == "degraded"
    assert (await world.health("training-2")).status == "unhealthy"
    await world.publish(fault("c", node="training-1", code=119))
    await world.settled()
    assert (await world.health("training-1")).status == "unhealthy"


async def test_a_failed_boot_check_is_judged(world, start):
    """A failed check is a fault of kind `diagnostic`, so the policy applies."""
    await start()
    await world.register("training-7")
    failed = (CheckResult(name="gpus", ok=False, detail="7 of 8"),)
    await world.publish(
        BootChecked(
            id="boot-1", time=NOW, pool="training", node="training-7", ok=False, checks=failed
        )
    )
    await world.settled()
    record = await world.health("training-7")
    assert (record.status, record.recent[0].kind) == ("degraded", "diagnostic")
    assert record.recent[0].message == "gpus: 7 of 8"


async def test_passed_boot_checks_end_what_failed_ones_degraded(world, start, fault):
    """A driver that comes late degrades a node until then, and a failed test lasts as before."""
    await start()
    plain = {"time": NOW, "pool": "training", "boot_id": "b1"}
    failed = (CheckResult(name="driver", ok=False, detail="Driver Not Loaded"),)
    for node in ("training-7", "training-8"):
        await world.register(node)
        checked = {"node": node, "ok": False, "checks": failed}
        await world.publish(BootChecked(id=f"c1-{node}", **plain, **checked))
    await world.publish(fault("dcgm", node="training-8", kind="diagnostic", code=0))
    for node in ("training-7", "training-8"):
        for number in (2, 3):
            await world.publish(BootChecked(id=f"c{number}-{node}", node=node, ok=True, **plain))
    await world.settled()
    assert (await world.health("training-7")).status == "healthy"
    assert (await world.health("training-8")).status == "degraded"
    statuses = [each.status for each in await world.events() if each.node == "training-7"]
    assert statuses[-2:] == ["degraded", "healthy"]


async def test_two_replicas_publish_one_verdict_per_node(world, start, fault):
    """Two replicas get 200 fatal faults on 100 nodes, one is killed: one verdict per node."""
    first = await start()
    await start()
    nodes = [f"training-{number}" for number in range(100)]
    await asyncio.gather(*(world.register(node) for node in nodes))
    faults = [fault(f"{node}-{n}", node=node) for node in nodes for n in range(2)]
    random.Random(7).shuffle(faults)
    await asyncio.gather(*(world.publish(each) for each in faults[:100]))
    for task in first.tasks:
        task.cancel()
    await asyncio.gather(*(world.publish(each) for each in faults[100:]))
    await world.settled()
    for node in nodes:
        record = await world.health(node)
        assert record.status == "unhealthy"
        assert sorted(note.id for note in record.recent) == [f"{node}-0", f"{node}-1"]
    unhealthy = [v.node for v in await world.events() if v.status == "unhealthy"]
    assert set(unhealthy) == set(nodes)


async def test_restart_neither_loses_nor_repeats_faults(world, start, fault):
    """Faults stored while no replica runs are processed when one starts."""
    first = await start()
    await world.register("training-7")
    await world.settled()
    await first.stop()
    await world.publish(fault("fault-1", code=43))
    await world.publish(fault("fault-2"))
    await start()
    await world.settled()
    assert [v.status for v in await world.events()] == ["healthy", "unhealthy"]
    record = await world.health("training-7")
    assert [note.id for note in record.recent] == ["fault-1", "fault-2"]


async def test_garbage_is_dead_lettered_and_faults_are_still_processed(world, start, fault, bus):
    """Undecodable bytes, and a fault on another node's subject, become dead letters."""
    await start()
    await world.register("training-7")
    subject = node_event("training", "training-7", "fault")
    await bus.publish(subject, b"\xff not json")
    await bus.publish(subject, encode(fault("elsewhere", node="training-8")))
    await bus.publish(subject, b'{"type": "io.navarch.agent.event.v9.unheard_of"}')
    await world.publish(fault())
    await world.settled()
    assert len(await bus.read(DEAD.name, dead("EVENTS", "health-events"))) == 2
    assert (await world.health("training-7")).status == "unhealthy"
    assert await world.health("training-8") is None


async def test_degraded_node_recovers_when_its_conditions_end(world, start, fault, tmp_path):
    """A timer reviews the node when its last condition ends: it is healthy."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(SHORT_LIVED)
    await start(Settings(health_policy=str(policy)))
    await world.register("training-7")
    await world.publish(fault("fault-1", kind="thermal", code=0))
    await world.settled()
    assert (await world.health("training-7")).status == "degraded"

    async def healthy() -> bool:
        return (await world.health("training-7")).status == "healthy"

    await world.until(healthy)
    assert [v.status for v in await world.events()] == ["healthy", "degraded", "healthy"]


async def test_expired_heartbeat_loses_a_node_and_a_heartbeat_returns_it(world, start):
    """Lost once with two replicas, Returned once; the record is correct meanwhile."""
    await start(FAST)
    await start(FAST)
    await world.register("training-7")
    await world.settled()
    await world.beat("training-7", ttl_seconds=1)

    async def lost() -> bool:
        return len(await world.events(Lost)) == 1 and (await world.health("training-7")).lost

    await world.until(lost)
    for _ in range(3):
        await world.beat("training-7", ttl_seconds=60)

    async def returned() -> bool:
        return (
            len(await world.events(Returned)) == 1 and not (await world.health("training-7")).lost
        )

    await world.until(returned)
    assert len(await world.events(Lost)) == 1


async def test_silence_since_credentials_expired_is_published_as_that(world, start):
    """The last heartbeat says when they expire."""
    await start(FAST)
    names = {"training-7": datetime.now(UTC), "training-8": datetime.now(UTC) + timedelta(days=1)}
    for name in names:
        await world.register(name)
    await world.settled()
    for name, until in names.items():
        await world.beat(name, 1, credentials_until=until)

    async def lost() -> bool:
        return len(await world.events(Lost)) == len(names)

    await world.until(lost)
    found = {each.node: each.credentials_expired for each in await world.events(Lost)}
    assert found == {"training-7": True, "training-8": False}


async def test_heartbeat_that_expires_while_no_replica_runs_is_noticed_later(world, start, bus):
    """The next lease holder gives every registered node the time of a heartbeat."""
    first = await start(FAST)
    await world.register("training-7")
    await world.settled()
    await first.stop()
    await world.beat("training-7", ttl_seconds=1)
    async with asyncio.timeout(60):
        while await bus.get(HEARTBEATS, node_key("training", "training-7")) is not None:
            await asyncio.sleep(0.02)
    assert await world.events(Lost) == []
    await start(FAST)

    async def lost() -> bool:
        return len(await world.events(Lost)) == 1

    await world.until(lost)


async def test_restarted_server_loses_heartbeats_and_only_the_silent_node_is_lost(
    world, start, server
):
    """The bucket is kept in memory: nothing says who fell silent meanwhile."""
    agent = AgentSettings(heartbeat_interval=Duration(0.5), heartbeat_ttl=Duration(2))
    await start(Settings(agent=agent))
    for node in ("training-7", "training-8"):
        await world.register(node)
        await world.beat(node, ttl_seconds=60)
    await world.settled()
    await server.kill()
    await server.start()

    async def beats() -> bool:
        with suppress(BusError):
            await world.beat("training-8", ttl_seconds=60)
            return True
        return False

    await world.until(beats)

    async def lost() -> bool:
        with suppress(BusError):
            return [each.node for each in await world.events(Lost)] == ["training-7"]
        return False

    await world.until(lost)


async def test_silence_of_an_unknown_node_publishes_nothing(world, start):
    """A node without a health record is terminated or never registered."""
    await start(FAST)
    await world.register("training-7")
    await world.settled()
    await world.beat("training-8", ttl_seconds=1)
    await world.beat("training-7", ttl_seconds=2)

    async def lost() -> bool:
        return [each.node for each in await world.events(Lost)] != []

    await world.until(lost)
    assert [each.node for each in await world.events(Lost)] == ["training-7"]


async def test_silence_of_a_terminated_node_removes_its_record_instead(world, start, bus):
    """A `terminated` event may be behind a message that was set aside: no operator is alerted."""
    await start(FAST)
    for name in ("training-7", "training-8"):
        await world.register(name)
    await world.settled()
    gone = NodeRecord(pool="training", node="training-8", state="terminated")
    await bus.put(NODES, node_key("training", "training-8"), encode(gone))
    await world.beat("training-8", ttl_seconds=1)
    await world.beat("training-7", ttl_seconds=2)

    async def lost() -> bool:
        found = [each.node for each in await world.events(Lost)]
        return found == ["training-7"] and await world.health("training-8") is None

    await world.until(lost)


async def test_changed_policy_file_is_loaded_unless_invalid(world, start, fault, tmp_path, bus):
    """The new hash appears in the next verdict; an invalid file leaves the old policy."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nrules: [{name: a, condition: true, result: healthy}]\n")
    monitor = await start(Settings(health_policy="policy.yaml"), tmp_path / "navarch.yaml")
    await world.register("training-7")

    def loads(outcome: str) -> float:
        value = monitor.context.instruments.registry.get_sample_value(
            "navarch_policy_loads_total", {"outcome": outcome}
        )
        return value or 0.0

    async def refused() -> bool:
        return loads("refused") == 1

    async def loaded() -> bool:
        return loads("loaded") == 2

    policy.write_text("version: 1\nrules: []\n")
    await world.until(refused)
    policy.write_text("version: 1\nrules: [{name: second, condition: true, result: degraded}]\n")
    await world.until(loaded)
    await world.publish(fault())
    await world.settled()
    assert (await world.health("training-7")).rule == "second"
    assert await bus.get(HEALTH, node_key("training", "training-7")) is not None


async def test_invalid_policy_prevents_the_service_from_starting(start, tmp_path: Path):
    """A service that starts has no earlier policy to fall back on."""
    (tmp_path / "p.yaml").write_text("version: 1\nrules: []\n")
    with pytest.raises(ConfigurationError, match="has no rule"):
        await start(Settings(health_policy=str(tmp_path / "p.yaml")))


async def test_an_unhealthy_node_is_a_warning_in_the_log(world, start, fault):
    """Log `{"level": "WARN", "msg": "node unhealthy", "pool", "node", "reason": "XID 79 …"}`."""
    with json_log() as lines:
        await start()
        await world.register("training-7")
        await world.publish(fault())
        await world.settled()
    found = {each["msg"]: each for each in lines if each["msg"].startswith("node ")}
    assert found["node healthy"]["level"] == "INFO"
    line = found["node unhealthy"]
    assert (line["level"], line["pool"], line["node"]) == ("WARN", "training", "training-7")
    assert "XID 79" in line["reason"]
