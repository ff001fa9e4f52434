"""Replay: a policy applied to stored events, compared with the verdicts of that time."""

from datetime import UTC, datetime, timedelta

from schemas.node_events import Fault, Registered, Terminated, Verdict, node_codec
from schemas.settings import HealthSpec
from schemas.subjects import NODE_EVENTS
from schemas.topology import EVENTS
from services.health_monitor.rules.policy_file import load_policy, parse_policy
from services.health_monitor.rules.policy_replay import Fact, Replay, differences
from services.settings.packaged_files import resource

NOW = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
POLICY = load_policy(resource("health-policy.yaml"))
STRICT = parse_policy(
    "strict.yaml",
    b"""
version: 1
rules:
  - {name: mmu, condition: event.code == 31, result: unhealthy, action: replace}
  - {name: kept, condition: event.code == 79, result: degraded}
  - {name: rest, condition: true, result: healthy}
""",
)


async def stored(bus) -> list[Fact]:
    found = [
        Fact(node_codec.decode(each.data), each.sequence, each.time)
        for each in await bus.read(EVENTS.name, NODE_EVENTS)
    ]
    return [fact for fact in found if not isinstance(fact.event, Verdict)]


async def test_replay_with_the_same_policy_gives_the_same_verdicts(world, start, fault, bus):
    """The verdicts of the service on the bus equal those of the replay."""
    await start()
    for number in range(5):
        await world.register(f"training-{number}")
    for number, code in enumerate((31, 79, 74, 43, 74, 79, 74)):
        await world.publish(fault(f"f{number}", code=code, node=f"training-{number % 3}"))
    await world.settled()
    facts, decided = await stored(bus), await world.events()
    replay = Replay(POLICY, lambda _pool: HealthSpec())
    for fact in facts:
        replay.take(fact)
    # Nodes are processed concurrently, so only the order within one node is defined.
    assert sorted(replay.verdicts, key=_place) == sorted(decided, key=_place)
    assert replay.faults == 7
    assert differences(decided, replay.verdicts, [f.event.id for f in facts]) == []


async def test_replay_with_another_policy_shows_the_differences(world, start, fault, bus):
    """A stricter rule makes one more node unhealthy, and a laxer rule makes one fewer."""
    await start()
    for node in ("training-1", "training-2"):
        await world.register(node)
    await world.publish(fault("mmu", code=31, node="training-1"))
    await world.publish(fault("bus", code=79, node="training-2"))
    await world.settled()
    facts, decided = await stored(bus), await world.events()
    replay = Replay(STRICT, lambda _pool: HealthSpec())
    for fact in facts:
        replay.take(fact)
    found = differences(decided, replay.verdicts, [f.event.id for f in facts])
    assert [(d.cause, d.decided, d.decided_rule, d.would, d.would_rule) for d in found] == [
        ("mmu", None, "", "unhealthy", "mmu"),
        ("bus", "unhealthy", "gpu-off-the-bus", "degraded", "kept"),
    ]


def test_timers_run_in_stored_time():
    """A condition ends between two stored faults, as it did then."""
    replay = Replay(POLICY, lambda _pool: HealthSpec())
    replay.take(Fact(_registered(), 1, NOW))
    for number, hours in enumerate((0, 30)):
        at = NOW + timedelta(hours=hours)
        replay.take(Fact(_fault(f"f{number}", 74, at), number + 2, at))
    replay.finish(NOW + timedelta(hours=60))
    assert [v.status for v in replay.verdicts] == [
        "healthy",
        "degraded",
        "healthy",
        "degraded",
        "healthy",
    ]
    assert replay.verdicts[2].time == NOW + timedelta(hours=24)


def test_terminated_node_is_forgotten():
    """A later node of the same name starts without history."""
    replay = Replay(POLICY, lambda _pool: HealthSpec())
    replay.take(Fact(_fault("f1", 79, NOW), 1, NOW))
    replay.take(Fact(Terminated(id="t", time=NOW, pool="p", node="n"), 2, NOW))
    replay.take(Fact(_registered(), 3, NOW))
    assert [v.status for v in replay.verdicts] == ["unhealthy", "healthy"]


def _place(verdict: Verdict) -> tuple[str, datetime]:
    return verdict.node, verdict.time


def _fault(identity: str, code: int, at: datetime) -> Fault:
    return Fault(id=identity, time=at, pool="p", node="n", kind="xid", code=code, gpu_index=0)


def _registered() -> Registered:
    return Registered(id="r", time=NOW, pool="p", node="n", instance="n", boot_id="b")
