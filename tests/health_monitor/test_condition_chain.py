"""Conditions go the whole way here: the agent's engine, the messages, HEALTH and the verdict."""

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.conditions.declared import CONDITIONS
from agent.conditions.engine import Conditions, Observed, Seen, held, started, step
from agent.faults.fault_builder import GpuMap, NodeIdentity, from_condition
from schemas.health_records import HealthRecord
from schemas.held_conditions import bounded
from schemas.messages import encode
from schemas.node_events import NodeEvent, Registered, Telemetry, Uncordoned, node_codec
from services.health_monitor.rules import node_health, open_conditions
from services.health_monitor.rules.node_health import Trigger
from tests.health_monitor.test_open_conditions import in_force, judge, take

NOW: Final = datetime(2026, 11, 21, tzinfo=UTC)
KEYS: Final = tuple(
    (each.name, gpu)
    for each in CONDITIONS
    if each.reader == "nvml"
    for gpu in ((-1,) if each.scope == "host" else (0, 1))
)


class Chain:
    """A node's agent, a health-monitor and its store; every message passes its encoding."""

    def __init__(self) -> None:
        self.now, self.boot, self.number = NOW, 1, 1
        self.state = started(Conditions(), NOW.timestamp(), same_boot=False)
        self.record = HealthRecord(pool="p", node="n")
        self.late: list[NodeEvent] = []
        self.deliver(self.registration())
        self.backup = self.record

    @property
    def who(self) -> NodeIdentity:
        """Return the identity of the node in this boot."""
        return NodeIdentity("p", "n", f"boot-{self.boot}")

    def registration(self) -> Registered:
        """Return the first event of a boot."""
        boot = self.who.boot_id
        about = {"pool": "p", "node": "n", "instance": "n", "boot_id": boot}
        return Registered(id=f"r-{boot}-{self.number}", time=self.now, **about)

    def sample(self) -> Telemetry:
        """Return a sample, read from its encoding."""
        listed = bounded(self.who.boot_id, self.state.counter, held(self.state))
        sent = Telemetry(id="s", time=self.now, pool="p", node="n", conditions=listed)
        return msgspec.json.decode(encode(sent), type=Telemetry)

    def look(self, observed: Observed) -> list[NodeEvent]:
        """Have the agent take in what a reader says for a minute; return what it publishes."""
        sent: list[NodeEvent] = []
        for _ in range(5):
            self.now += timedelta(seconds=30)
            self.state, changes = step(self.state, observed, self.now.timestamp(), 30.0)
            sent += [from_condition(self.who, each, GpuMap(), self.now) for each in changes]
        return [event for each in sent if isinstance(event := _sent(each), NodeEvent)]

    def deliver(self, message: NodeEvent | Telemetry) -> None:
        """Have the monitor apply a message as it does, and store the record."""
        self.number += 1
        at = self.now + timedelta(milliseconds=self.number)
        seen = Trigger(message.id, self.number, at)
        match message:
            case Registered():
                decided = node_health.decide_registered(self.record, message, seen)
            case Telemetry():
                seen = Trigger(f"sample-{self.number}", 0, at)
                taken = open_conditions.decide_listed(self.record, message.conditions, seen, judge)
                if taken is None:
                    # The monitor reads the registration of this boot, and the next list counts.
                    self.deliver(self.registration())
                    taken = open_conditions.decide_listed(
                        self.record, message.conditions, seen, judge
                    )
                decided = taken or (self.record, ())
            case _:
                decided = take(self.record, message, self.number, at)
        self.record = decided[0]

    def restart_monitor(self) -> None:
        """Read the record again from what is stored."""
        self.record = msgspec.json.decode(msgspec.json.encode(self.record), type=HealthRecord)

    def restart_agent(self, *, same_boot: bool, kept: bool) -> None:
        """Start the agent again; `kept`: its state file is still there."""
        stored = msgspec.json.decode(msgspec.json.encode(self.state), type=Conditions)
        before = stored if kept else Conditions()
        self.now += timedelta(seconds=5)
        self.state = started(before, self.now.timestamp(), same_boot=same_boot)
        self.boot += not same_boot


def _sent(event: NodeEvent) -> object:
    return node_codec.decode(encode(event))


SEEN = st.lists(st.sampled_from(KEYS), max_size=4, unique=True)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("look"),
            SEEN,
            st.dictionaries(st.sampled_from([-1, 0, 1]), st.just("hangs"), max_size=1),
            st.lists(st.sampled_from(["lost", "once", "twice", "late"]), min_size=8, max_size=8),
            st.booleans(),
        ),
        st.tuples(st.sampled_from(["agent", "state lost", "boot", "boot unheard"])),
        st.tuples(st.sampled_from(["monitor", "backup", "restore", "late", "hour", "uncordon"])),
    ),
    max_size=25,
)


def _apply(chain: Chain, each: Any, random: Any) -> None:
    match each:
        case ("look", *rest):
            _look(chain, *rest)
        case ("agent" | "state lost" | "boot" | "boot unheard" as how,):
            chain.restart_agent(same_boot="boot" not in how, kept=how != "state lost")
            if how == "boot":
                chain.deliver(chain.registration())
        case ("late",):
            random.shuffle(chain.late)
            while chain.late:
                chain.deliver(chain.late.pop())
        case (how,):
            _on_monitor(chain, how)


def _look(chain: Chain, keys: Any, unread: Any, fates: Any, sampled: Any) -> None:
    seen = {key: Seen("seen", {}, "GPU Reset Required") for key in keys}
    for place, event in enumerate(chain.look(Observed("nvml", seen, unread))):
        fate = fates[place % len(fates)]
        chain.late += [event] * (fate == "late")
        for _ in range({"once": 1, "twice": 2}.get(fate, 0)):
            chain.deliver(event)
    if sampled:
        chain.deliver(chain.sample())


def _on_monitor(chain: Chain, how: str) -> None:
    match how:
        case "monitor":
            chain.restart_monitor()
        case "backup":
            chain.backup = chain.record
        case "restore":
            chain.record = chain.backup
        case "hour":
            chain.now += timedelta(hours=1)
        case "uncordon":
            _uncordon(chain)


def _uncordon(chain: Chain) -> None:
    chain.number += 1
    seen = Trigger(f"u-{chain.number}", chain.number, chain.now)
    event = Uncordoned(id=seen.id, time=chain.now, pool="p", node="n")
    record, _ = node_health.decide_uncordoned(chain.record, event, seen)
    chain.record, _ = open_conditions.decide_again(record, seen, judge)


def _fresh(chain: Chain) -> HealthRecord:
    """Return what a monitor that knows nothing makes of the last sample alone."""
    other = Chain()
    other.now, other.boot = chain.now, chain.boot
    other.record = HealthRecord(pool="p", node="n")
    other.deliver(chain.registration())
    other.deliver(chain.sample())
    return other.record


NONE: Final = ("lost",) * 8
LATE_OF_AN_EARLIER_BOOT: Final[list[Any]] = [
    ("look", [("driver-gone", -1), ("gpu-failing", 0)], {}, ("lost", "late", *NONE), False),
    ("boot",),
    ("late",),
    ("look", [("driver-mismatch", -1)], {}, ("once", *NONE), False),
]


@example(LATE_OF_AN_EARLIER_BOOT, Random(1))
@given(STEPS, st.randoms(use_true_random=False))
@settings(max_examples=400, deadline=None)
def test_what_is_shown_is_the_last_sample_and_the_verdict_is_a_fresh_one(
    steps: list[Any], random: Any
) -> None:
    """Messages are lost, late and repeated; agent, monitor and store start again, or go back.

    What was unhealthy, or began too often within the hour, lasts longer by intention: an hour and
    an uncordon end that.
    """
    chain = Chain()
    for each in steps:
        _apply(chain, each, random)
    chain.now += timedelta(hours=2)
    sample = chain.sample()
    chain.deliver(sample)
    _apply(chain, ("late",), random)
    fresh = _fresh(chain)
    assert chain.record.conditions == sample.conditions
    assert in_force(chain.record) == in_force(fresh)
    if fresh.status == "unhealthy":
        assert chain.record.status == "unhealthy"
    _uncordon(chain)
    assert chain.record.conditions == sample.conditions
    assert in_force(chain.record) == in_force(fresh)
    assert (chain.record.status, chain.record.action) == (fresh.status, fresh.action)
