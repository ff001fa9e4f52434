"""Tests the contract of a notifier, one test for each rule.

docs/write-a-notifier.md shows its use.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, Protocol, TypeVar, runtime_checkable

import pytest

from services.notifier.workload.drain_watch import DrainWatch
from services.notifier.workload.workload_notifier import (
    CheckpointingNotifier,
    GpuCordoningNotifier,
    GpuReference,
    NodeReference,
    NodeWorkload,
    Notifier,
    OwnerNotifier,
    WorkloadAnswer,
    WorkloadOrder,
)
from services.primitives.clock import SystemClock

T = TypeVar("T")

CALL_SECONDS_MAX: Final = 30.0
CANCEL_SECONDS_MAX: Final = 5.0
SEEN_SECONDS_MAX: Final = 10.0
SEEN_AGAIN_SECONDS: Final = 0.05
LATE_QUESTIONS: Final = 5
NODES_MAX: Final = 20
GARBAGE: Final[Mapping[str, bytes]] = {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "cut": b'{"drained": tru',
    "wrong-types": b'{"drained": "yes", "nodes": {"n1": {"drained": 1}}, "items": 3, "result": 1}',
    "not-text": b"\xff\x00\x80" * 1000,
    "deep": b"[" * 100_000,
    "long": b" " * 3_000_000,
}
"""What a broken workload system, or a proxy in front of it, may answer."""


class WorkloadSite(Protocol):
    """A workload system that the tests drive; it knows the nodes n1 to n20 of pool `training`."""

    reversible: bool
    """Whether an uncordon ends a cordon; False: the system has no such thing."""

    def make(self) -> Notifier:
        """Make a notifier, as a replica does; its calls time out within a few seconds."""

    def place(self, node: str) -> None:
        """Have work on a node."""

    def leave(self, node: str) -> None:
        """End the work on a node."""

    def is_cordoned(self, node: str) -> bool:
        """Return whether nothing new is placed on a node."""

    def cordon_by_another(self, node: str) -> bool:
        """Cordon a node as an administrator does; False: this system does not know by whom."""

    def asked(self, node: str) -> int:
        """Return how many requests for a checkpoint, of different keys, the work on a node got."""

    def announce(self, node: str, at: datetime) -> bool:
        """Have the work on a node announce its next checkpoint; False: it has no way to."""

    def answer(
        self, mode: Literal["well", "never", "with-failures"], garbage: bytes | None = None
    ) -> None:
        """Set how the workload system answers from now on; `garbage` in place of any answer."""


@runtime_checkable
class GpuSite(Protocol):
    """Declares what a site has besides where it can keep work off single GPUs.

    The GPU with the index 3 of node n1 has the UUID `GPU-n1-3`, and the others likewise.
    """

    def cordoned_gpus(self, node: str) -> set[int]:
        """The indices of those on which nothing new is placed."""


def reference(node: str, *, gone: bool = False) -> NodeReference:
    """Return a node of pool `training`."""
    return NodeReference(pool="training", node=node, hostname=node, gone=gone)


def order(node: str, step: str, *gpus: int, gone: bool = False) -> WorkloadOrder:
    """Return one step of a replacement, or one about GPUs."""
    return WorkloadOrder(
        node=reference(node, gone=gone),
        reason="xid-79 on GPU 3",
        key=f"replace-{node}-1/{step}",
        deadline=datetime.now(UTC) + timedelta(hours=1),
        gpus=tuple(GpuReference(index=each, uuid=f"GPU-{node}-{each}") for each in gpus),
    )


class NotifierConformance:
    """Inherit, name the class `Test…`, and write the fixture `site`."""

    @pytest.fixture
    def site(self) -> WorkloadSite:
        """Return the site under test; a suite overrides this fixture."""
        raise NotImplementedError("write the fixture `site`")

    async def test_it_says_what_it_is(self, site: WorkloadSite) -> None:
        """A name, an interval, and a close that may be repeated."""
        notifier = site.make()
        assert isinstance(notifier, Notifier)
        assert notifier.name
        assert notifier.poll_seconds > 0
        await notifier.close()
        await notifier.close()

    async def test_an_order_that_is_repeated_changes_nothing(self, site: WorkloadSite) -> None:
        """A replica that was killed repeats it, and so does the next replica."""
        site.place("n1")
        async with _closing(site.make(), site.make()) as both:
            for each in (*both, *both):
                await _bounded(each.cordon(order("n1", "cordon")))
                assert _cordoned(site, each, "n1")
            for each in (*both, *both):
                await _bounded(each.drain(order("n1", "drain")))
                assert _cordoned(site, each, "n1")
            if site.reversible:
                for each in (*both, *both):
                    await _bounded(each.uncordon(order("n1", "uncordon")))
                    assert not site.is_cordoned("n1")

    async def test_what_another_cordoned_stays_cordoned(self, site: WorkloadSite) -> None:
        """An administrator's cordon outlasts Navarch's."""
        if not site.cordon_by_another("n1"):
            pytest.skip("the workload system does not know who cordoned a node")
        async with _closing(site.make()) as [notifier]:
            await _bounded(notifier.uncordon(order("n1", "uncordon")))
            assert site.is_cordoned("n1")
            await _bounded(notifier.cordon(order("n1", "cordon")))
            await _bounded(notifier.uncordon(order("n1", "uncordon")))
            assert site.is_cordoned("n1")

    async def test_a_node_is_drained_when_its_work_has_left(self, site: WorkloadSite) -> None:
        """Not before the drain, not while work is there, also when another replica asks."""
        async with _closing(site.make(), site.make()) as [notifier, other]:
            if not notifier.confirms_drains:
                assert not await _drained(notifier, "n1")
                pytest.skip("it confirms no drains")
            site.place("n1")
            assert not await _drained(notifier, "n1")
            await _bounded(notifier.drain(order("n1", "drain")))
            assert not await _drained(notifier, "n1")
            assert not await _drained(other, "n1")
            site.leave("n1")
            await _until_drained(notifier, "n1")
            await _until_drained(other, "n1")

    async def test_work_is_asked_for_a_checkpoint_once_and_not_ended(
        self, site: WorkloadSite
    ) -> None:
        """A request that is repeated asks no second time; no other node's work is asked."""
        async with _closing(site.make()) as [notifier]:
            if not isinstance(notifier, CheckpointingNotifier):
                pytest.skip("it asks for no checkpoints")
            site.place("n1")
            await _bounded(notifier.cordon(order("n1", "cordon")))
            request = order("n1", "checkpoint")
            assert await _bounded(notifier.checkpoint(request))
            await _bounded(notifier.checkpoint(request))
            assert [site.asked("n1"), site.asked("n2")] == [1, 0]
            assert not await _drained(notifier, "n1")
            await _bounded(notifier.drain(order("n1", "drain")))
            assert not await _drained(notifier, "n1")
            assert _cordoned(site, notifier, "n1")

    async def test_an_announced_checkpoint_is_reported(self, site: WorkloadSite) -> None:
        """The drain waits for it, and then ends the work; other work announces none."""
        at = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=30)
        async with _closing(site.make()) as [notifier]:
            if not isinstance(notifier, CheckpointingNotifier):
                pytest.skip("it asks for no checkpoints")
            site.place("n1")
            site.place("n2")
            if not site.announce("n1", at):
                pytest.skip("work cannot announce a checkpoint")
            for node, expected in (("n1", at), ("n2", None)):
                (work,) = await _bounded(notifier.checkpoint(order(node, "checkpoint")))
                assert work.checkpoint_at == expected

    async def test_notifying_owners_ends_nothing(self, site: WorkloadSite) -> None:
        """Work goes on, the node takes as much new work as before, and no owner is named twice."""
        async with _closing(site.make()) as [notifier]:
            if not isinstance(notifier, OwnerNotifier) or not notifier.notifies_owners:
                pytest.skip("it sends owners no messages")
            site.place("n1")
            notices = await _bounded(notifier.notify_owners(order("n1", "drain")))
            owners = [each.owner for each in notices]
            assert len(set(owners)) == len(owners)
            assert not [each.failure for each in notices if each.failure]
            assert not site.is_cordoned("n1")
            assert not await _drained(notifier, "n1")
            gone = order("never-was", "drain", gone=True)
            await _bounded(notifier.notify_owners(gone))

    async def test_single_gpus_get_no_new_work(self, site: WorkloadSite) -> None:
        """Each order names all of them, is repeated, and neither ends nor makes a node's cordon."""
        async with _closing(site.make(), site.make()) as both:
            if not isinstance(both[0], GpuCordoningNotifier) or not isinstance(site, GpuSite):
                pytest.skip("it cordons no single GPUs")
            site.place("n1")
            for gpus in ((3,), (3, 5), (5,), ()):
                for each in both:
                    assert isinstance(each, GpuCordoningNotifier)
                    await _bounded(each.cordon_gpus(order("n1", "cordon_gpus", *gpus)))
                    assert site.cordoned_gpus("n1") == set(gpus)
                    assert site.cordoned_gpus("n2") == set()
                    assert not site.is_cordoned("n1")
            await _bounded(both[0].cordon_gpus(order("n1", "cordon_gpus", 3)))
            await _bounded(both[0].cordon(order("n1", "cordon")))
            await _bounded(both[0].uncordon(order("n1", "uncordon")))
            assert site.cordoned_gpus("n1") == {3}

    async def test_work_that_leaves_late_or_comes_back_is_seen(self, site: WorkloadSite) -> None:
        """Drained is what the workload system says now, not what it once said."""
        async with _closing(site.make()) as [notifier]:
            if not notifier.confirms_drains:
                pytest.skip("it confirms no drains")
            site.place("n1")
            await _bounded(notifier.drain(order("n1", "drain")))
            for _ in range(LATE_QUESTIONS):
                assert not await _drained(notifier, "n1")
            site.leave("n1")
            await _until_drained(notifier, "n1")
            if site.reversible:  # else a drained node has left, and has no work again
                site.place("n1")
                await _until_busy(notifier, "n1")

    async def test_many_nodes_are_asked_about_at_once(self, site: WorkloadSite) -> None:
        """Each is answered for itself, and no other node is."""
        names = [f"n{each + 1}" for each in range(NODES_MAX)]
        async with _closing(site.make()) as [notifier]:
            for each in names:
                site.place(each)
            answers = await _bounded(notifier.workloads([reference(each) for each in names]))
            expected = set(names) if notifier.confirms_drains else set()
            assert set(answers) == expected
            assert not any(_is_drained(each) for each in answers.values())

    @pytest.mark.parametrize("mode", ["never", "with-failures"])
    async def test_an_outage_drains_nothing_and_ends(
        self, site: WorkloadSite, mode: Literal["never", "with-failures"]
    ) -> None:
        """While the workload system is away no node is drained; when it is back, orders pass."""
        async with _closing(site.make()) as [notifier]:
            site.place("n1")
            await _bounded(notifier.drain(order("n1", "drain")))
            site.answer(mode)
            assert not await _drained(notifier, "n1")
            site.answer("well")
            assert not await _drained(notifier, "n1")
            await _bounded(notifier.drain(order("n1", "drain")))
            assert _cordoned(site, notifier, "n1")

    @pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
    async def test_garbage_drains_nothing(self, site: WorkloadSite, garbage: bytes) -> None:
        """An answer that is none is no reason to terminate a node."""
        async with _closing(site.make()) as [notifier]:
            site.place("n1")
            await _bounded(notifier.drain(order("n1", "drain")))
            site.answer("well", garbage)
            assert not await _drained(notifier, "n1")

    @pytest.mark.parametrize(
        "step",
        ["cordon", "cordon_gpus", "checkpoint", "notify_owners", "drain", "uncordon", "evict"],
    )
    async def test_an_order_can_be_cancelled_and_repeated(
        self, site: WorkloadSite, step: str
    ) -> None:
        """The step's deadline cancels it while the workload system is silent."""
        async with _closing(site.make()) as [notifier]:
            if not hasattr(notifier, step):
                pytest.skip(f"it has no {step}")
            gpus = (3,) if step == "cordon_gpus" else ()
            site.place("n1")
            site.answer("never")
            call = asyncio.create_task(getattr(notifier, step)(order("n1", step, *gpus)))
            await asyncio.sleep(0.05)
            call.cancel()
            done, _ = await asyncio.wait([call], timeout=CANCEL_SECONDS_MAX)
            await asyncio.gather(*done, return_exceptions=True)
            assert done, f"{step} did not end within {CANCEL_SECONDS_MAX:g} s after its deadline"
            site.answer("well")
            if step != "uncordon" or site.reversible:
                await _bounded(getattr(notifier, step)(order("n1", step, *gpus)))

    async def test_orders_about_a_machine_that_is_gone_succeed(self, site: WorkloadSite) -> None:
        """Orders succeed about a machine that the workload system no longer knows, or never did."""
        async with _closing(site.make()) as [notifier]:
            await _bounded(notifier.cordon(order("never-was", "cordon", gone=True)))
            await _bounded(notifier.drain(order("never-was", "drain", gone=True)))
            await _bounded(notifier.evict(order("never-was", "evict", gone=True)))


def _cordoned(site: WorkloadSite, notifier: Notifier, node: str) -> bool:
    return site.is_cordoned(node) or not notifier.confirms_drains


async def _drained(notifier: Notifier, node: str) -> bool:
    """What it reports of a node; an error is no report."""
    try:
        answers = await _bounded(notifier.workloads([reference(node)]))
    except AssertionError:
        raise
    except Exception:  # noqa: BLE001 - any error keeps the drain waiting or fails it
        return False
    return _is_drained(answers.get(node))


async def _until_busy(notifier: Notifier, node: str) -> None:
    """It may be reported a moment late, too."""
    async with asyncio.timeout(SEEN_SECONDS_MAX):
        while await _drained(notifier, node):  # noqa: ASYNC110 - nothing else reports it
            await asyncio.sleep(SEEN_AGAIN_SECONDS)


async def _until_drained(notifier: Notifier, node: str) -> None:
    """It may be reported a moment late, by a system that is watched."""
    async with asyncio.timeout(SEEN_SECONDS_MAX):
        await DrainWatch(notifier, SystemClock()).drained(reference(node))


def _is_drained(answer: WorkloadAnswer | None) -> bool:
    return isinstance(answer, NodeWorkload) and answer.drained


async def _bounded(work: Awaitable[T]) -> T:
    """The result; a call that hangs fails the test."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait([task], timeout=CALL_SECONDS_MAX)
    if not done:
        task.cancel()
        raise AssertionError(f"no answer within {CALL_SECONDS_MAX:g} s, and no error")
    return task.result()


@asynccontextmanager
async def _closing(*notifiers: Notifier) -> AsyncIterator[Sequence[Notifier]]:
    try:
        yield notifiers
    finally:
        for each in notifiers:
            await each.close()
