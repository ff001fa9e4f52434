"""Conditions of nodes: what is known is what the agent last said, whatever is lost or late."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.health_records import HealthRecord
from schemas.held_conditions import ConditionList, HeldCondition, begin_id
from schemas.messages import encode
from schemas.node_events import ConditionEnded, Fault, Registered, Telemetry, Uncordoned, Verdict
from schemas.subjects import telemetry
from services.health_monitor.rules import node_health, open_conditions
from services.health_monitor.rules.health_state import working_of
from services.health_monitor.rules.node_health import Decision, PublishVerdict, Trigger
from services.health_monitor.rules.policy_file import load_policy
from services.settings.packaged_files import resource

NOW: Final = datetime(2026, 11, 21, tzinfo=UTC)
POLICY: Final = load_policy(resource("health-policy.yaml"))
POWER: Final = {"name": "slowed-power", "kind": "power", "subcode": "power_brake"}
FABRIC: Final = {"name": "fabric-left", "kind": "fabric", "subcode": "left"}
LINKS: Final = {"name": "nvlinks-down", "kind": "nvlink", "subcode": "down"}
DEAD: Final = {"name": "nvlinks-all-down", "kind": "nvlink", "subcode": "all_down"}
MILD: Final = (POWER, FABRIC)


def judge(record: HealthRecord, fault: Fault, seen: Trigger) -> Decision:
    """Judge by the default policy."""
    judged = POLICY.judge(fault, working_of(record).windows, seen.now)
    return node_health.decide_fault(record, fault, judged, seen)


class Agent:
    """A node's agent: what holds there, its counter, and the messages that it sends."""

    def __init__(self, boot: str = "boot-1") -> None:
        self.boot = boot
        self.counter = 100
        self.held: dict[tuple[str, int], HeldCondition] = {}

    def toggle(self, what: dict[str, Any], gpu: int, at: datetime) -> Fault | ConditionEnded:
        """Begin or end a condition; give the event."""
        self.counter += 1
        old = self.held.pop((what["name"], gpu), None)
        about = {"time": at, "pool": "p", "node": "n", "gpu_index": gpu, "boot_id": self.boot}
        if old is not None:
            begun = begin_id("p", "n", self.boot, old)
            return ConditionEnded(
                id=f"{begun}.over", condition=old.name, counter=self.counter, **about
            )
        new = HeldCondition(gpu=gpu, since=at.timestamp(), counter=self.counter, **what)
        self.held[new.name, gpu] = new
        return Fault(
            id=begin_id("p", "n", self.boot, new),
            kind=new.kind,
            subcode=new.subcode,
            condition=new.name,
            counter=self.counter,
            since=at,
            source="nvml",
            **about,
        )

    def sample(self) -> ConditionList:
        """List what holds."""
        held = tuple(self.held.values())
        return ConditionList(boot_id=self.boot, counter=self.counter, held=held)


def healthy(boot: str = "boot-1") -> HealthRecord:
    """A node that has registered."""
    blank = HealthRecord(pool="p", node="n")
    event = Registered(id=f"r-{boot}", time=NOW, pool="p", node="n", instance="n", boot_id=boot)
    return node_health.decide_registered(blank, event, Trigger(event.id, 1, NOW))[0]


def take(record: HealthRecord, message: Any, number: int, at: datetime) -> Decision:
    """Apply a message as the service does."""
    seen = Trigger(getattr(message, "id", f"sample-{number}"), number, at)
    match message:
        case Fault():
            return open_conditions.decide_begun(record, message, seen, judge)
        case ConditionEnded():
            return open_conditions.decide_ended(record, message, seen)
        case _:
            seen = Trigger(f"sample-{number}", 0, at)
            return open_conditions.decide_listed(record, message, seen, judge) or (record, ())


def in_force(record: HealthRecord) -> set[str]:
    """The conditions that degrade a node."""
    return {each.held for each in working_of(record).conditions.values() if each.held}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(MILD),
        st.integers(0, 2),
        st.sampled_from(["lost", "once", "twice", "late", "sampled", "store"]),
        st.integers(1, 4000),
    ),
    max_size=30,
)


@given(STEPS, st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_what_is_known_is_what_the_last_sample_lists(steps: list[Any], random: Any):
    """Events are lost, repeated, late, a store is set back: a sample's list decides."""
    agent, record = Agent(), healthy()
    now, number, waiting, backup = NOW, 1, [], record
    for what, gpu, fate, seconds in steps:
        now += timedelta(seconds=seconds)
        event = agent.toggle(what, gpu, now)
        sent = {"lost": [], "once": [event], "twice": [event, event], "store": [event]}.get(fate)
        if sent is None:
            waiting.append(event)
            sent = [agent.sample()] if fate == "sampled" else []
        if fate == "late":
            random.shuffle(waiting)
            sent = [waiting.pop()]
        for each in sent:
            number += 1
            record, _ = take(record, each, number, now)
        if fate == "store":
            record, backup = backup, record
    for each in (*waiting, agent.sample(), *waiting, agent.sample()):
        number += 1
        now += timedelta(seconds=4000)
        record, _ = take(record, each, number, now)
    assert record.conditions == agent.sample()
    assert in_force(record) == {f"{name}/{gpu}" for name, gpu in agent.held}
    record, _ = node_health.decide_review(record, Trigger("review", 0, now))
    assert record.status == ("degraded" if agent.held else "healthy")


def test_no_timer_ends_what_holds():
    """A day, a month and a review later it still degrades its node; its end is over at once."""
    agent, record = Agent(), healthy()
    record, effects = take(record, agent.toggle(POWER, 1, NOW), 2, NOW)
    assert not [each for each in effects if isinstance(each, node_health.ReviewAt)]
    later = NOW + timedelta(days=30)
    record, _ = node_health.decide_review(record, Trigger("review", 0, later))
    assert record.status == "degraded"
    record, effects = take(record, agent.toggle(POWER, 1, later), 3, later)
    assert record.status == "healthy"
    assert [each.verdict.status for each in effects if isinstance(each, PublishVerdict)] == [
        "healthy"
    ]


def test_what_flaps_holds_for_the_rest_of_its_hour():
    """The third begin within an hour counts until an hour after the first, and no longer."""
    agent, record = Agent(), healthy()
    for number in range(6):
        at = NOW + timedelta(minutes=number)
        record, _ = take(record, agent.toggle(POWER, 1, at), 2 + number, at)
        assert record.status == ("healthy" if number in (1, 3) else "degraded")
    for minutes, status in ((59, "degraded"), (61, "healthy")):
        at = NOW + timedelta(minutes=minutes)
        record, _ = node_health.decide_review(record, Trigger("review", 0, at))
        assert record.status == status


def test_an_uncordon_of_a_node_whose_condition_holds_brings_its_verdict_back():
    """Unhealthy stays until an uncordon; what still holds is then judged at once, once."""
    agent, record = Agent(), healthy()
    record, _ = take(record, agent.toggle(DEAD, 5, NOW), 2, NOW)
    assert (record.status, record.action) == ("unhealthy", "reset_gpu")
    later = NOW + timedelta(hours=1)
    event = Uncordoned(id="u", time=later, pool="p", node="n", cleared_at=later)
    for _ in range(2):
        seen = Trigger("u", 3, later)
        record, first = node_health.decide_uncordoned(record, event, seen)
        record, second = open_conditions.decide_again(record, seen, judge)
        statuses = [e.verdict.status for e in (*first, *second) if isinstance(e, PublishVerdict)]
        assert statuses in (["healthy", "unhealthy"], [])
    assert record.status == "unhealthy"
    record, _ = take(record, agent.toggle(DEAD, 5, later), 4, later)
    assert record.status == "unhealthy"
    event = msgspec.structs.replace(event, id="u2", cleared_at=later + timedelta(hours=1))
    seen = Trigger("u2", 5, later + timedelta(hours=1))
    record, _ = node_health.decide_uncordoned(record, event, seen)
    record, _ = open_conditions.decide_again(record, seen, judge)
    assert record.status == "healthy"


def test_a_sample_without_a_list_keeps_the_rules_of_timers():
    """An older agent says nothing of conditions: what held wears off as its faults do."""
    agent, record = Agent(), healthy()
    record, _ = take(record, agent.toggle(POWER, 1, NOW), 2, NOW)
    record, _ = take(record, None, 3, NOW)
    assert (record.status, record.conditions) == ("degraded", None)
    later = NOW + timedelta(hours=2)
    record, _ = node_health.decide_review(record, Trigger("review", 0, later))
    assert record.status == "healthy"


def test_a_boot_begins_with_what_its_own_agent_says():
    """The last boot's conditions are over; lists of it that come late change nothing."""
    agent, record = Agent(), healthy()
    record, _ = take(record, agent.toggle(POWER, 1, NOW), 2, NOW)
    old = agent.sample()
    event = Registered(id="r2", time=NOW, pool="p", node="n", instance="n", boot_id="boot-2")
    record, _ = node_health.decide_registered(record, event, Trigger("r2", 3, NOW))
    assert (record.status, in_force(record)) == ("healthy", set())
    record, _ = take(record, old, 4, NOW)
    assert record.status == "healthy"
    new = Agent("boot-2")
    new.counter = agent.counter
    record, _ = take(record, new.toggle(FABRIC, 2, NOW), 5, NOW)
    assert in_force(record) == {"fabric-left/2"}


def test_a_policy_can_ignore_or_rate_a_condition_by_its_name(tmp_path):
    """A rule of a name decides about what holds already, without a word of the agent."""
    agent, record = Agent(), healthy()
    record, _ = take(record, agent.toggle(LINKS, 1, NOW), 2, NOW)
    record, _ = take(record, agent.toggle(POWER, 1, NOW), 3, NOW)
    text = """
version: 1
metadata: {name: own, description: own}
rules:
  - {name: quiet, condition: 'event.condition == "nvlinks-down"', result: healthy}
  - {name: grave, condition: 'event.condition == "slowed-power"', result: unhealthy, action: reboot}
  - {name: rest, condition: 'true', result: degraded, action: inspect}
"""
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    own = load_policy(file)

    def by_own(record: HealthRecord, fault: Fault, seen: Trigger) -> Decision:
        judged = own.judge(fault, working_of(record).windows, seen.now)
        return node_health.decide_fault(record, fault, judged, seen)

    record, _ = open_conditions.decide_again(record, Trigger(own.hash, 0, NOW), by_own)
    assert in_force(record) == set()
    assert (record.status, record.rule) == ("unhealthy", "grave")


@pytest.mark.parametrize("event_too", [False, True])
async def test_a_list_in_a_sample_is_enough(world, start, bus, event_too: bool):
    """A sample's list degrades its node until it ends, whether or not the event came."""
    await start()
    await world.register("training-7")
    agent = Agent()
    begun = agent.toggle(POWER, 1, datetime.now(UTC))
    if event_too:
        # Both ways may be taken at once; their verdict has one ID, and is stored once.
        identity = begin_id("training", "training-7", agent.boot, next(iter(agent.held.values())))
        await world.publish(
            msgspec.structs.replace(begun, id=identity, pool="training", node="training-7")
        )

    async def sample() -> None:
        telemetry_ = Telemetry(
            id=f"t-{asyncio.get_running_loop().time()}",
            time=datetime.now(UTC),
            pool="training",
            node="training-7",
            conditions=agent.sample(),
        )
        await bus.publish(telemetry("training", "training-7"), encode(telemetry_))

    async def is_now(status: str) -> bool:
        await sample()
        health = await world.health("training-7")
        return health is not None and health.status == status

    await world.until(lambda: is_now("degraded"))
    agent.toggle(POWER, 1, datetime.now(UTC))
    await world.until(lambda: is_now("healthy"))
    statuses = [each.status for each in await world.events(Verdict)]
    assert statuses == ["healthy", "degraded", "healthy"]
