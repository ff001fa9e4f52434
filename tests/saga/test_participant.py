"""A participant whose saga is cancelled: it stops, says so, and performs nothing afterwards."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schemas.saga_log_entries import (
    SagaEntry,
    SagaStarted,
    SagaUnwinding,
    StepFailed,
    StepStarted,
    UndoStarted,
)
from schemas.saga_params import SagaParams
from schemas.topology import NOTIFIER_STEPS
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.runtime.consumer_loop import ConsumerLoop
from services.runtime.process_metrics import Instruments
from services.runtime.tracing import Tracing
from services.saga.participant import STOPPED_REASON, Command, Participant
from services.saga.saga_log import append, read_state
from tests.support.inprocess import eventually

ABOUT: dict[str, Any] = {"time": datetime.now(UTC), "saga": "drain-n1-1"}
BEGUN = SagaStarted(id="s", kind="drain", params=SagaParams(pool="p", node="n1"), **ABOUT)
UNWINDING = SagaUnwinding(id="u", step="drain", reason="r", cancelled=True, **ABOUT)
DRAIN = StepStarted(
    id="d", step="drain", deadline=ABOUT["time"] + timedelta(hours=1), inputs={}, **ABOUT
)


class Workload:
    """Begins a drain that never ends, and notes what becomes of it."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.did: list[str] = []

    async def drain(self, _: Command) -> None:
        """Wait for ever."""
        self.did.append("begun")
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.did.append("stopped")
            raise

    async def terminate(self, _: Command) -> None:
        """Record that the node was terminated."""
        self.did.append("terminated")

    async def undo(self, _: Command) -> None:
        """Note that the step was undone."""
        self.did.append("undone")


async def appended(bus: NatsBus, *entries: SagaEntry, after: int = 0) -> int:
    """Append entries to the log, each under the guard; return the last sequence."""
    for entry in entries:
        after = await append(bus, entry, after, {})
    return after


@pytest.fixture
def workload() -> Workload:
    """Return a workload system that notes what it is asked."""
    return Workload()


@pytest.fixture
async def taking_part(bus: NatsBus, workload: Workload) -> AsyncIterator[asyncio.Event]:
    """A participant that takes its first command when the event is set."""
    clock, go = SystemClock(), asyncio.Event()
    actions = {"drain": workload.drain, "terminate": workload.terminate}
    participant = Participant(bus, clock, actions, {"cordon": workload.undo})
    loop = ConsumerLoop(
        bus, participant.consumer(NOTIFIER_STEPS), clock, Instruments(), Tracing("test")
    )

    async def run() -> None:
        await go.wait()
        await loop.run()

    tasks = [asyncio.create_task(run()), asyncio.create_task(participant.watch())]
    yield go
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def failed(bus: NatsBus) -> Any:
    """The drain's reason, once it has failed."""

    async def look() -> str:
        state = await read_state(bus, "drain-n1-1")
        assert state is not None
        drain = state.step("drain")
        return drain.reason if drain.status == "failed" else ""

    return look


async def test_an_action_under_way_is_stopped_when_its_saga_is_cancelled(
    bus: NatsBus, workload: Workload, taking_part: asyncio.Event
) -> None:
    """Long before its deadline; the failure is the word that it has stopped."""
    taking_part.set()
    last = await appended(bus, BEGUN, DRAIN)
    async with asyncio.timeout(60):
        await workload.begun.wait()
    await appended(bus, UNWINDING, after=last)
    reason = await eventually(failed(bus))

    assert STOPPED_REASON == reason
    assert ["begun", "stopped"] == workload.did


async def test_a_command_that_comes_after_the_cancellation_is_not_performed(
    bus: NatsBus, workload: Workload, taking_part: asyncio.Event
) -> None:
    """A crash does that: the command is delivered again, answered, and nothing is done."""
    await appended(bus, BEGUN, DRAIN, UNWINDING)
    taking_part.set()
    reason = await eventually(failed(bus))

    assert STOPPED_REASON == reason
    assert [] == workload.did


async def test_an_undo_is_performed_though_the_cancellation_is_seen_meanwhile(
    bus: NatsBus, workload: Workload, taking_part: asyncio.Event
) -> None:
    """Only actions are stopped: what takes them back is what was asked for."""
    cordon = StepStarted(id="c", step="cordon", inputs={}, **ABOUT)
    stopped = StepFailed(id="f", step="cordon", reason="r", **ABOUT)
    undo = UndoStarted(id="x", step="cordon", inputs={}, **ABOUT)
    await appended(bus, BEGUN, cordon, UNWINDING, stopped, undo)
    taking_part.set()

    async def undone() -> bool:
        state = await read_state(bus, "drain-n1-1")
        return state is not None and state.step("cordon").status == "undone"

    await eventually(undone)
    assert ["undone"] == workload.did


async def test_a_step_that_the_sagas_kind_does_not_have_is_not_performed(
    bus: NatsBus, workload: Workload, taking_part: asyncio.Event
) -> None:
    """A forged `terminate.started` in a drain's log, appended under the guard like a real one."""
    forged = StepStarted(id="t", step="terminate", inputs={}, **ABOUT)
    await appended(bus, BEGUN, forged, DRAIN)
    taking_part.set()
    async with asyncio.timeout(60):
        await workload.begun.wait()
    assert workload.did == ["begun"]
    state = await read_state(bus, "drain-n1-1")
    assert state is not None
    assert len(state.skipped) == 1


@pytest.mark.parametrize("goes_on", [True, False])
async def test_what_takes_effect_after_its_saga_has_gone_on_is_put_right(
    bus: NatsBus, *, goes_on: bool
) -> None:
    """A process may be suspended between its look at the log and the call."""
    cordon = StepStarted(id="c", step="cordon", inputs={}, **ABOUT)
    last, did, done = await appended(bus, BEGUN, cordon), list[str](), asyncio.Event()

    async def order(_: Command) -> None:
        if goes_on:
            answered = StepFailed(id="f", step="cordon", reason="r", **ABOUT)
            await appended(bus, UNWINDING, answered, after=last)
        did.append("cordoned")

    async def align(command: Command) -> None:
        did.append(f"aligned as {command.key}")
        done.set()

    participant = Participant(bus, SystemClock(), {"cordon": order}, {}, align=align)
    loop = ConsumerLoop(
        bus, participant.consumer(NOTIFIER_STEPS), SystemClock(), Instruments(), Tracing("test")
    )
    running = asyncio.create_task(loop.run())

    async def settled() -> bool:
        state = await read_state(bus, "drain-n1-1")
        return done.is_set() or (state is not None and state.step("cordon").status == "succeeded")

    await eventually(settled)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert did == ["cordoned", "aligned as drain-n1-1/cordon/late-1"][: 1 + goes_on]
