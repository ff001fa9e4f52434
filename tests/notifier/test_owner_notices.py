"""Owners of work hear once of a drain with a deadline, beside it; failures are events.

In virtual time on the in-memory bus.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schemas import subjects
from schemas.messages import encode
from schemas.node_events import FACTS, NodeEvent, OwnerNoticeFailed, OwnersNotified
from schemas.node_records import NodeRecord, node_key
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, NODES
from services.bus.memory.memory_bus import MemoryBus
from services.notifier.owner_notices import AHEAD_MAX, SENDERS, OwnerNotices
from services.notifier.workload.combined_notifier import CombinedNotifier
from services.notifier.workload.kubernetes.pod_notices import PodTexts
from services.notifier.workload.owner_text import TEXT_CHARS_MAX, disruption_text
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    OwnerNotice,
    RunningWork,
    WorkloadOrder,
)
from services.operator_text.workload_words import owners_words
from services.primitives.race import race
from services.saga.participant import Command
from services.simulator.engine.virtual_time import VirtualClock
from services.workload_systems.kubernetes_objects import (
    KubernetesPod,
    ObjectMetadata,
    OwnerReference,
    PodSpec,
)
from tests.notifier.test_drain_watch import Scheduler
from tests.notifier.test_workload_steps import announce, command, steps, with_bus

ALICE = RunningWork(id="job 4711", owner="alice")
NOTICE = OwnerNotice(owner="alice", work=("job 4711",))


@dataclass(eq=False)
class Messenger(Scheduler):
    """A scheduler whose job leaves after a while, and whose owner can be sent messages."""

    poll_seconds: float = 1.0
    notifies_owners: bool = True
    leaves_after: float = 100.0
    failing: Any = None
    """What a message ends with: an exception, notices; or True: it never ends."""
    sent: list[WorkloadOrder] = field(default_factory=list)
    begun: float = field(default_factory=lambda: VirtualClock().monotonic())

    async def notify_owners(self, order: WorkloadOrder) -> Sequence[OwnerNotice]:
        """Take the message, or fail as the test says."""
        self.sent.append(order)
        if self.failing is True:
            await asyncio.Event().wait()
        if isinstance(self.failing, Exception):
            raise self.failing
        return self.failing or [NOTICE]

    def _workload(self, node: str) -> NodeWorkload:
        if VirtualClock().monotonic() >= self.begun + self.leaves_after:
            self.busy.discard(node)
        here = (ALICE,) if node in self.busy else ()
        return NodeWorkload(drained=not here, running=here, total=len(here))


async def published(bus: MemoryBus, kind: type[NodeEvent]) -> list[Any]:
    """Return the events of a kind about the node."""
    subject = subjects.node_event("p", "n", FACTS[kind])
    return [decode_stored(each) for each in await bus.read(EVENTS.name, subject)]


@pytest.mark.parametrize(
    ("changes", "inputs", "messages"),
    [
        ({}, {}, 1),
        ({"notifies_owners": False}, {}, 0),
        # nothing runs, so there is no owner
        ({"busy": set()}, {}, 0),
        # no deadline: `drain: wait`; and no wait at all: `drain: immediate`
        ({}, {"seconds": None}, 0),
        ({}, {"wait": False}, 0),
        # the workload system is away at first
        ({"failures": 3}, {}, 1),
    ],
)
def test_owners_hear_once_of_a_drain_with_a_deadline(
    changes: dict[str, Any], inputs: dict[str, Any], messages: int
) -> None:
    """A step that comes again, because a replica was killed, sends no second message."""

    async def work(bus: MemoryBus) -> None:
        messenger = Messenger(**{"busy": {"n"}, **changes})
        for attempt in (1, 2):
            performing = steps(bus, messenger)
            asked = command("p", **{"seconds": 3600.0, **inputs})
            order = replace(asked, deliveries=attempt)
            # The first replica is killed while the drain lasts.
            await race(performing.drain(order), seconds_max=40.0 if attempt == 1 else None)
        assert len(messenger.sent) == messages
        found = await published(bus, OwnersNotified)
        assert len(found) == messages
        for each in messenger.sent:
            assert (each.reason, each.saga) == ("XID 79", "s")
            assert each.deadline == found[0].until
            assert owners_words(found[0]).startswith("job 4711 of alice has until ")
        assert await published(bus, OwnerNoticeFailed) == []

    with_bus(work)


@pytest.mark.parametrize(
    ("failing", "failed"),
    [
        (ConnectionError("away"), [("", "away")]),
        (
            [NOTICE, OwnerNotice(owner="bob", failure="no\nsuch job")],
            [("bob", "no such job")],
        ),
        (True, [("", "no answer within 60 s")]),
    ],
)
def test_a_message_that_fails_is_an_event_and_delays_nothing(
    failing: Any, failed: list[tuple[str, str]]
) -> None:
    """The drain ends when the job has left; nothing is sent again."""

    async def work(bus: MemoryBus) -> None:
        messenger = Messenger(busy={"n"}, failing=failing)
        await steps(bus, messenger).drain(command("p", 3600.0))
        assert VirtualClock().monotonic() - messenger.begun == pytest.approx(100, abs=2)
        assert len(messenger.sent) == 1
        found = await published(bus, OwnerNoticeFailed)
        assert [(each.owner, each.reason) for each in found] == failed

    with_bus(work)


def test_owners_of_a_machine_that_is_gone_hear_nothing() -> None:
    """A message about work that is lost already helps no owner."""

    async def work(bus: MemoryBus) -> None:
        gone = NodeRecord(pool="p", node="n", state="active", provider_state="gone")
        await bus.put(NODES, node_key("p", "n"), encode(gone))
        messenger = Messenger(busy={"n"})
        await steps(bus, messenger).drain(command("p", 3600.0))
        assert messenger.sent == []

    with_bus(work)


def test_each_workload_system_of_a_pool_that_can_is_asked() -> None:
    """One that cannot send messages prevents none of the others."""

    async def work(bus: MemoryBus) -> None:
        able, silent = Messenger(busy={"n"}), Scheduler(poll_seconds=1.0)
        await steps(bus, CombinedNotifier([able, silent])).drain(command("p", 3600.0))
        assert len(able.sent) == 1

    with_bus(work)


async def vacate(bus: MemoryBus, drain_seconds: float | None, taken: float = 600.0) -> Command:
    """Return the command to vacate the node, which its cloud takes so much later."""
    await announce(bus, taken)
    asked = command("p", 5.0, wait=False, drain_seconds=drain_seconds)
    return replace(asked, step="vacate")


@pytest.mark.parametrize(
    ("drain_seconds", "work_there", "ahead", "until"),
    [
        (None, True, 1, 585.0),  # `drain: wait`: ten seconds before the drain must be over
        (60.0, True, 1, 54.0),  # the drain begins at once if there is no room, and lasts no longer
        (3_600.0, True, 1, 585.0),
        (0.0, True, 0, None),  # `drain: immediate`
        (60.0, False, 0, None),
    ],
)
def test_owners_hear_ahead_of_the_drain_that_follows(
    drain_seconds: float | None, work_there: bool, ahead: int, until: float | None
) -> None:
    """The step does not wait for it, and neither a repetition nor the drain sends a second one."""

    async def work(bus: MemoryBus) -> None:
        messenger = Messenger(busy={"n"} if work_there else set(), leaves_after=1_000.0)
        performing, now = steps(bus, messenger), VirtualClock().now()
        asked = await vacate(bus, drain_seconds)
        for attempt in (1, 2):
            assert await performing.start_drain(replace(asked, deliveries=attempt)) is not None
            assert len(messenger.sent) == (0 if attempt == 1 else ahead)
            await race(performing.owners.serve(), seconds_max=30.0)
        assert len(messenger.sent) == ahead
        ends = [(each.deadline - now).total_seconds() for each in messenger.sent if each.deadline]
        assert ends == ([until] if until is not None else [])
        # Another replica performs the drain.
        following = steps(bus, messenger)
        await race(following.drain(command("p", 300.0)), seconds_max=30.0)
        await race(following.owners.serve(), performing.owners.serve(), seconds_max=30.0)
        assert len(messenger.sent) == (1 if work_there else 0)
        assert len(await published(bus, OwnersNotified)) == len(messenger.sent)

    with_bus(work)


@pytest.mark.parametrize("failures", [0, 3, 100])
def test_two_replicas_at_once_send_one_message(failures: int) -> None:
    """The drain begins while another replica still asks whose work is on the node."""

    async def work(bus: MemoryBus) -> None:
        messenger = Messenger(busy={"n"}, leaves_after=1_000.0)
        first, second = steps(bus, messenger), steps(bus, messenger)
        await first.start_drain(await vacate(bus, 300.0))
        messenger.failures = failures
        for each in (first, second):
            drain = each.drain(command("p", 300.0, workload_notified=True))
            await race(drain, first.owners.serve(), second.owners.serve(), seconds_max=100.0)
        messenger.failures = 0
        await race(second.drain(command("p", 300.0, workload_notified=True)), seconds_max=60.0)
        assert len(messenger.sent) == 1

    with_bus(work)


@pytest.mark.parametrize("failing", [ConnectionError("away"), True])
def test_a_message_ahead_that_fails_delays_nothing(failing: Any) -> None:
    """The failure is an event, and no later message follows."""

    async def work(bus: MemoryBus) -> None:
        messenger = Messenger(busy={"n"}, failing=failing, leaves_after=1_000.0)
        performing, clock = steps(bus, messenger), VirtualClock()
        began = clock.monotonic()
        await performing.start_drain(await vacate(bus, 300.0))
        assert clock.monotonic() == began
        await race(performing.owners.serve(), seconds_max=100.0)
        await race(performing.drain(command("p", 300.0)), seconds_max=100.0)
        assert len(messenger.sent) == 1
        assert len(await published(bus, OwnerNoticeFailed)) == 1

    with_bus(work)


def test_a_wave_of_notices_has_few_messages_at_a_time() -> None:
    """Orders wait where there are too many, or are left to the drains."""

    async def work(bus: MemoryBus) -> None:
        messenger = Messenger(failing=True)
        notices = OwnerNotices(bus, VirtualClock())
        until = VirtualClock().now() + timedelta(hours=1)
        for number in range(AHEAD_MAX + 10):
            node = NodeReference(pool="p", node=f"n-{number}")
            messenger.busy.add(node.node)
            order = WorkloadOrder(node=node, key=f"s-{number}/vacate", deadline=until)
            notices.announce(messenger, order)
        await race(notices.serve(), seconds_max=50.0)
        assert len(messenger.sent) == SENDERS

    with_bus(work)


def about(reason: str) -> WorkloadOrder:
    """Return the order of a drain of node n."""
    until = datetime(2026, 11, 30, 12, tzinfo=UTC)
    node = NodeReference(pool="p", node="n")
    return WorkloadOrder(node=node, reason=reason, key="replace-n-1/drain", deadline=until)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (
            "xid-79",
            (
                "Navarch drains gpu1: xid-79. Work that still runs at 2026-11-30 12:00:00 UTC is "
                "requeued. (replace-n-1)"
            ),
        ),
        (
            "",
            (
                "Navarch drains gpu1: an operator requested it. Work that still runs at "
                "2026-11-30 12:00:00 UTC is requeued. (replace-n-1)"
            ),
        ),
        ("a\x1b[31m\nb", "Navarch drains gpu1: a?[31m b. Work"),
    ],
)
def test_a_message_says_why_by_when_and_what_then(reason: str, expected: str) -> None:
    """The message is one line, without what a terminal would act on."""
    assert disruption_text(about(reason), "is requeued", "gpu1").startswith(expected)
    assert len(disruption_text(about("x" * 2000), "is requeued")) == TEXT_CHARS_MAX


@pytest.mark.parametrize(
    ("owner", "restart", "then"),
    [
        ("Job", "Never", "UTC is deleted, and its controller makes it again elsewhere. ("),
        ("ReplicaSet", "Always", "elsewhere; pods that may be evicted are evicted now. ("),
        ("", "Always", "UTC is deleted. ("),
    ],
)
def test_a_pod_and_its_controller_have_one_event_of_a_drain(
    owner: str, restart: str, then: str
) -> None:
    """The names stay the same when they are written again; a pod without controller has one."""
    owners = (
        OwnerReference(kind=owner, name="o", controller=True, api_version="apps/v1", uid="u2"),
    )
    metadata = ObjectMetadata(
        name="pod", namespace="ml", uid="u1", owner_references=owners if owner else ()
    )
    pod = KubernetesPod(metadata=metadata, spec=PodSpec(restart_policy=restart))
    texts, now = PodTexts("finish", deletes=True), datetime(2026, 11, 30, 11, tzinfo=UTC)
    events = texts.events(about("xid-79"), pod, now)
    again = texts.events(about("xid-79"), pod, now + timedelta(hours=1))
    assert [each["involvedObject"]["kind"] for each in events] == ["Pod", *([owner] * bool(owner))]
    assert [each["metadata"]["name"] for each in events] == [
        each["metadata"]["name"] for each in again
    ]
    assert len({each["metadata"]["name"] for each in events}) == len(events)
    for each in events:
        assert each["metadata"]["namespace"] == each["involvedObject"]["namespace"] == "ml"
        assert each["type"] == "Warning"
        assert then in each["message"]
