"""Performs the cordon, drain and uncordon steps of sagas in the pool's workload system."""

import asyncio
import logging
from collections.abc import Awaitable
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec

from schemas.enums import DrainMode
from schemas.node_records import DRAINED_BEFORE_SECONDS, NodeRecord
from schemas.step_data import DrainOutputs, GpuInputs, NodeInputs, VacateOutputs
from services.bus.bucket_mirror import readable_record
from services.bus.port import Bus
from services.notifier.drain_stages import DrainCallbacks, await_checkpoint, checkpoint_order
from services.notifier.node_references import (
    Entries,
    decode_node,
    gpus_of,
    read_entries,
    read_gpus,
    read_node,
    reference_of,
    taken_at,
)
from services.notifier.owner_notices import OwnerNotices
from services.notifier.work_report import WorkReport
from services.notifier.workload.drain_watch import DrainWatch
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import (
    GpuCordoningNotifier,
    NodeReference,
    Notifier,
    StepFailure,
    WorkloadOrder,
)
from services.notifier.workload_availability import WorkloadAvailability
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Retry
from services.primitives.race import race
from services.runtime.process import Context
from services.saga.participant import Command, Participant

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
"""Between two tries to order a drain."""
EVICTION_SECONDS_MAX: Final = 10.0
"""How long before a drain's deadline, at which the node may be terminated, the work that is left
is evicted: so it is requeued, and not lost."""
EVICTION_SHARE_MAX: Final = 0.1
"""The same as a share of the time between the order and the deadline."""
EVICT_AGAIN_SECONDS: Final = 2.0
EVICTIONS_MAX: Final = 5
"""Tries at the deadline, before the node is terminated."""
RECORDED_SECONDS_MAX: Final = 30.0
"""How long a node's lost record is waited for; without it the node has no other name than ours."""
RECORDED_AGAIN_SECONDS: Final = 0.5
ALIGN_AGAIN_SECONDS: Final = 60.0
"""Between two orders that put right one that came too late, while a saga may yet change it."""
ALIGN_CHANGED_SECONDS: Final = 0.5
"""The same where the record has changed meanwhile: what was ordered is wrong by now."""
LOOK_SECONDS: Final = 10.0
"""How often a drain looks whether the cloud takes its node earlier than it ends."""


class _AboutNode(msgspec.Struct, frozen=True):
    """The part that the inputs of every step have."""

    pool: str
    node: str


class WorkloadSteps:
    """Performs the steps."""

    def __init__(
        self, notifiers: PoolNotifiers, bus: Bus, clock: Clock, availability: WorkloadAvailability
    ) -> None:
        """Perform them through the notifiers of each pool; `bus` has the records of nodes."""
        self._availability = availability
        self._notifiers = notifiers
        self._bus = bus
        self._clock = clock
        self._watches: dict[Notifier, DrainWatch] = {}
        self._cut_short: set[str] = set()
        """Keys of the orders whose call was ended before it was answered."""
        self.owners = OwnerNotices(bus, clock)
        self.callbacks = DrainCallbacks(bus, clock, self._watches.values())

    async def cordon(self, command: Command) -> None:
        """Stop placing new work on the node."""
        notifier, order = await self._order(command)
        await self._observed(notifier, order, notifier.cordon(order))

    async def uncordon(self, command: Command) -> None:
        """Allow new work on the node again; also the undo of a cordon."""
        notifier, order = await self._order(command)
        await self._observed(notifier, order, notifier.uncordon(order))

    async def return_node(self, command: Command) -> None:
        """Allow new work on the node again, and on all GPUs that its record has not cordoned.

        A store that was rolled back or restored knows nothing of the GPUs cordoned since. They are
        first: where an order is refused the node takes no work, as its record goes on to say.
        """
        await self._return(*await self._order(command))

    async def _return(self, notifier: Notifier, order: WorkloadOrder) -> None:
        if isinstance(notifier, GpuCordoningNotifier):
            gpus = await read_gpus(self._bus, order.node.pool, order.node.node)
            await notifier.cordon_gpus(
                msgspec.structs.replace(order, key=f"{order.key}/gpus", gpus=gpus)
            )
        await self._observed(notifier, order, notifier.uncordon(order))

    async def promote(self, command: Command) -> None:
        """Put a spare into service.

        One that serves is left as it is: of a saga whose log is lost the step is performed again,
        and an operator may have cordoned the node since.
        """
        notifier, order = await self._order(command)
        record = await read_node(self._bus, order.node.pool, order.node.node)
        if record is None or record.spare or record.state != "active":
            await self._return(notifier, order)

    async def cordon_gpus(self, command: Command) -> None:
        """Keep new work off GPUs of the node, and off no others."""
        about = command.inputs_as(GpuInputs)
        notifier, (reference, record) = await asyncio.gather(
            self._notifiers.of(about.pool), self._recorded(command, about)
        )
        gpus = gpus_of(record, about.gpus)
        if not isinstance(notifier, GpuCordoningNotifier):
            if not gpus:
                return
            raise StepFailure(
                f"the notifier {notifier.name} cannot keep work off a single GPU",
                "INVALID",
                f"remove `health.cordon_scope: gpu` from pool {about.pool}, and restart the "
                "health-monitor",
            )
        order = WorkloadOrder(node=reference, reason=about.reason, key=command.key, gpus=gpus)
        await self._observed(notifier, order, notifier.cordon_gpus(order))

    async def align(self, command: Command) -> None:
        """Order what the node's record says, after an order that may have come too late.

        What is ordered here may come too late itself: the record is read again, and as long as a
        saga may change the node's cordon the command comes again.
        """
        about = msgspec.convert(command.inputs, _AboutNode)
        record = await read_node(self._bus, about.pool, about.node)
        if command.step == "cordon-gpus" or record is None or record.state != "active":
            return
        try:
            if record.cordoned:
                await self.cordon(command)
            elif not record.saga:
                await self.return_node(command)
        except StepFailure as failure:
            raise Retry(failure.reason, ALIGN_AGAIN_SECONDS) from failure
        after = await read_node(self._bus, about.pool, about.node)
        if not is_aligned(record, after):
            changed = after is not None and after.cordoned != record.cordoned
            wait = ALIGN_CHANGED_SECONDS if changed else ALIGN_AGAIN_SECONDS
            raise Retry(f"the cordon of {about.node} may have changed", wait)

    async def start_drain(self, command: Command) -> VacateOutputs:
        """Order the drain without waiting for it, and have the work's owners hear of it."""
        notifier, order = await self._order(command)
        await self._observed(notifier, order, notifier.drain(drain_order(order)))
        lasts = command.inputs_as(NodeInputs).drain_seconds
        if lasts != 0:
            now = self._clock.now()
            ends = None if lasts is None else now + timedelta(seconds=lasts)
            self.owners.announce(notifier, ending_order(order, now, ends))
        return VacateOutputs()

    async def drain(self, command: Command) -> DrainOutputs:
        """Order the drain and wait until the node is drained; the deadline cancels the wait."""
        notifier, order = await self._order(command)
        now = self._clock.now()
        ends = eviction_time(now, command.deadline, None)
        ending = ending_order(order, now, command.deadline)
        order = msgspec.structs.replace(order, deadline=ends)
        # Also where one of several workload systems has not taken the order by then.
        waits = command.inputs_as(NodeInputs).wait
        drained, *_ = await race(
            self._drain(command, notifier, order),
            self._evict_in_time(notifier, order, command.deadline),
            self.owners.run(notifier, ending, waits=waits),
        )
        outputs: DrainOutputs = drained.result()
        return outputs

    async def _drain(
        self, command: Command, notifier: Notifier, order: WorkloadOrder
    ) -> DrainOutputs:
        about = command.inputs_as(NodeInputs)
        waits = about.wait and notifier.confirms_drains
        # An earlier delivery may have ordered the drain and was interrupted while it waited.
        if waits and command.deliveries > 1 and await _is_drained(notifier, order.node):
            return DrainOutputs()
        observe = partial(self._availability.observed, notifier.name)
        watch = self._watches.setdefault(notifier, DrainWatch(notifier, self._clock, observe))
        until = drain_order(order).deadline
        report = WorkReport(self._bus, self._clock, order.node, order.saga, until)
        saved = False
        if about.checkpoint_seconds and waits:
            until = self._clock.now() + timedelta(seconds=about.checkpoint_seconds)
            saved = await await_checkpoint(
                *(self._bus, self._clock, notifier, watch, report),
                checkpoint_order(order, until),
                drain_by=order.deadline,
                repeated=command.deliveries > 1,
            )
        if not about.workload_notified:
            await self._order_drain(notifier, drain_order(order, waits=about.wait))
        if saved or not about.wait:
            await _evict(notifier, order)
        if not waits:
            return DrainOutputs(drain_confirmed=False)
        drained, *_ = await race(
            watch.drained(order.node, report.update, saga=order.saga),
            report.run(),
            self.callbacks.recall(order),
        )
        drained.result()
        return DrainOutputs()

    def may_land_late(self, command: Command) -> bool:
        """Return, once, whether a call of this command was ended before it was answered."""
        found = command.key in self._cut_short
        self._cut_short.discard(command.key)
        return found

    async def _called(
        self, notifier: Notifier, order: WorkloadOrder, call: Awaitable[None]
    ) -> None:
        try:
            await self._availability.observed(notifier.name, call)
        except asyncio.CancelledError:
            self._cut_short.add(order.key)
            raise

    async def _observed(
        self, notifier: Notifier, order: WorkloadOrder, call: Awaitable[None]
    ) -> None:
        """Give an order; Retry where the workload system is away, which is no defect of ours."""
        try:
            await self._called(notifier, order, call)
        except OSError as error:
            raise Retry(f"{notifier.name}: {str(error) or type(error).__name__}") from error

    async def _order_drain(self, notifier: Notifier, order: WorkloadOrder) -> None:
        """Order it until the workload system takes the order, or refuses it."""
        while True:
            try:
                await self._called(notifier, order, notifier.drain(order))
            except StepFailure:
                raise
            except Exception as error:  # noqa: BLE001 - a notifier may be a third party's code
                log.warning(
                    "a drain was not ordered; trying again",
                    extra={"node": order.node.node, "reason": str(error) or type(error).__name__},
                )
                await self._clock.sleep(RETRY_SECONDS)
            else:
                return

    async def _evict_in_time(
        self, notifier: Notifier, order: WorkloadOrder, deadline: datetime | None
    ) -> None:
        """Evict what is left shortly before the drain ends; never returns.

        The cloud may announce while the drain lasts that it takes the node, or withdraw that.
        """
        begun, taken = self._clock.now(), order.node.taken_at
        while True:
            at = eviction_time(begun, deadline, taken)
            wait = LOOK_SECONDS if at is None else (at - self._clock.now()).total_seconds()
            if at is not None and wait <= 0:
                for _ in range(EVICTIONS_MAX):
                    if await _evict(notifier, msgspec.structs.replace(order, deadline=at)):
                        break
                    await self._clock.sleep(EVICT_AGAIN_SECONDS)
                await asyncio.Event().wait()
            await self._clock.sleep(min(wait, LOOK_SECONDS))
            taken = await self._taken_at(order.node, taken)

    async def _taken_at(self, node: NodeReference, known: datetime | None) -> datetime | None:
        """When the cloud takes the node now; `known` where the bus does not say."""
        try:
            record = await read_node(self._bus, node.pool, node.node)
        except BusError:
            return known
        return taken_at(record) if record is not None else known

    async def _order(self, command: Command) -> tuple[Notifier, WorkloadOrder]:
        about = command.inputs_as(NodeInputs)
        notifier, (reference, _) = await asyncio.gather(
            self._notifiers.of(about.pool), self._recorded(command, about)
        )
        return notifier, WorkloadOrder(node=reference, reason=about.reason, key=command.key)

    async def _prepare(self, command: Command) -> Entries | None:
        """Read the entries of the node that a command is about."""
        try:
            about = msgspec.convert(command.inputs, _AboutNode)
        except msgspec.ValidationError:
            return None  # the action says why they cannot be used
        return await read_entries(self._bus, about.pool, about.node)

    async def _recorded(
        self, command: Command, about: NodeInputs | GpuInputs
    ) -> tuple[NodeReference, NodeRecord | None]:
        """Read a node's reference and record; wait while NODES has lost it: it is recorded again.

        By our name a workload system may not know it, and what it does not know has no work. Half
        of the step's time is left for the step.
        """
        waits = RECORDED_SECONDS_MAX
        if command.deadline is not None:
            left = (command.deadline - self._clock.now()).total_seconds()
            waits = min(waits, left / 2)
        until = self._clock.monotonic() + waits
        entries = command.prepared or await read_entries(self._bus, about.pool, about.node)
        while entries[0] is None:
            if self._clock.monotonic() >= until:
                log.warning("a node has no record", extra={"pool": about.pool, "node": about.node})
                break
            await self._clock.sleep(RECORDED_AGAIN_SECONDS)
            entries = await read_entries(self._bus, about.pool, about.node)
        record: NodeRecord | None = readable_record(entries[0], decode_node)
        return reference_of(about.pool, about.node, record, entries), record

    def participant(self, context: Context) -> Participant:
        """Make the saga participant that performs these steps."""
        return Participant(
            context.bus,
            context.clock,
            actions={
                "cordon": self.cordon,
                "drain": self.drain,
                "vacate": self.start_drain,
                "uncordon": self.return_node,
                "cordon-gpus": self.cordon_gpus,
                # For a new node: cordoned until it has passed its checks.
                "reserve": self.cordon,
                "open": self.uncordon,
                "promote": self.promote,
            },
            undos={"cordon": self.uncordon},
            prepare=self._prepare,
            align=self.align,
            may_land_late=self.may_land_late,
        )


def is_aligned(ordered: NodeRecord, after: NodeRecord | None) -> bool:
    """Return whether a node's record says what was ordered, and no saga may change it. Pure."""
    if after is None or after.state != "active":
        return True
    return not (ordered.saga or after.saga) and ordered.cordoned == after.cordoned


def eviction_time(
    begun: datetime, deadline: datetime | None, taken: datetime | None
) -> datetime | None:
    """When the work that is left is evicted: before the drain ends, or the cloud ends it. Pure."""
    by_cloud = taken - timedelta(seconds=DRAINED_BEFORE_SECONDS) if taken is not None else None
    ends = min((each for each in (deadline, by_cloud) if each is not None), default=None)
    if ends is None:
        return None
    left = max((ends - begun).total_seconds(), 0.0)
    return ends - timedelta(seconds=min(EVICTION_SECONDS_MAX, left * EVICTION_SHARE_MAX))


def ending_order(order: WorkloadOrder, now: datetime, deadline: datetime | None) -> WorkloadOrder:
    """The order as owners hear of it: with when their work is ended, by us or the cloud. Pure."""
    ends = eviction_time(now, deadline, order.node.taken_at)
    return msgspec.structs.replace(order, deadline=ends)


def drain_order(order: WorkloadOrder, *, waits: bool = True) -> WorkloadOrder:
    """The order as the workload system is given it: its work has no longer than its node. Pure."""
    known = [each for each in (order.deadline, order.node.taken_at) if each is not None]
    urgency: DrainMode = ("deadline" if known else "wait") if waits else "immediate"
    return msgspec.structs.replace(order, deadline=min(known, default=None), urgency=urgency)


async def _evict(notifier: Notifier, order: WorkloadOrder) -> bool:
    """Evict what is left; a failure is logged, because the node is terminated anyway."""
    try:
        await notifier.evict(order)
    except Exception as error:  # noqa: BLE001 - a notifier may be a third party's code
        log.warning(
            "work that is left on a node could not be evicted",
            extra={"node": order.node.node, "reason": str(error) or type(error).__name__},
        )
        return False
    return True


async def _is_drained(notifier: Notifier, reference: NodeReference) -> bool:
    try:
        answer = (await notifier.workloads([reference])).get(reference.node)
    except StepFailure:
        raise
    except Exception:  # noqa: BLE001 - a notifier may be a third party's code
        return False  # It is ordered again, and asked again.
    if isinstance(answer, StepFailure):
        raise answer
    return answer is not None and answer.drained
