"""Work is asked for a checkpoint once, and has a bounded time to leave before its drain is ordered.

In virtual time on the in-memory bus.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.node_events import FACTS, CheckpointRequested
from schemas.node_records import NodeRecord, node_key
from schemas.step_data import DrainOutputs
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, NODES
from services.bus.memory.memory_bus import MemoryBus
from services.notifier.workload.workload_notifier import (
    NodeWorkload,
    RunningWork,
    StepFailure,
    WorkloadOrder,
)
from services.operator_text.workload_words import checkpoint_words
from services.primitives.race import race
from services.simulator.engine.virtual_time import VirtualClock
from tests.notifier.test_drain_watch import Scheduler
from tests.notifier.test_workload_steps import command, steps, with_bus

JOB = RunningWork(id="job 4711", owner="alice")


@dataclass(eq=False)
class Checkpointing(Scheduler):
    """Simulates a system whose job leaves some time after the request for a checkpoint."""

    poll_seconds: float = 1.0
    leaves_after: float | None = None
    """None: only by the drain."""
    errors: list[Exception] = field(default_factory=list)
    """Raised by the next requests."""
    orders: list[tuple[str, float]] = field(default_factory=list)
    """Each request and drain, and when."""
    leaves_at: float = float("inf")
    announces: float | None = None
    """The job announces a checkpoint so long after it was asked, and only `evict` ends it."""
    others: int = 0
    """Jobs beside it."""

    async def checkpoint(self, order: WorkloadOrder) -> Sequence[RunningWork]:
        """Ask the job."""
        now = VirtualClock().monotonic()
        self.orders.append((order.key, now))
        if self.errors:
            raise self.errors.pop(0)
        if self.leaves_after is not None:
            self.leaves_at = now + self.leaves_after
        if self.announces is not None:
            at = VirtualClock().now() + timedelta(seconds=self.announces)
            return [msgspec.structs.replace(JOB, checkpoint_at=at)]
        return [JOB] if self.busy else []

    async def drain(self, order: WorkloadOrder) -> None:
        """End the job."""
        self.orders.append((order.key, VirtualClock().monotonic()))
        if self.announces is None:
            self.busy.clear()

    async def evict(self, order: WorkloadOrder) -> None:
        """End every job that announces its checkpoints."""
        if self.announces is not None:
            self.orders.append((f"{order.saga}/evict", VirtualClock().monotonic()))
            self.busy.clear()

    def _workload(self, node: str) -> Any:
        if VirtualClock().monotonic() >= self.leaves_at:
            self.busy.discard(node)
        if self.announces is None or node not in self.busy:
            return super()._workload(node)
        others = (RunningWork(id=f"job {each}") for each in range(self.others))
        return NodeWorkload(drained=False, running=(JOB, *others), total=1 + self.others)


async def requests(bus: MemoryBus) -> list[CheckpointRequested]:
    """Return the published requests for checkpoints."""
    subject = subjects.node_event("p", "n", FACTS[CheckpointRequested])
    found = [decode_stored(each) for each in await bus.read(EVENTS.name, subject)]
    return [each for each in found if isinstance(each, CheckpointRequested)]


@pytest.mark.parametrize(
    ("changes", "checkpoint", "deadline", "expected"),
    [
        # the job leaves by itself: the drain finds an empty node
        ({"leaves_after": 60.0}, 300.0, 3600.0, [("s/checkpoint", 0.0), ("s/drain", 60.0)]),
        # it does not: the drain is ordered after the time, and not later than its own deadline
        ({}, 300.0, 3600.0, [("s/checkpoint", 0.0), ("s/drain", 300.0)]),
        ({}, 300.0, 100.0, [("s/checkpoint", 0.0), ("s/drain", 90.0)]),
        # off
        ({}, 0.0, 3600.0, [("s/drain", 0.0)]),
        # nothing runs, or the system refuses: no wait
        ({"busy": set()}, 300.0, 3600.0, [("s/checkpoint", 0.0), ("s/drain", 0.0)]),
        (
            {"errors": [StepFailure("denied")]},
            *(300.0, 3600.0, [("s/checkpoint", 0.0), ("s/drain", 0.0)]),
        ),
        # the job announces its next checkpoint: the drain waits for it, and then ends the job
        (
            {"announces": 600.0},
            *(300.0, 3600.0, [("s/checkpoint", 0.0), ("s/drain", 600.0), ("s/evict", 600.0)]),
        ),
        (
            {"announces": 60.0},
            *(300.0, 3600.0, [("s/checkpoint", 0.0), ("s/drain", 60.0), ("s/evict", 60.0)]),
        ),
        # another job runs beside it that announces none, so nothing is ended before the deadline
        (
            {"announces": 600.0, "others": 1},
            *(300.0, 3600.0, [("s/checkpoint", 0.0), ("s/drain", 600.0), ("s/evict", 3590.0)]),
        ),
        # the announced time is over, or later than the drain's deadline: it does not count
        (
            {"announces": -5.0},
            *(300.0, 3600.0, [("s/checkpoint", 0.0), ("s/drain", 300.0), ("s/evict", 3590.0)]),
        ),
        (
            {"announces": 4000.0},
            *(300.0, 3600.0, [("s/checkpoint", 0.0), ("s/drain", 300.0), ("s/evict", 3590.0)]),
        ),
        # the system is away for a moment: asked again, within the same time
        (
            {"errors": [ConnectionError("away")]},
            *(300.0, 3600.0, [("s/checkpoint", 0.0), ("s/checkpoint", 5.0), ("s/drain", 300.0)]),
        ),
    ],
)
def test_work_is_asked_and_has_a_bounded_time(
    changes: dict[str, Any], checkpoint: float, deadline: float, expected: list[tuple[str, float]]
) -> None:
    """The drain follows, whatever the workload system answers."""

    async def work(bus: MemoryBus) -> None:
        scheduler = Checkpointing(**{"busy": {"n"}, **changes})
        begun = VirtualClock().monotonic()
        step = command("p", deadline, checkpoint_seconds=checkpoint)
        assert await steps(bus, scheduler).drain(step) == DrainOutputs()
        seen = [(key, at - begun) for key, at in scheduler.orders]
        assert seen == [(key, pytest.approx(at, abs=1.5)) for key, at in expected]

    with_bus(work)


def test_a_replica_that_continues_asks_no_second_time_and_waits_for_the_rest() -> None:
    """The first was killed after 200 s of 300 s."""

    async def work(bus: MemoryBus) -> None:
        scheduler, clock = Checkpointing(busy={"n"}), VirtualClock()
        begun = clock.monotonic()
        step = command("p", 3600.0, checkpoint_seconds=300.0)
        await race(steps(bus, scheduler).drain(step), clock.sleep(200.0))
        again = replace(step, deliveries=2)
        assert await steps(bus, scheduler).drain(again) == DrainOutputs()
        assert [key for key, _ in scheduler.orders] == ["s/checkpoint", "s/drain"]
        assert scheduler.orders[-1][1] - begun == pytest.approx(300.0, abs=1.5)
        (event,) = await requests(bus)
        assert checkpoint_words(event).startswith("asked job 4711 of alice for a checkpoint; ")

    with_bus(work)


def test_a_replica_that_continues_ends_the_job_at_its_checkpoint() -> None:
    """The first was killed after 200 s of 600 s; the time that was announced is in the event."""

    async def work(bus: MemoryBus) -> None:
        scheduler, clock = Checkpointing(busy={"n"}, announces=600.0), VirtualClock()
        begun = clock.monotonic()
        step = command("p", 3600.0, checkpoint_seconds=300.0)
        await race(steps(bus, scheduler).drain(step), clock.sleep(200.0))
        scheduler.announces = 1200.0  # its next checkpoint but one
        await steps(bus, scheduler).drain(replace(step, deliveries=2))
        assert [key for key, _ in scheduler.orders] == ["s/checkpoint", "s/drain", "s/evict"]
        assert scheduler.orders[-1][1] - begun == pytest.approx(600.0, abs=1.5)
        (event,) = await requests(bus)
        said = checkpoint_words(event)
        assert said.startswith("waits for the next checkpoint of job 4711 of alice, until ")

    with_bus(work)


@pytest.mark.parametrize(("lost", "able"), [(True, True), (False, False)])
def test_dead_work_and_unable_systems_are_not_waited_for(lost: bool, able: bool) -> None:
    """The node was lost in the meantime, or the notifier has no such order."""

    async def work(bus: MemoryBus) -> None:
        record = NodeRecord(pool="p", node="n", lost=lost)
        await bus.put(NODES, node_key("p", "n"), msgspec.json.encode(record))
        scheduler = Checkpointing(busy={"n"}) if able else Scheduler()
        begun = VirtualClock().monotonic()
        await steps(bus, scheduler).drain(command("p", 3600.0, checkpoint_seconds=300.0))
        assert VirtualClock().monotonic() - begun < 5.0
        assert await requests(bus) == []

    with_bus(work)
