"""Asks the work on a node for a checkpoint before its drain, and lets it leave by itself a while.

It is asked once for each saga: a replica that continues a drain finds in EVENTS what was asked and
until when, and waits for what is left of that time.
"""

import logging
from datetime import datetime
from typing import Final

import msgspec

from schemas.node_events import CheckpointRequested
from services.bus.port import Bus
from services.notifier.last_event import last_event
from services.notifier.work_report import WorkReport, listed_work
from services.notifier.workload.drain_watch import DrainWatch
from services.notifier.workload.workload_notifier import (
    CheckpointingNotifier,
    Notifier,
    RunningWork,
    StepFailure,
    WorkloadOrder,
)
from services.primitives.clock import Clock
from services.primitives.race import race
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
"""Between two tries to reach the workload system."""


async def await_checkpoint(
    bus: Bus,
    clock: Clock,
    notifier: Notifier,
    watch: DrainWatch,
    report: WorkReport,
    order: WorkloadOrder,
    *,
    repeated: bool,
) -> None:
    """Ask, then return when no work is left or at `order.deadline`, whichever is first.

    The drain goes on whatever happens here, and every reason why nothing was asked is logged.
    `repeated`: an earlier delivery of the step may have asked.
    """
    assert order.deadline is not None
    about = {"node": order.node.node, "key": order.key}
    if order.node.lost or order.node.gone:
        log.info("no checkpoint is requested: the node is lost, and its work with it", extra=about)
        return
    if not isinstance(notifier, CheckpointingNotifier):
        log.warning(
            "no checkpoint is requested: the notifier %s cannot; the drain goes on",
            notifier.name,
            extra=about,
        )
        return
    asked = await _read_request(bus, order) if repeated else None
    if asked is None:
        left = (order.deadline - clock.now()).total_seconds()
        (asking,) = await race(_ask(notifier, clock, order), seconds_max=left)
        work = asking.result() if not asking.cancelled() else ()
        if not work:
            log.info("no work was asked for a checkpoint; the drain goes on", extra=about)
            return
        asked = checkpoint_requested(order, order.deadline, work, clock.now())
        await publish_event(bus, asked)
    left = (min(asked.until, order.deadline) - clock.now()).total_seconds()
    drained, _ = await race(
        watch.drained(order.node, report.update, saga=order.saga),
        report.run(),
        seconds_max=max(left, 0.0),
    )
    if not drained.cancelled():
        drained.result()


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


def checkpoint_requested(
    order: WorkloadOrder, until: datetime, work: tuple[RunningWork, ...], now: datetime
) -> CheckpointRequested:
    """The event. Pure."""
    return CheckpointRequested(
        id=f"checkpoint-{order.saga}",
        pool=order.node.pool,
        node=order.node.node,
        time=now,
        saga=order.saga,
        work=listed_work(work),
        total=len(work),
        until=until,
    )


def checkpoint_order(order: WorkloadOrder, until: datetime) -> WorkloadOrder:
    """The request that precedes a drain, of which the work's own end is no later than the drain's.

    Pure.
    """
    latest = until if order.deadline is None else min(until, order.deadline)
    return msgspec.structs.replace(order, key=f"{order.saga}/checkpoint", deadline=latest)
