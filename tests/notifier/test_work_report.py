"""Drains publish what they wait for on a change, at first soon, then once a minute, bounded."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from schemas.messages import encode
from schemas.node_events import WorkRemains, node_codec
from schemas.topology import EVENTS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.port import Bus
from services.bus.topology_setup import set_up
from services.notifier.work_report import WorkReport, read_remaining_work, work_remains
from services.notifier.workload.workload_notifier import NodeReference, NodeWorkload, RunningWork
from services.operator_text.event_text import describe
from services.operator_text.workload_words import work_words
from services.primitives.clock import SystemClock

NODE = NodeReference(pool="training", node="training-7")
ONE_JOB = (
    "waits for job 4711 of alice (has run for 2 h 10 min), until {at} at the latest (in 2 h 9 min)"
)
SUBJECT = "navarch.v1.node.training.training-7.event.work-remains"
SAGA = "replace-training-7-1"
AT = datetime(2026, 11, 22, 4, 26, tzinfo=UTC)
BEGAN = datetime(2026, 11, 22, 0, 6, tzinfo=UTC)
NOW = datetime(2026, 11, 22, 2, 16, 30, tzinfo=UTC)
LATER = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)


def workload(*jobs: int, ends: datetime | None = AT) -> NodeWorkload:
    """Return a node with these jobs of alice."""
    running = tuple(
        RunningWork(id=f"job {each}", owner="alice", started_at=BEGAN, ends_at=ends)
        for each in jobs
    )
    return NodeWorkload(drained=False, running=running[:20], total=len(jobs))


def event(answer: NodeWorkload, until: datetime | None) -> WorkRemains:
    """Return the event about it."""
    found = work_remains(NODE, SAGA, until, answer, NOW)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("answer", "until", "words"),
    [
        (workload(4711), None, ONE_JOB),
        (workload(4711), LATER, ONE_JOB),
        (workload(4711, ends=LATER), AT, ONE_JOB),
        (
            workload(1, ends=None),
            None,
            "waits for job 1 of alice (has run for 2 h 10 min), without a time limit",
        ),
        (
            replace(workload(1, ends=None), detail="waits for its disruption\nbudget (x): ml/web"),
            None,
            "without a time limit. waits for its disruption budget (x): ml/web",
        ),
        (
            replace(workload(1, 2, 3), detail="left until the deadline, it runs to completion: a"),
            AT,
            "waits for job 1 of alice (has run for 2 h 10 min), 2 more, until {at} at the latest",
        ),
        (workload(1, 2, 3, 4, 5, 6, 7), AT, "job 5 of alice (has run for 2 h 10 min), 2 more, "),
    ],
)
def test_operators_read_for_whose_work_and_until_when(
    answer: NodeWorkload, until: datetime | None, words: str
) -> None:
    """The earlier of the jobs' own ends and of the deadline is what it waits for at most."""
    said = work_words(event(answer, until), NOW)
    assert words.format(at=AT.astimezone().strftime("%m-%d %H:%M:%S")) in said
    assert describe(event(answer, until)).detail == said


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (BEGAN, "(has run for 0 min), until {at} at the latest (in 4 h 20 min)"),
        (BEGAN - timedelta(hours=1), "alice, until {at} at the latest (in 5 h 20 min)"),
        (AT, "(has run for 4 h 20 min), until {at} at the latest"),
        (AT + timedelta(days=3), "(has run for 3 d 4 h), until {at} at the latest"),
    ],
)
def test_a_reader_counts_from_its_own_time(at: datetime, words: str) -> None:
    """The event is hours old when an operator reads it; clocks differ, and ends pass."""
    said = work_words(event(workload(4711), None), at)
    assert said.endswith(words.format(at=AT.astimezone().strftime("%m-%d %H:%M:%S")))


def test_times_that_no_event_may_hold_are_left_out() -> None:
    """A scheduler without time limits writes the year 9999, and a plugin no time zone."""
    endless = datetime(9999, 12, 31, tzinfo=UTC)
    work = RunningWork(id="job 1", started_at=datetime(2026, 11, 22), ends_at=endless)  # noqa: DTZ001
    found = event(NodeWorkload(drained=False, running=(work,), total=1), None)
    assert node_codec.decode(encode(found)) == found
    assert work_words(found, NOW) == "waits for job 1, without a time limit"


def test_a_name_adds_no_line_to_what_operators_read() -> None:
    """A webhook's message is its author's, and a command prints what it likes."""
    work = RunningWork(id="job 1\nBREAKER  closed", owner="a\tb")
    said = work_words(event(NodeWorkload(drained=False, running=(work,), total=1), None), NOW)
    assert said == "waits for job 1 BREAKER closed of a b, without a time limit"


def test_event_is_bounded_whatever_the_workload_system_says() -> None:
    """Thousands of jobs with endless names make one small event."""
    hostile = RunningWork(id="x" * 10_000, owner="y" * 10_000)
    answer = NodeWorkload(drained=False, running=(hostile,) * 20, total=10_000)
    found = event(answer, None)
    assert len(found.work) == 5
    assert found.total == 10_000
    assert len(found.work[0].id) == 512
    assert work_remains(NODE, SAGA, None, NodeWorkload(drained=False), AT) is None


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    """Make a bus with the topology."""
    server = MemoryServer(SystemClock())
    connected = MemoryBus(server, PerfectLink())
    await set_up(connected, SystemClock(), replicas=1)
    yield connected
    await connected.close()
    server.close()


async def test_a_change_within_a_minute_waits(bus: Bus) -> None:
    """Jobs that come and go every second make one event a minute."""
    report = WorkReport(bus, SystemClock(), NODE, SAGA, AT)
    running = asyncio.create_task(report.run())
    for job in range(50):
        report.update(workload(job))
        await asyncio.sleep(0.001)
    stored = await bus.read(EVENTS.name, SUBJECT)
    assert len(stored) == 1
    assert "job 0 of alice" in await read_remaining_work(bus, "training", "training-7", SAGA, NOW)
    assert await read_remaining_work(bus, "training", "training-7", "another", NOW) == ""
    running.cancel()


async def test_a_repeated_report_stores_nothing(bus: Bus) -> None:
    """A notifier that was killed and drains again publishes the same message."""
    for _ in range(2):
        report = WorkReport(bus, SystemClock(), NODE, SAGA, AT)
        report.update(workload(4711))
        running = asyncio.create_task(report.run())
        await asyncio.sleep(0.01)
        running.cancel()
    stored = await bus.read(EVENTS.name, SUBJECT)
    assert len(stored) == 1


class SteppedClock(SystemClock):
    """Hands each sleep to the test, which ends it."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.sleeps = asyncio.Queue[asyncio.Event]()

    async def sleep(self, seconds: float) -> None:
        """Sleep until the test says so."""
        self.slept.append(seconds)
        over = asyncio.Event()
        self.sleeps.put_nowait(over)
        await over.wait()


async def test_why_work_stays_is_published_soon(bus: Bus) -> None:
    """The first event comes before an eviction is answered; later ones come less and less often."""
    clock = SteppedClock()
    report = WorkReport(bus, clock, NODE, SAGA, AT)
    running = asyncio.create_task(report.run())
    for count in range(1, 8):
        report.update(replace(workload(1), detail=f"for reason {count}"))
        over = await clock.sleeps.get()
        stored = await bus.read(EVENTS.name, SUBJECT)
        assert len(stored) == count
        over.set()
    running.cancel()
    assert clock.slept == [5, 10, 20, 40, 60, 60, 60]
