"""Waits for drains: asks about all of them at once, on a change and at an interval."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    Notifier,
    PartlyAnsweredError,
    StepFailure,
    WorkloadAnswer,
)
from services.primitives.clock import Clock
from services.primitives.race import race

log = logging.getLogger(__name__)

GAP_SECONDS: Final = 0.1
"""Least time between two questions, however often the workload system reports changes."""
FAILED_SECONDS_MAX: Final = 1.0
"""Longest wait after a question that failed, unless the interval is longer: a saga continues soon
after an outage of the workload system."""
POLLS_PER_SECOND_MAX: Final = 500.0
"""Of one process, in a system that is asked about each node by itself. Beyond 250 concurrent drains
each is polled less often, which leaves capacity for cordons and protects the workload system."""


Workloads = Mapping[str, WorkloadAnswer]
Observe = Callable[[Awaitable[Workloads]], Awaitable[Workloads]]
"""Awaits a question, and notes whether it was answered."""


def _unobserved(question: Awaitable[Workloads]) -> Awaitable[Workloads]:
    """For a caller that need not know."""
    return question


def _ignore(_: NodeWorkload) -> None:
    """For a caller that needs no progress."""


@dataclass(slots=True, eq=False)
class _Drain:
    reference: NodeReference
    update: Callable[[NodeWorkload], None]
    saga: str
    over: asyncio.Future[NodeWorkload] = field(default_factory=asyncio.Future)


class DrainWatch:
    """Watches the open drains of this process in one workload system."""

    def __init__(self, notifier: Notifier, clock: Clock, observe: Observe = _unobserved) -> None:
        self._observe = observe
        self._notifier = notifier
        self._clock = clock
        self._all = _Questions(self)
        self._open: dict[_Drain, _Questions] = {}

    @property
    def open(self) -> int:
        """Number of open drains."""
        return len(self._open)

    async def drained(
        self,
        reference: NodeReference,
        update: Callable[[NodeWorkload], None] = _ignore,
        *,
        saga: str = "",
    ) -> NodeWorkload:
        """Return when the workload system says that no work is left; StepFailure if it cannot.

        `update` is called with each answer before that; `saga` is named by a callback.
        """
        questions = self._all if self._notifier.batches else _Questions(self)
        drain = _Drain(reference, update, saga)
        self._open[drain] = questions
        try:
            return await questions.drained(drain)
        finally:
            del self._open[drain]

    def call_back(self, saga: str) -> None:
        """The workload system says that the work which a saga's drain waits for has left: ask."""
        for drain, questions in self._open.items():
            if drain.saga == saga:
                drain.reference = msgspec.structs.replace(drain.reference, called_back=True)
                questions.ask_now()

    async def wait(self, new: asyncio.Event, failures: int) -> None:
        """Wait until it is worth asking again."""
        seconds = self._notifier.poll_seconds
        if not self._notifier.batches:
            seconds = max(seconds, self.open / POLLS_PER_SECOND_MAX)
        if failures:
            seconds = min(seconds * 2 ** min(failures, 8), max(FAILED_SECONDS_MAX, seconds))
            await race(new.wait(), self._clock.sleep(seconds))
            return
        await self._clock.sleep(GAP_SECONDS)
        await race(
            new.wait(),
            self._notifier.wait_for_change(),
            self._clock.sleep(seconds - GAP_SECONDS),
        )

    async def ask(self, drains: Sequence[_Drain]) -> None:
        """Ask once about some drains, and end those that are over."""
        nodes = {each.reference.node: each.reference for each in drains}
        try:
            answers = await self._observe(self._notifier.workloads(list(nodes.values())))
        except StepFailure as failure:
            answers = dict.fromkeys(nodes, failure)
        except PartlyAnsweredError as error:
            for each in drains:
                partly = error.answers.get(each.reference.node)
                if isinstance(partly, NodeWorkload):
                    each.update(partly)
            raise
        for each in drains:
            answer = answers.get(each.reference.node)
            if each.over.done():
                continue
            if isinstance(answer, StepFailure):
                each.over.set_exception(answer)
            elif answer is not None and answer.drained:
                each.over.set_result(answer)
            elif answer is not None:
                each.update(answer)


class _Questions:
    """Asks about some of a watch's drains, as long as one of them is open."""

    def __init__(self, watch: DrainWatch) -> None:
        self._watch = watch
        self._open: dict[_Drain, None] = {}
        self._new = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None

    def ask_now(self) -> None:
        self._new.set()

    async def drained(self, drain: _Drain) -> NodeWorkload:
        self._open[drain] = None
        self._new.set()
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_while_open())
        try:
            return await drain.over
        finally:
            del self._open[drain]
            if not self._open:
                self._asking.cancel()
                self._asking = None  # its end takes a moment, in which another drain may begin

    async def _ask_while_open(self) -> None:
        asked: set[_Drain] = set()
        failures = 0
        while True:
            new = [each for each in self._open if each not in asked]
            asked = set(self._open)
            self._new.clear()
            try:
                await self._watch.ask(new or list(self._open))
                failures = 0
            except Exception as error:  # noqa: BLE001 - a notifier may be a third party's code
                failures += 1
                if failures == 1:
                    log.warning(
                        "the workload system does not say what runs; asking again",
                        extra={"nodes": len(asked), "reason": str(error) or type(error).__name__},
                    )
            await self._watch.wait(self._new, failures)
