"""Asks work for a checkpoint before a drain, and takes callbacks of workload systems during it.

Work that announces when its next checkpoint is written has until then, within the drain's deadline.
It is asked once for each saga: a replica that continues a drain finds in EVENTS what was asked and
until when, and waits for what is left of that time.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas import subjects
from schemas.messages import decoder, encode
from schemas.node_events import FACTS, CheckpointRequested, WorkLeft
from schemas.node_records import NodeRecord, node_key
from schemas.permissions import WORK_DONE
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, NODES
from schemas.work_done import WorkDone, WorkDoneAccepted
from services.bus.bucket_mirror import readable
from services.bus.port import Bus, Endpoint, Headers
from services.bus.protocol.endpoint_replies import requester
from services.notifier.work_report import WorkReport, last_event, listed_work
from services.notifier.workload.drain_watch import DrainWatch
from services.notifier.workload.workload_notifier import (
    RUNNING_MAX,
    CheckpointingNotifier,
    NodeWorkload,
    Notifier,
    RunningWork,
    StepFailure,
    WorkloadOrder,
)
from services.primitives.clock import Clock
from services.primitives.errors import BusError
from services.primitives.race import race
from services.runtime.event_publisher import publish_event
from services.saga.saga_log import read_state
from services.saga.saga_state import SagaState

FOLLOW_AGAIN_SECONDS: Final = 1.0
"""Between two tries to read whether an earlier replica's drain was called back."""

_nodes = decoder(NodeRecord)
log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
"""Between two tries to reach the workload system."""
ANNOUNCED_SECONDS_MAX: Final = 86_400.0
"""How far off an announced checkpoint may be where the drain has no deadline."""


class NotDrainingError(ValueError):
    """The callback is about no drain that waits."""


class DrainCallbacks:
    """The callbacks that the drains of one replica wait for.

    A callback ends no drain by itself: the replica that waits asks its notifier at once, which is
    given `called_back` with the node. One about another saga or node, or too late, is refused.
    """

    def __init__(self, bus: Bus, clock: Clock, watches: Collection[DrainWatch]) -> None:
        """`watches`: the replica's open drains."""
        self._bus = bus
        self._clock = clock
        self._watches = watches

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints, by their subjects."""
        return {subjects.order_wildcard(WORK_DONE): self._answer}

    async def run(self) -> None:
        """Hand every accepted callback, of any replica, to the drain that waits for it."""
        callbacks = subjects.node_event_wildcard(FACTS[WorkLeft])
        async for stored in self._bus.follow(EVENTS.name, [callbacks], "new"):
            event = decode_stored(stored)
            if isinstance(event, WorkLeft):
                self._call_back(event.saga)

    async def recall(self, order: WorkloadOrder) -> None:
        """Hand over a callback that came before this drain began to wait; never returns."""
        while True:
            try:
                if await self._was_called_back(order.node.pool, order.node.node, order.saga):
                    self._call_back(order.saga)
            except BusError as error:
                log.warning("callbacks are not read; trying again", extra={"reason": str(error)})
                await self._clock.sleep(FOLLOW_AGAIN_SECONDS)
            else:
                await asyncio.Event().wait()

    def _call_back(self, saga: str) -> None:
        for each in self._watches:
            each.call_back(saga)

    async def _answer(self, data: bytes, headers: Headers) -> bytes:
        asked = msgspec.json.decode(data, type=WorkDone)
        by = requester(headers, asked.by)
        saga = asked.saga or await self._saga_of(asked.node)
        state = await read_state(self._bus, saga) if saga else None
        if state is None or state.params.node != asked.node:
            raise NotDrainingError(
                f"{saga or 'no saga'} drains {asked.node}: nothing was changed; "
                f"see navarch get {asked.node}"
            )
        pool = state.params.pool
        if not await self._was_called_back(pool, asked.node, saga):
            if not is_draining(state):
                raise NotDrainingError(
                    f"{saga} does not wait for work on {asked.node} (now): nothing was changed; "
                    f"see navarch saga show {saga}"
                )
            event = WorkLeft(
                id=f"work-left-{saga}",
                pool=pool,
                node=asked.node,
                time=self._clock.now(),
                saga=saga,
                by=by,
            )
            await publish_event(self._bus, event)
            log.info("work has left a node", extra={"node": asked.node, "saga": saga, "by": by})
        return encode(WorkDoneAccepted(pool=pool, node=asked.node, saga=saga))

    async def _saga_of(self, node: str) -> str:
        """The saga that works on a node; empty: none does."""
        entries = await self._bus.entries(NODES, node_key("*", node))
        return next((each.saga for _, each in readable(entries, _nodes) if each.saga), "")

    async def _was_called_back(self, pool: str, node: str, saga: str) -> bool:
        event = await last_event(self._bus, WorkLeft, pool, node)
        return event is not None and event.saga == saga


def is_draining(state: SagaState) -> bool:
    """Return whether a saga has asked the work on its node to leave, and waits for it. Pure."""
    status = state.step("drain").status
    asked = state.step("vacate").status in ("started", "succeeded")
    return state.status == "running" and (status == "started" or (status == "pending" and asked))


async def await_checkpoint(
    bus: Bus,
    clock: Clock,
    notifier: Notifier,
    watch: DrainWatch,
    report: WorkReport,
    order: WorkloadOrder,
    *,
    drain_by: datetime | None,
    repeated: bool,
) -> bool:
    """Ask, then return when no work is left or its time is over, whichever is first.

    Its time is `order.deadline`, or the checkpoint that it announces for a time before `drain_by`.
    True: all that is left has announced its checkpoint, and may be ended. The drain goes on
    whatever happens here, and every reason why nothing was asked is logged. `repeated`: an earlier
    delivery of the step may have asked.
    """
    assert order.deadline is not None
    about = {"node": order.node.node, "key": order.key}
    if order.node.lost or order.node.gone:
        log.info("no checkpoint is requested: the node is lost, and its work with it", extra=about)
        return False
    if not isinstance(notifier, CheckpointingNotifier):
        log.warning(
            "no checkpoint is requested: the notifier %s cannot; the drain goes on",
            notifier.name,
            extra=about,
        )
        return False
    asked = await _read_request(bus, order) if repeated else None
    if asked is None:
        left = (order.deadline - clock.now()).total_seconds()
        (asking,) = await race(_ask(notifier, clock, order), seconds_max=left)
        work = asking.result() if not asking.cancelled() else ()
        if not work:
            log.info("no work was asked for a checkpoint; the drain goes on", extra=about)
            return False
        now = clock.now()
        latest = drain_by or now + timedelta(seconds=ANNOUNCED_SECONDS_MAX)
        work = timely_announcements(work, now, latest)
        until = wait_until(work, order.deadline)
        asked = checkpoint_requested(order, until, work, now)
        await publish_event(bus, asked)
    left = (min(asked.until, drain_by or asked.until) - clock.now()).total_seconds()
    drained, _ = await race(
        watch.drained(order.node, report.update, saga=order.saga),
        report.run(),
        seconds_max=max(left, 0.0),
    )
    if not drained.cancelled():
        drained.result()
        return False
    if not any(each.checkpoint_at for each in asked.work):
        return False
    answer = (await notifier.workloads([order.node])).get(order.node.node)
    return isinstance(answer, NodeWorkload) and is_saved(asked, answer)


async def _ask(
    notifier: CheckpointingNotifier, clock: Clock, order: WorkloadOrder
) -> tuple[RunningWork, ...]:
    """Ask until the workload system answers; empty: it cannot."""
    while True:
        try:
            return tuple(await notifier.checkpoint(order))
        except StepFailure as failure:
            log.warning("no checkpoint is requested: %s", failure, extra={"node": order.node.node})
            return ()
        except Exception as error:  # noqa: BLE001 - a notifier may be a third party's code
            log.warning(
                "the workload system was not asked for a checkpoint; trying again",
                extra={
                    "node": order.node.node,
                    "reason": str(error) or type(error).__name__,
                },
            )
            await clock.sleep(RETRY_SECONDS)


async def _read_request(bus: Bus, order: WorkloadOrder) -> CheckpointRequested | None:
    """What this saga has asked before."""
    asked = await last_event(bus, CheckpointRequested, order.node.pool, order.node.node)
    return asked if asked is not None and asked.saga == order.saga else None


def timely_announcements(
    work: Sequence[RunningWork], now: datetime, latest: datetime
) -> tuple[RunningWork, ...]:
    """The work, without announcements of checkpoints that are over or come too late. Pure."""
    return tuple(
        each
        if each.checkpoint_at is None or now <= each.checkpoint_at <= latest
        else msgspec.structs.replace(each, checkpoint_at=None)
        for each in work
    )


def wait_until(work: Sequence[RunningWork], deadline: datetime) -> datetime:
    """The last announced checkpoint; not before `deadline` where any work announces none. Pure."""
    announced = [each.checkpoint_at for each in work if each.checkpoint_at is not None]
    if len(announced) < len(work):
        announced.append(deadline)
    return max(announced)


def is_saved(asked: CheckpointRequested, left: NodeWorkload) -> bool:
    """Return whether all work that is left had announced its checkpoint. Pure."""
    announced = {each.id for each in asked.work if each.checkpoint_at is not None}
    names = {each.id for each in listed_work(left.running, RUNNING_MAX)}
    return names <= announced and left.total == len(left.running) > 0


def checkpoint_requested(
    order: WorkloadOrder, until: datetime, work: tuple[RunningWork, ...], now: datetime
) -> CheckpointRequested:
    """Return the event about what a drain waits for. Pure."""
    return CheckpointRequested(
        id=f"checkpoint-{order.saga}",
        pool=order.node.pool,
        node=order.node.node,
        time=now,
        saga=order.saga,
        work=listed_work(work, RUNNING_MAX),
        total=len(work),
        until=until,
    )


def checkpoint_order(order: WorkloadOrder, until: datetime) -> WorkloadOrder:
    """The request that precedes a drain, of which the work's own end is no later than the drain's.

    Pure.
    """
    latest = until if order.deadline is None else min(until, order.deadline)
    return msgspec.structs.replace(order, key=f"{order.saga}/checkpoint", deadline=latest)
