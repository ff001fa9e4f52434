"""Notifies the owners of work of a drain that will end it: once, beside the drain.

An event is the claim: it is published before the first message, and a replica that continues the
drain finds it and sends nothing. A replica that is killed in between leaves owners without a
message, and none with two. Where the work is asked to leave while a new node is launched, owners
hear then, and the drain that follows finds the claim. What is not claimed by then is the drain's.
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
AHEAD_SECONDS_MAX: Final = 60.0
"""How long it is asked whose work is on a node that is not drained yet."""
AHEAD_MAX: Final = 1_000
"""Nodes not drained yet whose owners wait to hear; the owners of others hear by the drain."""
SENDERS: Final = 16
"""How many of these nodes' owners are notified at a time."""


def owner_notifiers(notifier: Notifier) -> list[OwnerNotifier]:
    """Return the workload systems of a pool that can send messages to owners, and are to. Pure."""
    parts = notifier.parts if isinstance(notifier, CombinedNotifier) else [notifier]
    return [each for each in parts if isinstance(each, OwnerNotifier) and each.notifies_owners]


def is_for_owners(notifier: Notifier, order: WorkloadOrder) -> bool:
    """Return whether owners can hear of an order, and it ends work at a known time. Pure."""
    return order.deadline is not None and not order.node.gone and bool(owner_notifiers(notifier))


class OwnerNotices:
    """Sends the messages of every drain that one replica performs."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        """Publish what is sent on `bus`."""
        self._bus = bus
        self._clock = clock
        self._waiting: dict[str, tuple[Notifier, WorkloadOrder]] = {}
        """Saga -> the order of which owners are to hear ahead of its drain."""
        self._sending: dict[str, asyncio.Event] = {}
        """Saga of which they hear just now -> set once they have."""
        self._asked = asyncio.Event()

    def announce(self, notifier: Notifier, order: WorkloadOrder) -> None:
        """Have the owners notified of an order whose drain begins later; this waits for nothing."""
        known = order.saga in self._waiting or order.saga in self._sending
        if not known and is_for_owners(notifier, order) and len(self._waiting) < AHEAD_MAX:
            self._waiting[order.saga] = (notifier, order)
            self._asked.set()

    async def serve(self) -> None:
        """Notify the owners of what was announced; never returns."""
        async with asyncio.TaskGroup() as senders:
            for _ in range(SENDERS):
                senders.create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            if not self._waiting:
                self._asked.clear()
                await self._asked.wait()
                continue
            saga = next(iter(self._waiting))
            notifier, order = self._waiting.pop(saga)
            sent = self._sending[saga] = asyncio.Event()
            try:
                await self._notify(notifier, order, seconds_max=AHEAD_SECONDS_MAX)
            finally:
                del self._sending[saga]
                sent.set()

    async def run(self, notifier: Notifier, order: WorkloadOrder, *, waits: bool) -> None:
        """Notify the owners of work on the node of an order; never returns, and never fails.

        `waits`: the drain lets work run until its deadline.
        """
        self._waiting.pop(order.saga, None)
        if (sent := self._sending.get(order.saga)) is not None:
            await sent.wait()
        if waits and is_for_owners(notifier, order):
            await self._notify(notifier, order)
        await asyncio.Event().wait()

    async def _notify(
        self, notifier: Notifier, order: WorkloadOrder, seconds_max: float | None = None
    ) -> None:
        try:
            (claiming,) = await race(self._claimed(notifier, order), seconds_max=seconds_max)
            if not claiming.cancelled() and claiming.result():
                await self._send_all(notifier, order)
        except Exception:
            log.exception("owners of work were not notified", extra={"key": order.key})

    async def _send_all(self, notifier: Notifier, order: WorkloadOrder) -> None:
        able = owner_notifiers(notifier)
        sent = await asyncio.gather(*(self._send(each, order) for each in able))
        failed = [each for notices in sent for each in notices if each.failure]
        for number, each in enumerate(failed[:FAILURES_MAX]):
            event = owner_notice_failed(order, each, number, self._clock.now())
            log.warning("an owner of work was not notified: %s", event.reason)
            while not await self._published(event):
                await self._clock.sleep(ASK_AGAIN_SECONDS)

    async def _claimed(self, notifier: Notifier, order: WorkloadOrder) -> bool:
        """Publish the claim on a drain's messages, and return whether it is this one that counts.

        False where there is no work, or owners have heard of the drain. Another replica may claim
        it at the same time: the event that is stored says whose claim counts.
        """
        claim: OwnersNotified | None = None
        while True:
            try:
                if (last := await self._last(order)) is not None:
                    return last == claim
                claim = claim or await self._event(notifier, order)
                if claim is None:
                    return False
                await publish_event(self._bus, claim)
                if (last := await self._last(order)) is not None:
                    return last == claim
            except Exception as error:  # noqa: BLE001 - a notifier may be a third party's code
                reason = str(error) or type(error).__name__
                log.info("owners of work on a node are not notified yet: %s", reason)
            await self._clock.sleep(ASK_AGAIN_SECONDS)

    async def _last(self, order: WorkloadOrder) -> OwnersNotified | None:
        """Return the claim that is stored for a drain."""
        last = await last_event(self._bus, OwnersNotified, order.node.pool, order.node.node)
        return last if last is not None and last.saga == order.saga else None

    async def _event(self, notifier: Notifier, order: WorkloadOrder) -> OwnersNotified | None:
        """Return the event that claims the drain; None where no work is on the node."""
        assert order.deadline is not None
        found = NodeWorkload(drained=False, unsure=True)
        if notifier.confirms_drains:
            answer = (await notifier.workloads([order.node])).get(order.node.node)
            if isinstance(answer, NodeWorkload):
                found = answer
        if not (found.running or found.total or found.unsure):
            return None
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

    async def _published(self, event: OwnerNoticeFailed) -> bool:
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
