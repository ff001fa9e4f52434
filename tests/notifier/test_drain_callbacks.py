"""A callback ends a drain sooner; one that is forged, late or repeated changes nothing.

In virtual time on the in-memory bus.
"""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.headers import SUBJECT
from schemas.messages import encode
from schemas.node_events import FACTS, WorkLeft
from schemas.node_records import NodeRecord, node_key
from schemas.permissions import WORK_DONE
from schemas.saga_log_entries import (
    SagaEntry,
    SagaStarted,
    SagaUnwinding,
    StepExpired,
    StepStarted,
    StepSucceeded,
)
from schemas.saga_params import SagaParams
from schemas.step_data import DrainOutputs
from schemas.topology import EVENTS, NODES
from schemas.work_done import WorkDone, WorkDoneAccepted
from services.bus.memory.memory_bus import MemoryBus
from services.notifier.drain_stages import DrainCallbacks, NotDrainingError
from services.notifier.workload.webhook_notifier import WebhookDrain, WebhookNotifier
from services.notifier.workload.workload_notifier import Notifier, WorkloadOrder
from services.primitives.race import race
from services.saga.saga_log import append
from services.simulator.engine.virtual_time import VirtualClock
from tests.notifier.test_drain_watch import Scheduler
from tests.notifier.test_workload_steps import command, steps, with_bus

SAGA = "s"
ABOUT = {"id": "e", "saga": SAGA, "time": datetime(2026, 11, 23, tzinfo=UTC)}
STARTED = SagaStarted(kind="replace", params=SagaParams(pool="p", node="n"), **ABOUT)
CORDON = [StepStarted(step="cordon", **ABOUT), StepSucceeded(step="cordon", **ABOUT)]
VACATE = [StepStarted(step="vacate", **ABOUT), StepSucceeded(step="vacate", **ABOUT)]
DRAIN = StepStarted(step="drain", **ABOUT)
DRAINING = [STARTED, *CORDON, DRAIN]


def callback_only() -> WebhookNotifier:
    """A webhook whose receiver calls back; it is sent no orders."""
    options = WebhookNotifier.Options(drain=WebhookDrain(completes="when-called-back"))
    return WebhookNotifier(options=options, clock=VirtualClock())


async def store(bus: MemoryBus, entries: list[SagaEntry]) -> None:
    """Append these entries to the saga's log."""
    sequence = 0
    for each in entries:
        sequence = await append(bus, each, sequence, {})


async def call_back(bus: MemoryBus, node: str = "n", saga: str = SAGA) -> WorkDoneAccepted:
    """Do what `navarch workload done` does, answered by a replica that waits for nothing."""
    callbacks = DrainCallbacks(bus, VirtualClock(), [])
    [(wildcard, endpoint)] = callbacks.endpoints.items()
    assert wildcard == subjects.order_wildcard(WORK_DONE)
    headers = {SUBJECT: subjects.order(WORK_DONE, "slurm-site")}
    return msgspec.json.decode(
        await endpoint(encode(WorkDone(node=node, saga=saga)), headers), type=WorkDoneAccepted
    )


async def published(bus: MemoryBus) -> int:
    """Number of callbacks that were stored."""
    subject = subjects.node_event("p", "n", FACTS[WorkLeft])
    return len(await bus.read(EVENTS.name, subject))


@pytest.mark.parametrize("saga", [SAGA, ""])
def test_a_callback_to_any_replica_ends_the_wait_at_once(saga: str) -> None:
    """The workload system is asked every 60 s, and the drain ends within one."""

    async def work(bus: MemoryBus) -> None:
        clock, scheduler = VirtualClock(), Scheduler(busy={"n"}, batches=False)
        await store(bus, DRAINING)
        record = NodeRecord(pool="p", node="n", saga=SAGA)
        await bus.put(NODES, node_key("p", "n"), encode(record))
        waiting = steps(bus, scheduler)
        following = asyncio.create_task(waiting.callbacks.run())
        drain = asyncio.create_task(waiting.drain(command("p", 3_600.0)))
        await clock.sleep(5)
        begun = clock.monotonic()
        scheduler.busy.clear()
        await call_back(bus, saga=saga)
        assert await drain == DrainOutputs()
        assert clock.monotonic() - begun < 1
        following.cancel()

    with_bus(work)


def test_a_callback_is_not_believed_against_the_workload_system() -> None:
    """The node stays when one of two workload systems calls back and the other is busy."""

    async def work(bus: MemoryBus) -> None:
        clock, scheduler = VirtualClock(), Scheduler(busy={"n"}, poll_seconds=5)
        await store(bus, DRAINING)
        waiting = steps(bus, Scheduler(), {"slurm": scheduler, "hook": callback_only()})
        following = asyncio.create_task(waiting.callbacks.run())
        drain = asyncio.create_task(waiting.drain(command("configured", 3_600.0)))
        await clock.sleep(1)
        await call_back(bus)
        await clock.sleep(60)
        assert not drain.done()
        scheduler.busy.clear()
        await clock.sleep(6)
        assert await drain == DrainOutputs()
        following.cancel()

    with_bus(work)


@pytest.mark.parametrize("replica", ["the-same", "the-next"])
def test_a_callback_that_precedes_the_wait_is_not_lost(replica: str) -> None:
    """A receiver may call back before it has answered the order, and a replica may be killed."""

    async def work(bus: MemoryBus) -> None:
        class Prompt(WebhookNotifier):
            async def drain(self, order: WorkloadOrder) -> None:
                await call_back(bus, saga=order.saga)

        await store(bus, DRAINING)
        notifier: Notifier = callback_only()
        if replica == "the-next":
            await call_back(bus)
        else:
            options = WebhookNotifier.Options(drain=WebhookDrain(completes="when-called-back"))
            notifier = Prompt(options=options, clock=VirtualClock())
        drain, _ = await race(
            steps(bus, notifier).drain(command("p", 3_600.0)), VirtualClock().sleep(5)
        )
        assert drain.result() == DrainOutputs()

    with_bus(work)


def test_without_a_callback_nothing_is_drained() -> None:
    """The drain waits until its deadline."""

    async def work(bus: MemoryBus) -> None:
        drain = steps(bus, callback_only()).drain(command("p", 3_600.0))
        drain_, _ = await race(drain, VirtualClock().sleep(3_599))
        assert drain_.cancelled()

    with_bus(work)


UNWINDING = SagaUnwinding(step="drain", reason="cancelled", **ABOUT)
REFUSED: dict[str, tuple[list[SagaEntry], dict[str, Any]]] = {
    "no-such-saga": ([], {}),
    "another-saga": (DRAINING, {"saga": "replace-n-2"}),
    "another-node": (DRAINING, {"node": "m"}),
    "no-saga-works-on-the-node": (DRAINING, {"saga": ""}),
    "not-draining-yet": ([STARTED, *CORDON], {}),
    "drained-before": ([*DRAINING, StepSucceeded(step="drain", **ABOUT)], {}),
    "given-up": ([*DRAINING, StepExpired(step="drain", **ABOUT)], {}),
    "unwinding": ([*DRAINING, UNWINDING], {}),
}


@pytest.mark.parametrize(("entries", "asked"), REFUSED.values(), ids=REFUSED)
def test_a_forged_or_stale_callback_changes_nothing(
    entries: list[SagaEntry], asked: dict[str, Any]
) -> None:
    """The callback is refused, and nothing is stored."""

    async def work(bus: MemoryBus) -> None:
        await store(bus, entries)
        with pytest.raises(NotDrainingError, match="nothing was changed"):
            await call_back(bus, **asked)
        assert await published(bus) == 0

    with_bus(work)


@pytest.mark.parametrize("before", [[*CORDON, DRAIN], [*CORDON, *VACATE]], ids=["drain", "vacate"])
def test_a_repeated_callback_is_accepted_and_stored_once(before: list[SagaEntry]) -> None:
    """The second is accepted also when the drain that the first ended is over."""

    async def work(bus: MemoryBus) -> None:
        await store(bus, [STARTED, *before])
        first = await call_back(bus)
        assert first == await call_back(bus) == WorkDoneAccepted(pool="p", node="n", saga=SAGA)
        at = await bus.last_sequence("SAGAS", subjects.saga_tree(SAGA))
        if before[-1] is DRAIN:
            await append(bus, StepSucceeded(step="drain", **ABOUT), at, {})
        assert first == await call_back(bus)
        assert await published(bus) == 1

    with_bus(work)
