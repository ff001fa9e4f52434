"""Notifies the owners of work of a drain that will end it: once, beside the drain.

An event is the claim: it is published before the first message, and a replica that continues the
drain finds it and sends nothing. A replica that is killed in between leaves owners without a
message, and none with two.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from schemas.node_events import OwnerNoticeFailed, OwnersNotified
from schemas.value_limits import NAME_CHARS_MAX
from services.bus.port import Bus
from services.notifier.work_report import last_event, listed_work
from services.notifier.workload.combined_notifier import CombinedNotifier
from services.notifier.workload.workload_notifier import (
    RUNNING_MAX,
    NodeWorkload,
    Notifier,
    OwnerNotice,
    OwnerNotifier,
    WorkloadOrder,
)
from services.primitives.clock import Clock
from services.primitives.errors import BusError
from services.primitives.race import race
from services.primitives.redaction import redacted
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

ASK_AGAIN_SECONDS: Final = 5.0
"""Between two tries to read whose work is on the node, and to publish an event."""
SEND_SECONDS_MAX: Final = 60.0
"""For all messages about one node; those that are not sent by then have failed."""
FAILURES_MAX: Final = 20
"""Owners of one node of whom an event says that they were not reached."""


def owner_notifiers(notifier: Notifier) -> list[OwnerNotifier]:
    """Return the workload systems of a pool that can send messages to owners, and are to. Pure."""
    parts = notifier.parts if isinstance(notifier, CombinedNotifier) else [notifier]
    return [each for each in parts if isinstance(each, OwnerNotifier) and each.notifies_owners]


class OwnerNotices:
    """Sends the messages of every drain that one replica performs."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        """Publish what is sent on `bus`."""
        self._bus = bus
        self._clock = clock

    async def run(self, notifier: Notifier, order: WorkloadOrder, *, waits: bool) -> None:
        """Notify the owners of work on the node of an order; never returns, and never fails.

        `waits`: the drain lets work run until its deadline.
        """
        able = owner_notifiers(notifier)
        if able and waits and order.deadline is not None and not order.node.gone:
            try:
                await self._notify(notifier, able, order)
            except Exception:
                log.exception("owners of work were not notified", extra={"key": order.key})
        await asyncio.Event().wait()

    async def _notify(
        self, notifier: Notifier, able: Sequence[OwnerNotifier], order: WorkloadOrder
    ) -> None:
        claim = await self._claim(notifier, order)
        while not await self._published(claim):
            await self._clock.sleep(ASK_AGAIN_SECONDS)
        sent = await asyncio.gather(*(self._send(each, order) for each in able))
        failed = [each for notices in sent for each in notices if each.failure]
        for number, each in enumerate(failed[:FAILURES_MAX]):
            event = owner_notice_failed(order, each, number, self._clock.now())
            log.warning("an owner of work was not notified: %s", event.reason)
            while not await self._published(event):
                await self._clock.sleep(ASK_AGAIN_SECONDS)

    async def _claim(self, notifier: Notifier, order: WorkloadOrder) -> OwnersNotified:
        """Return the event that claims the drain, once there is work; wait where none is."""
        while True:
            try:
                last = await last_event(self._bus, OwnersNotified, order.node.pool, order.node.node)
                if last is not None and last.saga == order.saga:
                    await asyncio.Event().wait()
                return await self._event(notifier, order)
            except Exception as error:  # noqa: BLE001 - a notifier may be a third party's code
                reason = str(error) or type(error).__name__
                log.info("whose work is on a node is not known yet: %s", reason)
                await self._clock.sleep(ASK_AGAIN_SECONDS)

    async def _event(self, notifier: Notifier, order: WorkloadOrder) -> OwnersNotified:
        assert order.deadline is not None
        found = NodeWorkload(drained=False, unsure=True)
        if notifier.confirms_drains:
            answer = (await notifier.workloads([order.node])).get(order.node.node)
            if isinstance(answer, NodeWorkload):
                found = answer
        if not (found.running or found.total or found.unsure):
            await asyncio.Event().wait()  # no work, so no owner
        return OwnersNotified(
            id=f"owners-notified-{order.saga}",
            pool=order.node.pool,
            node=order.node.node,
            time=self._clock.now(),
            saga=order.saga,
            work=listed_work(found.running, RUNNING_MAX),
            total=max(found.total, len(found.running)),
            until=order.deadline,
        )

    async def _published(self, event: OwnersNotified | OwnerNoticeFailed) -> bool:
        try:
            await publish_event(self._bus, event)
        except BusError as error:
            log.warning("an event about owners is not published: %s", error)
            return False
        return True

    async def _send(self, notifier: OwnerNotifier, order: WorkloadOrder) -> Sequence[OwnerNotice]:
        (sending,) = await race(notifier.notify_owners(order), seconds_max=SEND_SECONDS_MAX)
        if sending.cancelled():
            return [OwnerNotice(owner="", failure=f"no answer within {SEND_SECONDS_MAX:g} s")]
        if error := sending.exception():
            return [OwnerNotice(owner="", failure=str(error) or type(error).__name__)]
        found: Sequence[OwnerNotice] = sending.result()
        return found


def owner_notice_failed(
    order: WorkloadOrder, notice: OwnerNotice, number: int, now: datetime
) -> OwnerNoticeFailed:
    """Return the event about an owner who was not reached. Pure."""
    return OwnerNoticeFailed(
        id=f"owner-notice-failed-{order.saga}-{number}",
        pool=order.node.pool,
        node=order.node.node,
        time=now,
        saga=order.saga,
        owner=notice.owner[:NAME_CHARS_MAX],
        reason=" ".join(redacted(notice.failure).split())[:NAME_CHARS_MAX],
    )
