"""Open drains share questions; a workload system that fails or hangs for one node delays no other.

In virtual time, against workload systems of a few lines each.
"""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from services.notifier.workload.combined_notifier import CombinedNotifier
from services.notifier.workload.drain_watch import POLLS_PER_SECOND_MAX, DrainWatch
from services.notifier.workload.node_name import check_template, node_name
from services.notifier.workload.noop_notifier import NoopNotifier
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    Notifier,
    StepFailure,
    WorkloadAnswer,
    WorkloadOrder,
)
from services.simulator.engine.virtual_time import VirtualClock, run


@dataclass(eq=False)
class Scheduler:
    """A workload system that is asked in batches and reports changes."""

    batches: bool = True
    poll_seconds: float = 60.0
    name: str = "scheduler"
    confirms_drains: bool = True
    busy: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    hanging: set[str] = field(default_factory=set)
    failures: int = 0
    asked: list[tuple[float, tuple[str, ...]]] = field(default_factory=list)
    evicted: list[float] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def cordon(self, order: WorkloadOrder) -> None:
        """Accept the order without effect."""

    async def uncordon(self, order: WorkloadOrder) -> None:
        """Accept the order without effect."""

    async def drain(self, order: WorkloadOrder) -> None:
        """Accept the order without effect."""

    async def evict(self, order: WorkloadOrder) -> None:
        """Accept the order without effect."""

    async def workloads(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadAnswer]:
        """Record the question."""
        names = tuple(each.node for each in nodes)
        self.asked.append((asyncio.get_running_loop().time(), names))
        if self.failures:
            self.failures -= 1
            raise ConnectionError("away")
        if self.hanging & set(names):
            await asyncio.Event().wait()
        return {
            each: StepFailure("not yours") if each in self.refused else self._workload(each)
            for each in names
        }

    def _workload(self, node: str) -> NodeWorkload:
        return NodeWorkload(drained=node not in self.busy, total=int(node in self.busy))

    async def wait_for_change(self) -> None:
        """Wait until a test reports a change."""
        await self.changed.wait()
        self.changed.clear()

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def reference(node: str) -> NodeReference:
    """Return a node of pool p."""
    return NodeReference(pool="p", node=node)


def test_two_hundred_drains_are_one_question_and_a_change_is_asked_about_at_once() -> None:
    """The system gets neither two hundred questions nor waits for the interval of a minute."""

    async def work() -> None:
        names = [f"n{number}" for number in range(200)]
        scheduler = Scheduler(busy=set(names))
        watch = DrainWatch(scheduler, VirtualClock())
        drains = [asyncio.create_task(watch.drained(reference(each))) for each in names]
        await asyncio.sleep(5)
        assert [len(asked) for _, asked in scheduler.asked] == [200]
        scheduler.busy.clear()
        scheduler.changed.set()
        begun = asyncio.get_running_loop().time()
        assert all(each.drained for each in await asyncio.gather(*drains))
        assert asyncio.get_running_loop().time() - begun < 0.2
        assert len(scheduler.asked) == 2
        assert watch.open == 0

    run(work)


def test_a_missed_change_is_seen_at_the_interval_and_nothing_is_asked_afterwards() -> None:
    """The report of changes is a hint; the interval is the guarantee."""

    async def work() -> None:
        scheduler = Scheduler(busy={"a"})
        watch = DrainWatch(scheduler, VirtualClock())
        drain = asyncio.create_task(watch.drained(reference("a")))
        await asyncio.sleep(1)
        scheduler.busy.clear()
        await drain
        assert asyncio.get_running_loop().time() <= 61
        asked = len(scheduler.asked)
        await asyncio.sleep(600)
        assert len(scheduler.asked) == asked

    run(work)


@pytest.mark.parametrize("batches", [True, False])
def test_a_refusal_ends_one_drain_and_an_outage_none(batches: bool) -> None:
    """A refused node fails by itself; after an outage the next question is a second away."""

    async def work() -> None:
        scheduler = Scheduler(batches=batches, poll_seconds=0.5, refused={"b"}, failures=20)
        watch = DrainWatch(scheduler, VirtualClock())
        drains = [asyncio.create_task(watch.drained(reference(each))) for each in ("a", "b")]
        results = await asyncio.gather(*drains, return_exceptions=True)
        assert isinstance(results[0], NodeWorkload)
        assert isinstance(results[1], StepFailure)
        times = [at for at, _ in scheduler.asked]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert max(gaps) <= 1.0

    run(work)


def test_a_system_asked_about_one_node_at_a_time_may_hang_for_one() -> None:
    """The drains of the other nodes go on."""

    async def work() -> None:
        scheduler = Scheduler(batches=False, poll_seconds=0.5, hanging={"a"})
        watch = DrainWatch(scheduler, VirtualClock())
        hanging = asyncio.create_task(watch.drained(reference("a")))
        await asyncio.sleep(0)
        await watch.drained(reference("b"))
        assert asyncio.get_running_loop().time() < 1
        hanging.cancel()
        await asyncio.wait([hanging])
        assert watch.open == 0

    run(work)


def test_a_thousand_drains_asked_one_by_one_share_a_bounded_rate() -> None:
    """The bound lets cordons through, and keeps the workload system from being flooded."""

    async def work() -> None:
        names = {f"n{number}" for number in range(1000)}
        scheduler = Scheduler(batches=False, poll_seconds=0.5, busy=names)
        watch = DrainWatch(scheduler, VirtualClock())
        drains = [asyncio.create_task(watch.drained(reference(each))) for each in names]
        await asyncio.sleep(10)
        before = len(scheduler.asked)
        await asyncio.sleep(10)
        assert (len(scheduler.asked) - before) / 10 <= POLLS_PER_SECOND_MAX
        for each in drains:
            each.cancel()
        await asyncio.wait(drains)

    run(work)


def test_a_node_of_two_systems_is_drained_when_both_say_so() -> None:
    """Work that runs in either system is reported.

    A system that confirms nothing leaves nothing confirmed.
    """

    async def work() -> None:
        first, second = Scheduler(), Scheduler(busy={"a"})
        both = CombinedNotifier([first, second])
        answer = (await both.workloads([reference("a")]))["a"]
        assert isinstance(answer, NodeWorkload)
        assert (answer.drained, answer.total) == (False, 1)
        second.refused = {"a"}
        assert isinstance((await both.workloads([reference("a")]))["a"], StepFailure)
        noop = NoopNotifier(options=NoopNotifier.Options(), clock=VirtualClock())
        assert CombinedNotifier([first, noop]).confirms_drains is False
        assert isinstance(both, Notifier)

    run(work)


def test_of_two_systems_the_one_that_answers_is_reported_while_the_other_is_away() -> None:
    """The drain waits for both systems: the one that is away may have work."""

    async def work() -> None:
        first, second = Scheduler(busy={"a"}), Scheduler(failures=2, poll_seconds=1.0)
        watch = DrainWatch(CombinedNotifier([first, second]), VirtualClock())
        seen: list[int] = []
        drain = asyncio.create_task(
            watch.drained(reference("a"), lambda answer: seen.append(answer.total))
        )
        await VirtualClock().sleep(0.1)
        first.busy.clear()
        await VirtualClock().sleep(0.3)
        assert (seen, drain.done()) == ([1], False)
        await drain
        assert seen == [1, 0]
        second.failures = first.failures = 1
        with pytest.raises(ConnectionError):
            await CombinedNotifier([first, second]).workloads([reference("a")])

    run(work)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{hostname}", "gpu-7.example"),
        ("{node}", "train-7"),
        ("gpu-{label.slot}", "gpu-a1"),
        ("{label.missing}", "train-7"),
        ("{provider_id}.{pool}", "i-1.train"),
    ],
)
def test_the_name_in_the_workload_system_follows_a_template(template: str, expected: str) -> None:
    """Hostname, label, or a text of several parts."""
    found = NodeReference(
        pool="train",
        node="train-7",
        hostname="gpu-7.example",
        provider_id="i-1",
        labels={"slot": "a1"},
    )
    check_template(template)
    assert node_name(template, found) == expected


@pytest.mark.parametrize("template", ["", "gpu", "{host}", "{node", "{label.}", "{0}", "{node!r}"])
def test_a_template_that_names_no_node_is_refused(template: str) -> None:
    """Every node would have the same name, or none."""
    with pytest.raises(ValueError, match="write a template of"):
        check_template(template)
