"""A rule's `delay`: a condition counts only once it has held for so long, whatever happens."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from schemas.health_records import HealthRecord
from schemas.messages import encode
from schemas.node_events import ConditionEnded, Fault, Registered, Telemetry, Uncordoned, Verdict
from schemas.node_records import node_key
from schemas.settings import HealthSpec, Settings
from schemas.subjects import telemetry
from schemas.topology import HEALTH, NODES
from services.health_monitor.rules import node_health, open_conditions
from services.health_monitor.rules.health_policy import Policy
from services.health_monitor.rules.health_state import next_review, working_of
from services.health_monitor.rules.node_health import Decision, ReviewAt, Trigger
from services.health_monitor.rules.policy_file import parse_policy
from services.health_monitor.rules.policy_replay import Fact, Replay
from services.primitives.errors import ConfigurationError
from tests.health_monitor.test_lost_health import NODE, ROOT, audit_of
from tests.health_monitor.test_open_conditions import DEAD, LINKS, NOW, Agent, healthy

HEAD: Final = "version: 1\nrules:\n"
REST: Final = "  - {name: rest, condition: 'true', result: degraded, action: inspect}\n"
LATE: Final = """\
  - name: late
    condition: event.condition == "nvlinks-down"
    result: RESULT
    action: reset_gpu
    delay: DELAY
"""


def policy(delay: str = "10m", result: str = "degraded") -> Policy:
    """Return a policy with a delay of one condition; empty: with none."""
    late = LATE.replace("RESULT", result).replace("DELAY", delay)
    late = late if delay else late.replace("    delay: \n", "")
    return parse_policy("policy.yaml", f"{HEAD}{late}{REST}".encode())


class Node:
    """A node that is judged by a policy which may change."""

    def __init__(self, rules: Policy) -> None:
        self.rules = rules
        self.agent = Agent()
        self.record = healthy()
        self.number = 1
        self.review = 0.0

    def judge(self, record: HealthRecord, fault: Fault, seen: Trigger) -> Decision:
        """Judge a condition as the service does."""
        judged = self.rules.judge(fault, working_of(record).windows, seen.now)
        return node_health.decide_fault(record, fault, judged, seen)

    def toggle(self, what: dict[str, Any], seconds: float, *, seen_before: float = 0.0) -> None:
        """Begin or end a condition that the agent has seen for a while before."""
        at = NOW + timedelta(seconds=seconds)
        event = self.agent.toggle(what, 1, at)
        self.number += 1
        seen = Trigger(event.id, self.number, at)
        if isinstance(event, ConditionEnded):
            self.apply(open_conditions.decide_ended(self.record, event, seen))
        else:
            event = msgspec.structs.replace(event, since=at - timedelta(seconds=seen_before))
            self.apply(open_conditions.decide_begun(self.record, event, seen, self.judge))

    def look(self, seconds: float) -> None:
        """Let a timer fire."""
        seen = self.trigger(seconds)
        self.apply(open_conditions.decide_reviewed(self.record, seen, self.judge))

    def change(self, rules: Policy, seconds: float) -> None:
        """Take another policy into force."""
        self.rules = rules
        seen = self.trigger(seconds)
        self.apply(open_conditions.decide_again(self.record, seen, self.judge))

    def trigger(self, seconds: float) -> Trigger:
        """Return the trigger of something that is no event of the node."""
        self.number += 1
        return Trigger(f"t-{self.number}", 0, NOW + timedelta(seconds=seconds))

    def apply(self, decision: Decision) -> None:
        """Take a decision, and note the timer that it sets."""
        self.record, effects = decision
        for each in effects:
            if isinstance(each, ReviewAt):
                self.review = (each.at - NOW).total_seconds()


BOUNDS = [
    # held before, delay, looked at after, status
    (0.0, "10m", 0.0, "healthy"),
    (0.0, "10m", 599.999, "healthy"),
    (0.0, "10m", 600.0, "degraded"),
    (0.0, "10m", 90_000.0, "degraded"),
    (60.0, "10m", 539.9, "healthy"),
    (60.0, "10m", 540.0, "degraded"),
    (599.0, "10m", 0.5, "healthy"),
    (600.0, "10m", 0.0, "degraded"),
    (700.0, "10m", 0.0, "degraded"),
    (0.0, "1s", 0.999, "healthy"),
    (0.0, "1s", 1.0, "degraded"),
    (0.0, "168h", 604_799.0, "healthy"),
    (0.0, "168h", 604_800.0, "degraded"),
]


@pytest.mark.parametrize(("before", "delay", "after", "status"), BOUNDS)
def test_a_condition_counts_from_its_delay_on(
    before: float, delay: str, after: float, status: str
) -> None:
    """The time for which the agent has seen it before its begin counts as well."""
    node = Node(policy(delay))
    node.toggle(LINKS, 0.0, seen_before=before)
    if after:
        node.look(after)
    assert node.record.status == status
    assert (node.record.rule == "late") == (status == "degraded")


@pytest.mark.parametrize(("result", "status"), [("degraded", "degraded"), ("unhealthy",) * 2])
def test_a_timer_is_set_for_the_moment_and_judges_once(result: str, status: str) -> None:
    """Nothing is lost and nothing is decided twice: the timer's own review is enough."""
    node = Node(policy("10m", result))
    node.toggle(LINKS, 0.0)
    assert (node.review, node.record.status) == (600.0, "healthy")
    note = node.record.recent[-1]
    assert (note.result, note.rule) == ("healthy", "late")
    node.look(node.review)
    assert (node.record.status, node.record.action) == (status, "reset_gpu")
    assert next_review(working_of(node.record)) == 0.0
    judged = len(node.record.recent)
    node.look(1_200.0)
    assert len(node.record.recent) == judged


def test_a_condition_that_ends_in_time_never_counts() -> None:
    """The timer finds nothing then; the next begin has a delay of its own."""
    node = Node(policy("10m"))
    node.toggle(LINKS, 0.0)
    node.toggle(LINKS, 599.0)
    node.look(600.0)
    assert (node.record.status, working_of(node.record).delays) == ("healthy", {})
    node.toggle(LINKS, 700.0)
    node.look(1_299.0)
    assert node.record.status == "healthy"
    node.look(1_300.0)
    assert node.record.status == "degraded"


CHANGES = [
    # the delay at first, changed to, at, status then, looked at, status at last
    ("10m", "", 60.0, "degraded", 61.0, "degraded"),
    ("", "10m", 60.0, "healthy", 599.9, "healthy"),
    ("", "10m", 60.0, "healthy", 600.1, "degraded"),
    ("", "10m", 600.0, "degraded", 700.0, "degraded"),
    ("10m", "20m", 60.0, "healthy", 1_199.0, "healthy"),
    ("10m", "20m", 60.0, "healthy", 1_200.0, "degraded"),
    ("20m", "10m", 660.0, "degraded", 700.0, "degraded"),
    ("10m", "1h", 900.0, "healthy", 3_599.0, "healthy"),
    ("10m", "1h", 900.0, "healthy", 3_600.0, "degraded"),
]


@pytest.mark.parametrize(("first", "then", "at", "status", "later", "at_last"), CHANGES)
def test_another_policy_begins_no_delay_again(
    first: str, then: str, at: float, status: str, later: float, at_last: str
) -> None:
    """A reload is judged from the moment since when the condition is held."""
    node = Node(policy(first))
    node.toggle(LINKS, 0.0)
    node.look(at - 1.0)
    node.change(policy(then), at)
    assert node.record.status == status
    node.look(later)
    assert node.record.status == at_last


def test_a_delay_outlives_an_uncordon_and_ends_with_the_boot() -> None:
    """A cleared condition is judged again by the time for which it is held."""
    node = Node(policy("10m"))
    node.toggle(LINKS, 0.0)
    event = Uncordoned(id="u", time=NOW, pool="p", node="n", cleared_at=NOW)
    node.apply(node_health.decide_uncordoned(node.record, event, node.trigger(60.0)))
    node.apply(open_conditions.decide_again(node.record, node.trigger(60.0), node.judge))
    node.look(600.0)
    assert node.record.status == "degraded"
    boot = Registered(id="r2", time=NOW, pool="p", node="n", instance="n", boot_id="boot-2")
    node.apply(node_health.decide_registered(node.record, boot, node.trigger(700.0)))
    assert (node.record.status, working_of(node.record).delays) == ("healthy", {})


def test_the_other_conditions_of_the_node_count_at_once() -> None:
    """A delay is one condition's of one GPU."""
    node = Node(policy("10m"))
    node.toggle(LINKS, 0.0)
    node.toggle(DEAD, 1.0)
    assert (node.record.status, node.record.rule) == ("degraded", "rest")


def test_a_replay_delays_as_the_service_does() -> None:
    """`navarch policy test` shows what a delay would have come to."""
    agent = Agent()
    long, short = agent.toggle(LINKS, 1, NOW), agent.toggle(LINKS, 2, NOW)
    end = NOW + timedelta(seconds=599)
    over = agent.toggle(LINKS, 2, end)
    replay = Replay(policy("10m"), lambda _: HealthSpec())
    for number, (event, at) in enumerate([(long, NOW), (short, NOW), (over, end)]):
        replay.take(Fact(event, number + 1, at))
    replay.finish(NOW + timedelta(seconds=599))
    assert replay.verdicts == []
    replay.finish(NOW + timedelta(seconds=600))
    assert [(each.status, each.gpu_index) for each in replay.verdicts] == [("degraded", 1)]


WRONG = [
    ("delay: 10m", "delay: 0s", "must be above 0s and at most 7 days"),
    ("delay: 10m", "delay: 169h", "must be above 0s and at most 7 days"),
    ("delay: 10m", "delay: 10m\n    count: 2\n    window: 1h", "goes with no `count`"),
    ("result: degraded\n    action: reset_gpu", "result: healthy", "no effect on a healthy result"),
    ('event.condition == "nvlinks-down"', 'event.event_type == "nvlink"', "`event.condition`"),
    ('event.condition == "nvlinks-down"', '\'"event.condition" == "x"\'', "`event.condition`"),
]


@pytest.mark.parametrize(("old", "new", "problem"), WRONG)
def test_a_delay_that_cannot_work_is_refused(old: str, new: str, problem: str) -> None:
    """The error names file, line, key and remedy."""
    text = f"{HEAD}{LATE}{REST}".replace("RESULT", "degraded").replace("DELAY", "10m")
    assert old in text
    with pytest.raises(ConfigurationError) as error:
        parse_policy("policy.yaml", text.replace(old, new).encode())
    assert (error.value.file, error.value.key) == ("policy.yaml", "rules.0.delay")
    assert problem in str(error.value)


def test_the_documented_rules_are_those_of_a_policy() -> None:
    """The page's example delays one condition and ignores another."""
    page = (ROOT / "docs" / "health-policy.md").read_text(encoding="utf-8")
    text = page.partition("```yaml\n")[2].partition("```")[0]
    rules = parse_policy("policy.yaml", f"version: 1\n{text}{REST}".encode()).rules
    assert [(each.result, each.delay_seconds) for each in rules] == [
        ("degraded", 300.0),
        ("healthy", 0.0),
        ("degraded", 0.0),
    ]


async def test_a_delay_whose_timer_was_lost_is_over_all_the_same(bus) -> None:
    """The audit judges what is overdue."""
    node = Node(policy("10m"))
    node.toggle(LINKS, 0.0)
    record = msgspec.structs.replace(node.record, pool="training", node="training-7")
    await bus.put(NODES, node_key("training", "training-7"), encode(NODE))
    await bus.put(HEALTH, node_key("training", "training-7"), encode(record))
    await audit_of(bus).look()
    found = await bus.get(HEALTH, node_key("training", "training-7"))
    after = msgspec.json.decode(found.value, type=HealthRecord)
    assert (record.status, after.status, after.rule) == ("healthy", "degraded", "nvlink-down")


async def test_a_reloaded_policy_delays_what_holds_and_counts_it_when_it_is_due(
    world, start, bus, tmp_path
):
    """A condition counts at once, is delayed by a changed file, and is counted by the timer."""
    file = tmp_path / "policy.yaml"

    def write(delay: str) -> None:
        late = LATE.replace("RESULT", "degraded").replace("DELAY", delay)
        file.write_text(f"{HEAD}{late if delay else late.replace('    delay: ', '')}{REST}")

    write("1h")
    await start(Settings(health_policy=str(file)))
    await world.register("training-7")
    agent = Agent()
    agent.toggle(LINKS, 1, datetime.now(UTC))
    sample = Telemetry(
        id="t-1",
        time=datetime.now(UTC),
        pool="training",
        node="training-7",
        conditions=agent.sample(),
    )

    async def is_now(status: str, rule: str) -> bool:
        health = await world.health("training-7")
        if health is None or not health.recent:
            again = msgspec.structs.replace(sample, id=f"t-{asyncio.get_running_loop().time()}")
            await bus.publish(telemetry("training", "training-7"), encode(again))
            return False
        return (health.status, health.recent[-1].rule) == (status, rule)

    await world.until(lambda: is_now("healthy", "late"))
    write("")
    await world.until(lambda: is_now("degraded", "late"))
    write("1h")
    await world.until(lambda: is_now("healthy", "late"))
    write("8s")
    await world.until(lambda: is_now("degraded", "late"))
    agent.toggle(LINKS, 1, datetime.now(UTC))
    statuses = [each.status for each in await world.events(Verdict)]
    assert statuses == ["healthy", "degraded", "healthy", "degraded"]
