"""Orders that reach the workload system late: what the node's record says is ordered after them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.messages import encode
from schemas.node_records import NodeRecord, node_key
from schemas.saga_log_entries import (
    SagaEntry,
    SagaStarted,
    StepExpired,
    StepStarted,
    StepSucceeded,
)
from schemas.saga_params import SagaParams
from schemas.topology import NODES, NOTIFIER_STEPS
from services.bus.memory.memory_bus import MemoryBus
from services.notifier.workload.workload_notifier import WorkloadOrder
from services.notifier.workload_steps import ALIGN_CHANGED_SECONDS, is_aligned
from services.primitives.errors import Retry
from services.runtime.consumer_loop import ConsumerLoop, Received
from services.runtime.process_metrics import Instruments
from services.runtime.tracing import Tracing
from services.saga.participant import LANDED_SECONDS, Command
from services.saga.saga_log import append, decode_entry
from services.simulator.engine.virtual_time import VirtualClock
from tests.notifier.test_drain_watch import Scheduler
from tests.notifier.test_workload_steps import steps, with_bus

LATE = Command(saga="s", step="drain", inputs={"pool": "p", "node": "n"}, id="e", late=True)
SLOW_SECONDS = 40.0


@dataclass
class Slow(Scheduler):
    """Carries a cordon out after a while, also for a caller who waits for it no more."""

    cordoned: bool = False
    orders: list[str] = field(default_factory=list)
    landing: set[asyncio.Task[None]] = field(default_factory=set)

    async def cordon(self, order: WorkloadOrder) -> None:
        """Let the order land later."""
        landing = asyncio.create_task(self._land(order))
        self.landing.add(landing)
        await asyncio.shield(landing)

    async def _land(self, order: WorkloadOrder) -> None:
        await VirtualClock().sleep(SLOW_SECONDS)
        self.cordoned = True
        self.orders.append(f"cordon {order.key}")

    async def uncordon(self, order: WorkloadOrder) -> None:
        """Let work on the node again at once."""
        self.cordoned = False
        self.orders.append(f"uncordon {order.key}")


async def record(bus: MemoryBus, **fields: Any) -> None:
    """Write the record of the node."""
    value = encode(NodeRecord(pool="p", node="n", state="active", **fields))
    await bus.put(NODES, node_key("p", "n"), value)


def test_an_order_that_put_a_late_one_right_is_put_right_when_it_is_late_itself() -> None:
    """The saga uncordons its node while the cordon of its late drain is on its way."""

    async def work(bus: MemoryBus) -> None:
        slow = Slow()
        performed = steps(bus, slow)
        await record(bus, cordoned=True, saga="s")
        aligning = asyncio.create_task(performed.align(LATE))
        await VirtualClock().sleep(SLOW_SECONDS / 2)
        await record(bus)
        with pytest.raises(Retry) as again:
            await aligning
        assert slow.cordoned
        assert again.value.after_seconds == ALIGN_CHANGED_SECONDS
        await performed.align(LATE)
        assert not slow.cordoned

    with_bus(work)


@asynccontextmanager
async def taking_part(bus: MemoryBus, slow: Slow) -> AsyncIterator[None]:
    """The notifier's steps, performed in this workload system."""
    context: Any = SimpleNamespace(bus=bus, clock=VirtualClock())
    consumer = steps(bus, slow).participant(context).consumer(NOTIFIER_STEPS)
    loop = ConsumerLoop(bus, consumer, VirtualClock(), Instruments(), Tracing("test"))
    running = asyncio.create_task(loop.run())
    yield
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_a_cordon_that_lands_after_its_call_was_stopped_is_put_right() -> None:
    """The step was given up at its deadline, and the saga has ended with the node in service."""

    async def work(bus: MemoryBus) -> None:
        slow, clock = Slow(), VirtualClock()
        about: dict[str, Any] = {"time": clock.now(), "saga": "drain-n-1"}
        inputs, deadline = {"pool": "p", "node": "n"}, clock.now() + timedelta(seconds=10)
        cordon = StepStarted(id="c", step="cordon", inputs=inputs, deadline=deadline, **about)
        entries: list[SagaEntry] = [
            SagaStarted(id="s", kind="drain", params=SagaParams(pool="p", node="n"), **about),
            cordon,
        ]
        last = 0
        for each in entries:
            last = await append(bus, each, last, {})
        async with taking_part(bus, slow):
            await clock.sleep(11.0)
            assert slow.orders == []
            await append(bus, StepExpired(id="x", step="cordon", **about), last, {})
            await clock.sleep(SLOW_SECONDS)
            assert slow.cordoned
            await clock.sleep(LANDED_SECONDS)
        assert slow.orders == ["cordon drain-n-1/cordon", "uncordon drain-n-1/cordon/late-2"]

    with_bus(work)


def test_a_command_whose_acknowledgement_was_lost_orders_nothing_again() -> None:
    """Another saga may be about to cordon the node that this one has returned."""

    async def work(bus: MemoryBus) -> None:
        slow, clock, last = Slow(), VirtualClock(), 0
        about: dict[str, Any] = {"time": clock.now(), "saga": "drain-n-1"}
        node = {"pool": "p", "node": "n"}
        entries: list[SagaEntry] = [
            SagaStarted(id="s", kind="drain", params=SagaParams(pool="p", node="n"), **about),
            StepStarted(id="c", step="cordon", inputs=node, deadline=None, **about),
            StepSucceeded(id="d", step="cordon", outputs={}, **about),
        ]
        for each in entries:
            last = await append(bus, each, last, {})
        delivered = await first_command(bus)
        context: Any = SimpleNamespace(bus=bus, clock=clock)
        await steps(bus, slow).participant(context).handle(delivered)
        assert slow.orders == []

    with_bus(work)


async def first_command(bus: MemoryBus) -> Received[Any]:
    """Deliver the first command of the notifier for the second time."""
    async for delivery in bus.consume(NOTIFIER_STEPS):
        message: Any = decode_entry(delivery.stored)
        return Received(message, delivery.stored, deliveries=2)
    raise AssertionError("no command is stored")


CORDONED = NodeRecord(pool="p", node="n", state="active", cordoned=True)
SERVES = NodeRecord(pool="p", node="n", state="active")
IN_SAGA = NodeRecord(pool="p", node="n", state="active", saga="s")
CORDONED_BY = NodeRecord(pool="p", node="n", state="active", saga="s", cordoned=True)
GONE = NodeRecord(pool="p", node="n", state="terminated")


@pytest.mark.parametrize(
    ("ordered", "after", "aligned"),
    [
        (CORDONED, CORDONED, True),
        (SERVES, SERVES, True),
        (CORDONED, SERVES, False),
        (SERVES, CORDONED, False),
        (CORDONED_BY, CORDONED_BY, False),
        (CORDONED_BY, CORDONED, False),
        (IN_SAGA, SERVES, False),
        (SERVES, IN_SAGA, False),
        (CORDONED_BY, GONE, True),
        (CORDONED, None, True),
    ],
)
def test_an_order_is_right_once_the_record_says_the_same_of_no_saga(
    ordered: NodeRecord, after: NodeRecord | None, aligned: bool
) -> None:
    """The record may be behind what an open saga has ordered."""
    assert is_aligned(ordered, after) is aligned
